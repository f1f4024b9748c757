"""The `stateflow` command: one function per command, and the one place where errors become exit codes."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stateflow.cli import (
    abandon,
    change,
    check,
    debug,
    doctor,
    gc,
    host,
    jobs,
    package,
    past,
    query,
    replay,
    restore,
    run,
    savepoint,
    serve,
    state,
    stop,
    trust,
    verify,
)
from stateflow.cli.options import debug_of, output_of
from stateflow.cli.output import ConsoleOutput, JsonOutput
from stateflow.cli.streams import lost_answer, open_unfailing
from stateflow.errors import StateflowError, UsageError, masked_lines

INTERRUPTED, TERMINATED = 130, 143
"""The exit codes that a shell expects after Ctrl-C and SIGTERM."""


OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "ps"), "jobs"),
    **dict.fromkeys(("status", "describe", "info"), "show"),
    **dict.fromkeys(("cancel", "kill"), "stop"),
    **dict.fromkeys(("rollback", "revert"), "restore"),
}
"""Commands by what other tools call them. The nearest spelling would be another command."""


_WORDS = "stateflow.words"
"""Where a context keeps what was typed behind `stateflow`."""
_IN_JSON = frozenset({("-o", "json"), ("--output", "json"), "-ojson", "--output=json"})


class Terminated(KeyboardInterrupt):
    """SIGTERM ends a command as Ctrl-C does: what it holds is let go of on the way out."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """For commands that have no better use for the signal."""

    def end(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Commands(TyperGroup):
    """Turns errors into one sentence on stderr and the exit code that a scheduler acts on."""

    def main(self, args: Any = None, *more: Any, **extra: Any) -> Any:
        open_unfailing()
        try:
            return super().main(args, *more, **extra)
        except SystemExit as ended:
            code = _after_all(sys.argv[1:] if args is None else args, ended.code)
            raise SystemExit(code) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_WORDS] = tuple(args)
        if args and (meant := OTHER_WORDS.get(args[0])):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with ended_by_sigterm():
                return super().invoke(ctx)
        except StateflowError as error:
            _report(ctx, error, error.exit_code)
            raise typer.Exit(error.exit_code) from None
        except Terminated:
            output_of(ctx).log("stateflow: ended by SIGTERM")
            raise typer.Exit(TERMINATED) from None
        except KeyboardInterrupt:
            output_of(ctx).log("stateflow: interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "exit_code"):
                _say_of_a_negative_number(error)
                message = getattr(error, "format_message", None)
                if message is None or not _is_in_json(ctx):
                    raise  # the command line's own
                code = getattr(error, "exit_code", UsageError.exit_code)
                JsonOutput().error(UsageError(message()), code)
                raise typer.Exit(code) from None
            _report(ctx, error, 1)
            raise typer.Exit(1) from None


def _is_in_json(ctx: Any) -> bool:
    """Whether a program reads the answer. Of a command that does not exist no option was read, and of others perhaps not this one."""
    if isinstance(output_of(ctx), JsonOutput):
        return True
    return _ask_for_json(ctx.meta.get(_WORDS, ()))


def _ask_for_json(words: Sequence[str]) -> bool:
    return any(two in _IN_JSON for two in pairwise(words)) or any(word in _IN_JSON for word in words)


def _after_all(words: Sequence[str], code: Any) -> Any:
    """The exit code of a command that ends with `code`. Says so where stdout has not taken its answer, and how the work itself went."""
    why = lost_answer()
    if not why:
        return code
    if code:  # says more than this one would
        ConsoleOutput().log(f"stateflow: the answer could not be written to stdout ({why})")
        return code
    if words[:1] == ["run"] and "--fresh" not in words:
        ConsoleOutput().log(
            f"stateflow: the run is done, but not all of its lines could be written to stdout ({why}): `stateflow checkpoints JOB` has its "
            "batches"
        )
        return code
    error = StateflowError(
        f"done, but the answer could not be written to stdout ({why}): send it to another place, and repeat the command only if it changes "
        "nothing"
    )
    output = JsonOutput() if _ask_for_json(words) else ConsoleOutput()
    output.error(error, error.exit_code)
    return error.exit_code


def _say_of_a_negative_number(error: Any) -> None:
    """A key such as -5 looks like an option, which no command has."""
    if getattr(error, "option_name", "")[1:2].isdigit():
        error.message += ". A value that begins with - stands behind --"


def _report(ctx: Any, error: Exception, code: int) -> None:
    output = output_of(ctx)
    if debug_of(ctx):
        output.log(masked_lines("".join(traceback.format_exception(error))))
    output.error(error, code)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Keyed state, checkpoints and exactly-once output for PySpark pipelines. Data goes to stdout, progress and "
    "logs to stderr; destructive commands only say what they would do unless given --yes.",
    epilog="Exit codes: 0 fine, 1 failed (a retry may help), 2 usage, 3 not found, 4 incompatible, 5 fenced (never "
    "retry), 6 corrupt, 7 a sink or source disagrees, 8 busy (wait), 9 store unavailable (retry).",
)


def _version(value: bool) -> None:
    if value:
        from stateflow.distribution import installed_version

        ConsoleOutput().say(f"stateflow {installed_version()}")
        raise typer.Exit


@app.callback()
def stateflow(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="The version, and nothing else."),
    ] = False,
) -> None:
    """Takes what belongs to no command."""


app.command("run")(run.run)
app.command("check")(check.check)
app.command("jobs")(jobs.jobs)
app.command("show")(jobs.show)
app.command("checkpoints")(jobs.checkpoints)
app.command("stop")(stop.stop)
app.add_typer(savepoint.app, name="savepoint")
app.command("tag")(change.tag)
app.command("restore")(restore.restore)
app.command("rescale")(change.rescale)
app.add_typer(state.app, name="state")
app.command("query")(query.query)
app.command("history")(past.history)
app.command("diff")(past.diff)
app.command("bisect")(past.bisect)
app.command("replay")(replay.replay)
app.command("debug")(debug.debug)
app.add_typer(host.app, name="host")
app.command("serve")(serve.serve)
app.command("package")(package.package)
app.command("abandon")(abandon.abandon)
app.command("verify")(verify.verify)
app.command("gc")(gc.gc)
app.command("delete")(change.delete)
app.command("trust")(trust.trust)
app.command("doctor")(doctor.doctor)

if __name__ == "__main__":
    app(prog_name="stateflow")

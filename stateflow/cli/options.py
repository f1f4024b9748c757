"""Arguments that several commands share, and the configuration that they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stateflow.cli.output import Format, err
from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.jobs.job import Job

_ARGUMENTS = {"retained_checkpoints": "--retained", "retained_age": "--age"}
"""Those of `gc`, which have not the names of their options."""
OUTPUT, DEBUG = "stateflow.output", "stateflow.debug"
"""Where a context keeps them, for whoever reports an error."""


def _output(ctx: typer.Context, value: str) -> str:
    if value not in ("text", "json"):
        raise typer.BadParameter(f"{value!r} is neither text nor json")
    ctx.meta[OUTPUT] = value
    return value


def _debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[DEBUG] = value or ctx.meta.get(DEBUG, False)
    return value


Root = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-dir",
        help="Root under which every job has its folder. Else STATEFLOW_CHECKPOINT_DIR, else stateflow.toml.",
        show_default=False,
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output", "-o", callback=_output, is_eager=True, help="text or json; data goes to stdout."
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_debug, is_eager=True, help="Stack traces and detailed log lines.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", show_default=False)]
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE:PIPELINE",
        help="Python file and pipeline; the pipeline may be left out if it is the only one.",
        show_default=False,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME=VALUE", help="A parameter of the pipeline.", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="Any option of docs/configuration.md.", show_default=False
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it the command only says what it would do.")]
Takeover = Annotated[bool, typer.Option("--takeover", help="Fence a live run instead of refusing.")]
Note = Annotated[str, typer.Option("--note", help="Why: kept in the record.", show_default=False)]


def output_of(value: str) -> Format:
    return cast(Format, value)


def pairs(given: Iterable[str] | None, flag: str) -> dict[str, str]:
    """`name=value` arguments."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag} {text!r} is not usable: write {flag} NAME=VALUE")
        found[name.strip()] = value
    return found


def configured(
    root: str | None = None, settings: Iterable[str] | None = None, *, debug: bool = False, **named: Any
) -> Options:
    """The options of a command; sets up its log lines on the way."""
    import logging

    from stateflow import logs
    from stateflow.config.options import load

    cli: dict[str, str | None] = dict(pairs(settings, "--option"))
    typed = {name: f"--option {name}" for name in cli}
    for name, value in {"checkpoint_dir": root, **named}.items():
        if value is not None:
            # What has an argument of its own wins over --option, however that is spelt.
            for other in [other for other in cli if other.replace("-", "_") == name]:
                del cli[other], typed[other]
            cli[name], typed[name] = str(value), _ARGUMENTS.get(name, "")
    options = load(cli=cli, typed=typed, folder=Path.cwd())
    logs.set_up(options.log_format, level=logging.DEBUG if debug else logging.WARNING)
    logs.on_wait((lambda what: err().print(what, markup=False)) if options.progress else None)
    return options


def root_of(options: Options) -> str:
    """The root that a reading command looks into; it must be there."""
    from stateflow.config.options import checkpoint_root
    from stateflow.storage.roots import open_store

    folder = open_store(checkpoint_root(options), options.storage_options).local_root
    if folder is not None and not folder.is_dir():
        raise NotFoundError(
            f"the checkpoint root {folder} does not exist: check --checkpoint-dir ({options.origin('checkpoint_dir')}); "
            "the first `stateflow run` creates it"
        )
    return options.checkpoint_dir


def job_of(options: Options, name: str) -> Job:
    root_of(options)
    return new_job_of(options, name)


def new_job_of(options: Options, name: str) -> Job:
    """The same for commands that may be the first to write there."""
    from stateflow import logs
    from stateflow.config.options import checkpoint_root
    from stateflow.jobs.job import Job

    logs.about(job=name)
    return Job(
        checkpoint_root(options),
        name,
        storage_options=options.storage_options,
        heartbeat_timeout=options.heartbeat_timeout.total_seconds(),
    )


def storage(options: Options) -> Mapping[str, str]:
    return options.storage_options

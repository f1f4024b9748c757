"""Arguments that several commands share, and the configuration that they lead to."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, get_type_hints

import typer
from typer.core import TyperOption

from stateflow.cli.output import CommandOutput, ConsoleOutput, JsonOutput
from stateflow.errors import NotFoundError, UsageError
from stateflow.masking import masked, without_secrets

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline

P = ParamSpec("P")
_ARGUMENTS = {"retained_checkpoints": "--retained", "retained_age": "--age"}
"""The arguments of `gc` that are not called like their options."""
_OUTPUTS: dict[str, type[CommandOutput]] = {"text": ConsoleOutput, "json": JsonOutput}
_OUTPUT, _DEBUG = "stateflow.output", "stateflow.debug"
"""Where a context keeps them, for whoever reports an error."""

flag = partial(typer.Option, show_default=False)
argument = partial(typer.Argument, show_default=False)


def _output(ctx: typer.Context, value: str) -> CommandOutput:
    if value not in _OUTPUTS:
        raise typer.BadParameter(f"{value!r} is neither text nor json")
    made = ctx.meta[_OUTPUT] = _OUTPUTS[value]()
    return made


def _debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[_DEBUG] = value or ctx.meta.get(_DEBUG, False)
    return value


def output_of(ctx: typer.Context) -> CommandOutput:
    """The output that the command prints to; text, until its form is known."""
    found: CommandOutput | None = ctx.meta.get(_OUTPUT)
    return found or ConsoleOutput()


def debug_of(ctx: typer.Context) -> bool:
    return bool(ctx.meta.get(_DEBUG))


JobName = Annotated[str, argument(metavar="JOB", help="Name of the job.")]
JobOrUrl = Annotated[str, argument(metavar="JOB|URL", help="A job, or the folder or URL of a savepoint.")]
KeyText = Annotated[
    str,
    argument(
        metavar="KEY",
        help="42; a negative one behind --, as in -- -7; of several columns a,7 or '[\"a\", 7]'.",
    ),
]
OperatorName = Annotated[str, argument(metavar="OPERATOR", help="Its uid.")]
File = Annotated[
    str,
    argument(
        metavar="FILE:PIPELINE",
        help="Python file and pipeline; the pipeline may be left out if it is the only one.",
    ),
]
Parameters = Annotated[
    list[str] | None, flag("--param", "-p", metavar="NAME=VALUE", help="A parameter of the pipeline.")
]
Settings = Annotated[
    list[str] | None, flag("--option", metavar="NAME=VALUE", help="Any option of docs/configuration.md.")
]
Conf = Annotated[list[str] | None, flag("--conf", metavar="KEY=VALUE", help="A setting of Spark.")]
PipelinesJob = Annotated[str | None, flag("--job", help="Name of the job; else the pipeline's.")]
OfCheckpoint = Annotated[
    str,
    typer.Option("--checkpoint", "--at", metavar="N|tag:NAME|TIME|latest", help="Of which checkpoint."),
]
Strict = Annotated[bool, flag("--strict", help="Refuse any change of a state's type, also by rule.")]
Count = Annotated[
    bool,
    flag("--count", help="Count the entries of each state whose type changes: it reads the whole state."),
]
Yes = Annotated[bool, flag("--yes", help="Do it; without it the command only says what it would do.")]
Takeover = Annotated[bool, flag("--takeover", help="Fence a live run instead of refusing.")]
Note = Annotated[str, flag("--note", help="Why: kept in the record.")]
SavepointNote = Annotated[str, flag("--note", help="Why: kept with it.")]


_MAY_BE_EMPTY = frozenset({"note", "revision", "dag_run", "task", "host", "map_key", "namespace"})
"""Options of which an empty text says something: that there is nothing to note, no host, or a key that is empty."""


class Arguments:
    """Several arguments of a command as one value, which commands can share: those of a dataclass's fields."""


@dataclass(frozen=True, kw_only=True)
class PipelineArguments(Arguments):
    """The pipeline that a command compares with a job's state, or runs on it."""

    file: File
    parameter: Parameters = None
    allow_non_restored_state: Annotated[
        bool,
        flag(
            "--allow-non-restored-state",
            help="State without an operator may be dropped, and what is new may begin empty where a state or source is gone.",
        ),
    ] = False

    @property
    def values(self) -> dict[str, str]:
        return pairs(self.parameter, "-p")

    def load(self, revision: str = "") -> LoadedPipeline:
        from stateflow.pipelines.loading import load_pipeline

        return load_pipeline(
            self.file, Path.cwd(), revision, allow_non_restored_state=self.allow_non_restored_state
        )


@dataclass(frozen=True, kw_only=True)
class EntryArguments(Arguments):
    """Which part of what a state holds for a key."""

    map_key: Annotated[str | None, flag("--map-key", metavar="K", help="One entry of a map state.")] = None
    namespace: Annotated[
        str | None,
        flag("--namespace", metavar="N", help="Of a state with namespaces, instead of what is in none."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SparkArguments(Arguments):
    master: Annotated[str | None, flag(help="Spark's master, such as local[4].")] = None
    conf: Conf = None

    @property
    def settings(self) -> dict[str, str]:
        return pairs(self.conf, "--conf")


def _shared(
    root: Annotated[
        str | None,
        flag(
            "--checkpoint-dir",
            help="Root under which every job has its folder. Else STATEFLOW_CHECKPOINT_DIR, else stateflow.toml.",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", callback=_output, is_eager=True, help="text or json; data goes to stdout."
        ),
    ] = "text",
    debug: Annotated[
        bool,
        typer.Option("--debug", callback=_debug, is_eager=True, help="Stack traces and detailed log lines."),
    ] = False,
) -> None:
    """The options of every command."""


@dataclass(frozen=True)
class Invocation:
    """One call of a command: where its answer goes, and the options that every command has."""

    output: CommandOutput
    root: str | None
    debug: bool
    typed: Mapping[str, str] = field(default_factory=dict)
    """The options that were typed, by the names of their arguments: how they are spelt."""
    words: tuple[str, ...] = ()
    """The command and all that was typed behind it, without the options that every command has."""

    def options(
        self,
        settings: Iterable[str] | None = None,
        untrusted: Literal["refuse", "leave out"] = "refuse",
        **named: Any,
    ) -> Options:
        return configured(self.root, settings, debug=self.debug, untrusted=untrusted, **named)

    def refuse_beside(self, reason: str, *names: str) -> None:
        """UsageError if one of the options was typed, which says nothing for this `reason`: who typed it means something by it."""
        for name in names:
            if (option := self.typed.get(name)) is not None:
                raise UsageError(f"{option} would say nothing {reason}, or leave {option} out")

    def job(self, name: str) -> Job:
        return job_of(self.options(), name)

    def again(self, *more: str) -> str:
        """What was typed, with more behind it: a command line to advise. Pasted, it asks for all that this one asked for."""
        root = () if self.root is None else ("--checkpoint-dir", without_secrets(self.root))
        return shlex.join(("stateflow", *self.words, *more, *root))


Command = Callable[Concatenate[Invocation, P], None]


def command(function: Command[P]) -> Callable[..., None]:
    """Adds the options of every command to one, which gets them as its first argument."""
    return _with_shared(function, "root", "output", "debug")


def rootless_command(function: Command[P]) -> Callable[..., None]:
    """The same for a command that needs no checkpoint root."""
    return _with_shared(function, "output", "debug")


def _with_shared(function: Command[P], *names: str) -> Callable[..., None]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = inspect.signature(_shared, eval_str=True).parameters
    groups = {each.name: each.annotation for each in own if _is_group(each.annotation)}
    declared = [
        one for each in own for one in (_of_group(groups[each.name]) if each.name in groups else (each,))
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [
        context,
        *(each.replace(kind=each.KEYWORD_ONLY) for each in (*declared, *(shared[name] for name in names))),
    ]

    @wraps(function)
    def called(
        context: typer.Context, output: CommandOutput, debug: bool, root: str | None = None, **given: Any
    ) -> None:
        output.root = root
        _refuse_empty(context)
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        words = (*context.command_path.split()[1:], *_words(context))
        function(Invocation(output, root, debug, _typed(context), words), **given)  # type: ignore[call-arg]

    # What typer reads.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _typed(context: typer.Context) -> dict[str, str]:
    return {
        option.name: option.opts[0]
        for option in context.command.params
        if option.name is not None and _is_typed(context, option.name)
    }


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(context: typer.Context) -> Iterator[str]:
    """What was typed behind a command, in the order in which it declares it; options that every command has are left out."""
    shared = inspect.signature(_shared).parameters
    for option in context.command.params:
        name = option.name or ""
        if name in shared or not _is_typed(context, name):
            continue
        value = context.params[name]
        if isinstance(value, bool):
            yield option.opts[0] if value else option.secondary_opts[0]
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(option, TyperOption):
                yield option.opts[0]
            setting, equals, text = str(each).partition("=")
            yield f"{setting}={masked(setting, text)}" if equals else setting


def _refuse_empty(context: typer.Context) -> None:
    """UsageError for an option that is there and empty, as `--job "$JOB"` is where nobody has set JOB: the command would do to
    another job, or to all operators, what was meant for one."""
    for option in context.command.params:
        name = option.name or ""
        given = context.params.get(name)
        if not isinstance(option, TyperOption) or name in _MAY_BE_EMPTY:
            continue
        empty = given == "" or (isinstance(given, list | tuple) and "" in given)
        if empty and _is_typed(context, name):
            raise UsageError(
                f"{option.opts[0]} is empty, as a variable is that nobody has set: give it a value, or leave it out"
            )


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Arguments)


def _of_group(group: Any) -> Iterator[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    for each in fields(group):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        yield inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[each.name]
        )


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
    root: str | None = None,
    settings: Iterable[str] | None = None,
    *,
    debug: bool = False,
    untrusted: Literal["refuse", "leave out"] = "refuse",
    **named: Any,
) -> Options:
    """The options of a command; sets up its log lines on the way."""
    import logging

    from stateflow import logs
    from stateflow.config.options import load

    cli: dict[str, str | None] = dict(pairs(settings, "--option"))
    typed = {name: f"--option {name}" for name in cli}
    for name, value in {"checkpoint_dir": root, **named}.items():
        if value is not None:
            # An argument of its own wins over the same option in --option, however that is spelt.
            for other in [other for other in cli if other.replace("-", "_") == name]:
                del cli[other], typed[other]
            cli[name], typed[name] = str(value), _ARGUMENTS.get(name, "")
    options = load(cli=cli, typed=typed, untrusted=untrusted)
    logs.set_up(options.log_format, level=logging.DEBUG if debug else logging.WARNING)
    logs.on_wait((lambda what: ConsoleOutput().log(what)) if options.progress else None)
    return options


def root_of(options: Options) -> str:
    """The root that a reading command looks into; it must be there."""
    from stateflow.config.options import checkpoint_root
    from stateflow.storage.roots import open_store

    folder = open_store(checkpoint_root(options), options.storage_options).local_root
    if folder is not None and not folder.is_dir():
        raise NotFoundError(
            f"the checkpoint root {folder} does not exist: check checkpoint_dir, set by {options.origin('checkpoint_dir')}; "
            "the first `stateflow run` creates it, once its Spark has started"
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

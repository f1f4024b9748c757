"""Declared arguments of operators: each is named once, in the signature of `__init__`. Pure.

`retained: Annotated[Count, "checkpoints to keep"] = 3` says the name, the type that a DAG file may give, the reader that makes
a value of it, whether it is a template, the default, and the sentence for `help()`. Everything else is derived.

A form or a template gives text where a DAG file gives a number. Both are taken.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow.launchers.templates import is_template
from stateflow.errors import UsageError
from stateflow.quantities import duration

_SHOWN = 80

if TYPE_CHECKING:
    from stateflow.config.retention_rule import RetentionRule

T = TypeVar("T")
Reader = Callable[[Any], T]
"""Gives the value in its own type, or raises TypeError or ValueError with what would be right."""


@dataclass(frozen=True, slots=True)
class Argument:
    """How one argument is read."""

    reader: Reader[Any]
    template: bool = True
    """Whether Airflow renders it before the task runs."""
    when_none: Callable[[], Any] | None = None
    """Makes the value that replaces None."""
    doc: str = ""
    takes_none: bool = False
    """Whether a template may come out as None."""


class DeclaredArguments:
    """Base of classes whose `__init__` declares arguments.

    The signature stays the one that DAG authors, type checkers and Airflow read. `arguments`, `template_fields` and the
    `:param` lines of the docstring come from it. `__init__` hands its values over with `self.accept(locals())`.
    """

    arguments: ClassVar[Mapping[str, Argument]] = {}
    """By name, those of the base classes first."""
    template_fields: Any = ()  # Airflow's operators and notifiers declare it with two types
    as_written: Mapping[str, Any] = {}
    """Arguments as the DAG file has them, before templates are rendered."""
    lost_within: frozenset[str] = frozenset()
    """The templates in which something among other text came out as None."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = declared(vars(cls).get("__init__"))
        cls.arguments = {**cls.arguments, **own}
        templates = [name for name, argument in own.items() if argument.template]
        cls.template_fields = tuple(dict.fromkeys([*cls.template_fields, *templates]))
        if params := [f":param {name}: {argument.doc}." for name, argument in own.items() if argument.doc]:
            cls.__doc__ = "\n\n".join([inspect.cleandoc(vars(cls).get("__doc__") or ""), "\n".join(params)])

    def accept(self, values: Mapping[str, Any]) -> None:
        """Assigns the arguments among the values, and refuses what is wrong while a DAG is parsed.

        Templates pass: they are read when they are rendered.
        """
        own = {name: with_fields(values[name]) for name in self.arguments if name in values}
        self.as_written = {**self.as_written, **own}
        for name, argument in self.arguments.items():
            if name not in values:
                continue
            value = values[name]
            if value is None and argument.when_none is not None:
                value = argument.when_none()
            setattr(self, name, value)
            if not is_deferred(value):
                self.read(name)

    def read(self, name: str) -> Any:
        """An argument in its own type. An error names its owner and the argument."""
        value = getattr(self, name)
        try:
            return self.arguments[name].reader(value)
        except (TypeError, ValueError) as error:
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise type(error)(f"{self.argument_owner()}: {name}={shown} {error}") from None

    def given(self, name: str) -> Any:
        """The same in a task, once templates are rendered: what is wrong then, no retry makes right."""
        try:
            value = self.read(name)
        except (TypeError, ValueError) as error:
            raise AirflowFailException(str(error)) from None
        if not self.arguments[name].takes_none:
            self._refuse_lost(name)
        return value

    def _refuse_lost(self, name: str) -> None:
        """Airflow renders what is not there as the text `None`, or natively as None: a table of that name is nobody's wish."""
        for where, template in lost(
            self.as_written.get(name), with_fields(getattr(self, name)), self.lost_within
        ):
            raise AirflowFailException(
                f"{self.argument_owner()}: {name}{where} came out as None from {template!r}: give what it names a value, or the template "
                "another one for that case, such as {{ params.output or '/data/totals' }}"
            )

    def argument_owner(self) -> str:
        """Whose arguments they are, for errors."""
        task_id = getattr(self, "task_id", None)
        return f"task {task_id!r}" if task_id else type(self).__name__


def declared(function: Any) -> dict[str, Argument]:
    """The arguments that the annotations of a function declare."""
    try:
        hints = get_type_hints(function, include_extras=True) if function is not None else {}
    except NameError:
        # Only a type checker can read them: a class of a user, who assigns arguments as Airflow's documentation says.
        return {}
    arguments = {name: _argument(hint) for name, hint in hints.items()}
    return {name: argument for name, argument in arguments.items() if argument is not None}


def _argument(hint: Any) -> Argument | None:
    if get_origin(hint) in (Union, UnionType):
        kinds = get_args(hint)
        inner = next((each for each in map(_argument, kinds) if each is not None), None)
        if inner is None or NoneType not in kinds:
            return inner
        return replace(inner, reader=optional(inner.reader), takes_none=True)
    if get_origin(hint) is not Annotated:
        return None
    kind, *extras = get_args(hint)
    argument = next((each for each in extras if isinstance(each, Argument)), None) or _argument(kind)
    sentence = next((each for each in extras if isinstance(each, str)), "")
    return replace(argument, doc=sentence) if argument is not None and sentence else argument


def is_deferred(value: Any) -> bool:
    """Whether a value is known only when the task runs: a template, or another task's result."""
    if isinstance(value, str):
        return is_template(value)
    return hasattr(value, "resolve") and hasattr(value, "iter_references")


def with_fields(value: Any) -> Any:
    """The value; of an object that has templates, such as a launcher, these by name, also those of a launcher within it. Airflow renders them
    in place."""
    fields = getattr(value, "template_fields", None)
    return value if not fields else {name: with_fields(getattr(value, name, None)) for name in fields}


def lost(written: Any, rendered: Any, within: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """The templates in a value that came out as None, each with its place in the value. `within`: those of which a part did."""
    if is_deferred(written):
        if rendered is None or (isinstance(written, str) and (rendered == "None" or written in within)):
            yield "", str(written)
    elif isinstance(written, Mapping) and isinstance(rendered, Mapping):
        for name, each in written.items():
            found = lost(each, rendered.get(name), within)
            yield from ((f"[{name!r}]{where}", text) for where, text in found)
    elif isinstance(written, list | tuple) and isinstance(rendered, list | tuple):
        for at, (each, value) in enumerate(zip(written, rendered, strict=False)):
            yield from ((f"[{at}]{where}", text) for where, text in lost(each, value, within))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("has to be a text")
    return value.strip()


def note(value: Any) -> str:
    """A text that may be empty. Nobody gives None as a reason: it is what a form's empty field is rendered to."""
    return "" if value is None or value == "None" else text(value)


def named(value: Any) -> str:
    """A text that is not empty."""
    name = text(value)
    if not name or name == "None":
        raise ValueError("names nothing: give a name")
    return name


def number(least: int) -> Reader[int]:
    def reader(value: Any) -> int:
        wanted = f"has to be a whole number of {least} or more"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError(wanted)
        try:
            count = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if count < least:
            raise ValueError(wanted)
        return count

    return reader


def share(value: Any) -> float:
    wanted = "has to be a number from 0 to 1, such as 0.01"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(wanted)
    try:
        part = float(value)
    except ValueError:
        raise ValueError(wanted) from None
    if not 0 <= part <= 1:
        raise ValueError(wanted)
    return part


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError("has to be True or False")
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if value.strip().lower() not in flags:
        raise ValueError("has to be true or false, also as a template renders it")
    return flags[value.strip().lower()]


def span(value: Any) -> timedelta:
    """A length of time: a timedelta, or text like '10 minutes'."""
    if isinstance(value, str):
        value = duration(value)
    if not isinstance(value, timedelta):
        raise TypeError("has to be a timedelta, or a text like '10 minutes'")
    if value < timedelta(0):
        raise ValueError("has to be no less than 0")
    return value


def retention(value: Any) -> RetentionRule:
    """Which older checkpoints stay."""
    from stateflow.config.retention_rule import RetentionRule, retention_rule  # few DAG files say so

    return value if isinstance(value, RetentionRule) else retention_rule(text(value))


def some_time(value: Any) -> timedelta:
    """A length of time above zero."""
    length = span(value)
    if not length:
        raise ValueError("has to be more than 0")
    return length


def one_of(*choices: str) -> Reader[Any]:
    def reader(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"has to be one of {', '.join(choices)}")
        choice = value.strip().replace("-", "_")
        if choice not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return choice

    return reader


def table(value: Any) -> dict[str, Any]:
    """Names and values."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError("has to be a mapping of names to values")
    return dict(value)


def pipelines(value: Any) -> dict[str, str]:
    """`FILE:PIPELINE` by the name of a job."""
    try:
        return {name: named(file) for name, file in table(value).items()}
    except (TypeError, ValueError):
        raise TypeError("has to be a mapping of jobs' names to FILE:PIPELINE") from None


def snapshot(value: Any) -> str:
    """A checkpoint: `latest`, its number or `checkpoint:N`, `tag:NAME` or a time."""
    from stateflow.checkpoint.names import Elsewhere, parse  # loads records, and few DAG files need it

    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        name = parse(named(value))
    except UsageError:
        name = Elsewhere("")
    if isinstance(name, Elsewhere):
        raise ValueError("names no checkpoint: write 'latest', 'checkpoint:42' or 'tag:NAME'")
    return str(name)


def plan_digest(value: Any) -> str | None:
    """Only None says that nothing was approved: a template that came out empty must not."""
    if value is None:
        return None
    digest = text(value)
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("is no digest of a restore plan: a task that plans has it in its result's 'digest'")
    return digest


def optional(reader: Reader[T]) -> Reader[T | None]:
    """None, its text and the empty text are None."""

    def none_or(value: Any) -> T | None:
        return None if value is None or value in ("", "None") else reader(value)

    return none_or


def bound(value: Any) -> str:
    """Empty for none. What a template renders of a bound that is not there must not be none: the run would read everything.
    `DeclaredArguments.given` refuses None of a template."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("is no bound: a version of a Delta table is 0 or more")
        return str(value)
    given = "" if value is None else text(value)
    if given.lower() in ("none", "null"):
        raise ValueError("is no bound: give a version or a time, or an empty text for none")
    return given


def people(value: Any) -> tuple[str, ...]:
    """Ids or names; a template gives them with commas between. Only None means everybody: a list that came out empty must not."""
    if value is None:
        return ()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError("has to be a list of people's ids or names")
    found = tuple(name.strip() for name in names if name.strip())
    if not found:
        raise ValueError(
            "names nobody: give people's ids or names, or None for everybody whom Airflow lets answer"
        )
    return found


def answer(value: Any) -> dict[str, Any] | None:
    """What Airflow's approval task returns, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError("has to be what an approval task returns, such as `approve.output`")
    return dict(value) if value is not None else None


def launch_method(value: Any) -> Any:
    """How drivers are started: any object that can."""
    if isinstance(value, type) or not callable(getattr(value, "bound", None)):
        raise TypeError("has to be a way to start drivers, such as SparkSubmit() or InProcess()")
    return value


def trigger(value: Any) -> str:
    """When a run's batches come, and when it ends."""
    chosen = text(value)
    if chosen not in ("drain", "until-stopped"):
        try:
            some_time(chosen)
        except ValueError:
            raise ValueError("is neither drain, until-stopped nor an interval like '30 seconds'") from None
    return chosen


def setting(section: str, name: str) -> Callable[[], bool]:
    """What Airflow's configuration says, when a DAG is parsed."""
    return lambda: bool(conf.getboolean(section, name, fallback=False))


# What a signature says. `Name | None` is read as None, too.
Name = Annotated[str, Argument(named)]
Text = Annotated[str, Argument(text)]
Note = Annotated[str, Argument(note, takes_none=True)]
Flag = Annotated[bool | str, Argument(flag)]
Count = Annotated[int | str, Argument(number(1))]
Share = Annotated[float | str, Argument(share)]
Span = Annotated[timedelta | str, Argument(span)]
Rule = Annotated[str, Argument(retention)]
SomeTime = Annotated[timedelta | str, Argument(some_time)]
Snapshot = Annotated[str | int, Argument(snapshot)]
Table = Annotated[Mapping[str, Any] | None, Argument(table, when_none=dict)]
Pipelines = Annotated[Mapping[str, str] | None, Argument(pipelines, when_none=dict)]
Bound = Annotated[str | int | None, Argument(bound)]
People = Annotated[Sequence[str] | str | None, Argument(people)]
Kind = Annotated[str, Argument(one_of("native", "canonical"))]
Deferrable = Annotated[
    bool | None, Argument(flag, template=False, when_none=setting("operators", "default_deferrable"))
]
PipelineFile = Annotated[Name, "`FILE:PIPELINE`; a relative file is looked for beside the DAG's"]
NonRestored = Annotated[Flag, "state without an operator may be dropped"]

"""Arguments of operators: checked when a DAG is parsed, and read once templates are rendered. Pure.

A form, or a template, gives text where a DAG file gives a number; both are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from stateflow.checkpoint.names import Elsewhere, parse
from stateflow.errors import UsageError
from stateflow.quantities import duration

_SHOWN = 80

T = TypeVar("T")
Reader = Callable[[Any], T]
"""Gives the value in its own type, or raises TypeError or ValueError with what would be right."""


def is_late(value: Any) -> bool:
    """Whether a value is known only when the task runs: a template, or another task's result."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve") and hasattr(value, "iter_references")


def read(task: str, name: str, value: Any, reader: Reader[T]) -> T:
    """The value; an error names task and argument."""
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise type(error)(f"task {task!r}: {name}={shown} {error}") from None


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("has to be a text")
    return value.strip()


def named(value: Any) -> str:
    """A text that says something."""
    found = text(value)
    if not found or found == "None":
        raise ValueError("names nothing: give a name")
    return found


def number(least: int) -> Reader[int]:
    def reader(value: Any) -> int:
        wanted = f"has to be a whole number of {least} or more"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError(wanted)
        try:
            found = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if found < least:
            raise ValueError(wanted)
        return found

    return reader


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError("has to be True or False")
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
    if value.strip().lower() not in flags:
        raise ValueError("has to be true or false")
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


def some(value: Any) -> timedelta:
    """A length of time that is one."""
    found = span(value)
    if not found:
        raise ValueError("has to be more than 0")
    return found


def one_of(*choices: str) -> Reader[Any]:
    def reader(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"has to be one of {', '.join(choices)}")
        found = value.strip().replace("-", "_")
        if found not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return found

    return reader


def table(value: Any) -> dict[str, Any]:
    """Names and values."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError("has to be a mapping of names to values")
    return dict(value)


def snapshot(value: Any) -> str:
    """A checkpoint: `latest`, its number or `checkpoint:N`, or `tag:NAME`."""
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
    found = text(value)
    if not re.fullmatch("[0-9a-f]{64}", found):
        raise ValueError("is no digest of a restore plan: a task that plans has it in its result's 'digest'")
    return found


def optional(reader: Reader[T]) -> Reader[T | None]:
    """None, or nothing at all, stays None."""

    def none_or(value: Any) -> T | None:
        return None if value is None or value in ("", "None") else reader(value)

    return none_or

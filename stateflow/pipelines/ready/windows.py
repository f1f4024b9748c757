"""Windows of event time as users declare them: `sf.tumbling("1 minute")`.

A window holds the rows from its start up to, and without, its end.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.pipelines.rows.row_type import RowType
from stateflow.state.expiry.ttl import bounded_micros

Duration = str | timedelta
LENIENT, STRICT = "lenient", "strict"
"""When a row is late: when all of its windows are closed, or as soon as one is, or may be."""


@dataclass(frozen=True)
class Window:
    """Which windows there are; durations are in microseconds."""

    @property
    def count(self) -> int:
        """In how many windows a row is, at most."""
        return 1


@dataclass(frozen=True)
class Sliding(Window):
    """A window of length `size` every `every`. Those of a tumbling window follow on each other."""

    size: int
    every: int
    offset: int = 0
    """The windows begin at a multiple of `every` since 1970 in UTC, plus this."""

    @property
    def count(self) -> int:
        return -(-self.size // self.every)


@dataclass(frozen=True)
class Cumulative(Window):
    """Windows that begin together: each is `every` longer than the one before, up to `size`."""

    size: int
    every: int
    offset: int = 0

    @property
    def count(self) -> int:
        return self.size // self.every


@dataclass(frozen=True)
class Session(Window):
    """Rows of a key that follow on each other within `gap`; the window ends `gap` after its last row."""

    gap: int


@dataclass(frozen=True)
class Counted(Window):
    """A window of a number of rows of a key, in the order of event time."""

    n: int


@with_options
def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> Window:
    """Windows of one length that follow on each other; `offset` shifts where they begin, which is a multiple of `size`
    since 1970 in UTC."""
    length = _positive("tumbling", "size", size)
    return Sliding(length, length, _shift("tumbling", offset, length))


@with_options
def hopping(size: Duration, every: Duration, *, offset: Duration = "0 seconds") -> Window:
    """Windows of length `size`. One begins every `every`, so a row is in several."""
    length, step = _positive("hopping", "size", size), _positive("hopping", "every", every)
    if step > length:
        raise UsageError(
            f"hopping({size!r}, every={every!r}): between windows that begin further apart than they are long, rows would "
            "be in none: make `every` at most `size`"
        )
    return Sliding(length, step, _shift("hopping", offset, step))


@with_options
def cumulative(size: Duration, every: Duration, *, offset: Duration = "0 seconds") -> Window:
    """Windows that grow by `every` up to `size`, and then begin anew: the day so far, every hour."""
    length, step = _positive("cumulative", "size", size), _positive("cumulative", "every", every)
    if length % step:
        raise UsageError(
            f"cumulative({size!r}, every={every!r}): {size} is no multiple of {every}: make it one, such as "
            "cumulative('1 day', every='1 hour')"
        )
    return Cumulative(length, step, _shift("cumulative", offset, length))


@with_options
def session(gap: Duration) -> Window:
    """Windows of activity: a key's window goes on while its rows are at most `gap` apart."""
    return Session(_positive("session", "gap", gap))


@with_options
def count_window(n: int) -> Window:
    """Windows of `n` rows of a key, in the order of event time; the next one begins behind them."""
    return Counted(at_least(1, f"count_window({n!r})", n))


def at_least(least: int, said: str, n: Any) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < least:
        raise UsageError(f"{said}: give it a whole number of at least {least}")
    return n


def window_of(given: Any) -> Window:
    if not isinstance(given, Window):
        raise UsageError(f"window: {given!r} is not a window: say one such as sf.tumbling('1 minute')")
    return given


def late_when(given: Any) -> str:
    if given not in (LENIENT, STRICT):
        raise UsageError(
            f"window: late is {given!r}: give it 'strict', for rows to be late as soon as one of their windows is closed, or leave it out"
        )
    return str(given)


def not_negative(step: str, name: str, given: Duration) -> int:
    length = signed(step, name, given)
    if length < 0:
        raise UsageError(f"{step}: {name} is {given!r}: give it zero or more, such as '5 minutes'")
    return length


def event_time(
    uid: str, rows: RowType | None, sources: Set[str], named: str, offered: Sequence[str] = ()
) -> str:
    """The column that has the event time: `sources` are those of the sources that the rows come from, `offered` are columns of the
    rows that could be it."""
    such = " or ".join(f"time={name!r}" for name in offered) or "time='...'"
    if not sources:
        raise UsageError(
            f"operator {uid!r} needs event time, which none of its sources has: give flow.source(...) event_time= and "
            "watermark="
        )
    if not named and len(sources) > 1:
        raise UsageError(
            f"operator {uid!r}: its sources have several columns of event time, {', '.join(sorted(sources))}: say which, "
            f"as {such}"
        )
    name = named or next(iter(sources))
    column = rows.field(name) if rows is not None else None
    if rows is not None and column is None:
        raise UsageError(
            f"operator {uid!r}: {rows.name} has no column {name!r} with the event time; it has {', '.join(rows.names)}: "
            f"name one, as {such}"
        )
    if column is not None and column.type != "timestamp":
        raise UsageError(f"operator {uid!r}: the event time, column {name!r} ({column.type}), is no datetime")
    return name


def _positive(window: str, name: str, given: Duration) -> int:
    length = signed(window, name, given)
    if length <= 0:
        raise UsageError(f"{window}: {name} is {given!r}: give it a length above zero, such as '1 minute'")
    return length


def _shift(window: str, given: Duration, length: int) -> int:
    return signed(window, "offset", given) % length


def signed(step: str, name: str, given: Duration) -> int:
    """A duration that may be below zero."""
    if not isinstance(given, str | timedelta):
        raise UsageError(f"{step}: {name} is {given!r}: write it like '10 minutes', or as a timedelta")
    try:
        return bounded_micros(given)
    except UsageError as error:
        raise UsageError(f"{step}: {name}: {error}") from None

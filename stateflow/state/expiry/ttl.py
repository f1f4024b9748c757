"""How long state lives: what `ttl=` of a declaration says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from stateflow.errors import UsageError
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import StateSchema
from stateflow.names import with_options
from stateflow.quantities import LONGEST, too_long

Renew = Literal["write", "read"]
Time = Literal["processing", "event"]
_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
          "day": 86_400 * 10**6, "week": 7 * 86_400 * 10**6, "us": 1, "ms": 1_000, "s": 10**6, "m": 60 * 10**6,
          "h": 3600 * 10**6, "d": 86_400 * 10**6}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ttl:
    """Made by `ttl`."""

    micros: int
    renew: Renew = "write"
    time: Time = "processing"
    existing: bool = False
    """Whether entries without an expiry are given one, from the first batch with this ttl on."""


@with_options
def ttl(
    duration: str | timedelta,
    *,
    renew: Renew = "write",
    time: Time = "processing",
    existing: Literal["keep", "from now"] = "keep",
) -> Ttl:
    """How long an entry lives after it was last written, for `ttl=` of a state.

    `renew="read"`: after it was last read or written. `time="event"`: counted by the watermark instead of `ctx.now`.
    `existing` is for a state that had no ttl before: `"from now"` also lets go of entries that are never written again.
    """
    for name, value, allowed in (
        ("renew", renew, ("write", "read")),
        ("time", time, ("processing", "event")),
        ("existing", existing, ("keep", "from now")),
    ):
        if value not in allowed:
            raise UsageError(f"{name} of a ttl is {value!r}: use {' or '.join(map(repr, allowed))}")
    try:
        length = bounded_micros(duration)
    except UsageError as error:
        raise UsageError(f"ttl: {error}") from None
    if length <= 0:
        raise UsageError(
            f"a ttl of {duration!r} would be over at once: write a time above 0, such as '7 days'"
        )
    return Ttl(length, renew, time, existing == "from now")


def ttl_of(given: str | timedelta | Ttl | None) -> Ttl | None:
    """What a declaration's `ttl=` means."""
    return given if given is None or isinstance(given, Ttl) else ttl(given)


def ttl_fields(ttl: Ttl | None) -> dict[str, Any]:
    """What a record says about a ttl."""
    if ttl is None:
        return {}
    return {
        "ttl": ttl.micros,
        "ttl_time": ttl.time,
        "ttl_renew": ttl.renew,
        "ttl_existing": ttl.existing,
    }


def expired_until(schema: StateSchema, watermark: int | None, now: int) -> int | None:
    """What expires at or before it has expired, by the watermark or by `now`, whichever the state's ttl counts; None when nothing has."""
    if schema.ttl is None:
        return None
    if schema.ttl_time != "event":
        return now
    return None if watermark is None or watermark >= END_OF_TIME else watermark


def micros(duration: str | timedelta) -> int:
    """A duration such as `"7 days"` or a timedelta, in microseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    words = duration.split() if isinstance(duration, str) else []
    if len(words) == 2 and words[1] not in _UNITS:
        words[1] = words[1].removesuffix("s")
    try:
        exact = Decimal(words[0]) * _UNITS[words[1]]
        length = int(exact)
    except (IndexError, KeyError, ValueError, ArithmeticError):
        raise UsageError(
            f"{duration!r} is not a duration: write a number and a unit with a space between, such as '10 minutes'; units are "
            "microseconds, milliseconds, seconds, minutes, hours, days and weeks"
        ) from None
    if length != exact:
        raise UsageError(
            f"{duration!r} is no whole number of microseconds, and nothing here is finer: round it"
        )
    return length


def bounded_micros(duration: str | timedelta) -> int:
    """The same of a duration that code says, which is no longer than time is counted. A record may have another one."""
    length = micros(duration)
    if abs(length) > LONGEST // timedelta(microseconds=1):
        raise UsageError(too_long(duration))
    return length

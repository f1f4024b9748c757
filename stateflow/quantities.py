"""Sizes, durations and counts as people write them: '256 MB', '10 minutes', '2 rows'."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")

_BYTES = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib"), 1 << 40),
}
_MICROSECONDS = {
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
LONGEST = timedelta(days=3_652_059)
"""From the first day to the last on which anything here can happen: of the years 1 to 9999."""


def size(text: str) -> int:
    """Bytes. Units are binary, as in Spark and Flink: '1 MB' and '1 MiB' are both 1048576."""
    number, unit = _split(text, "a size", "'20 KiB' or '256 MB'")
    if unit not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write it like '20 KiB' or '256 MB'")
    return round(number * _BYTES[unit])


def duration(text: str) -> timedelta:
    """A duration, exact to the microsecond. '0' needs no unit; every other number does."""
    number, unit = _split(text, "a duration", "'500 ms' or '10 minutes'")
    if number == 0 and not unit:
        return timedelta(0)
    if unit not in _MICROSECONDS:
        raise ValueError(
            f"{text!r} is not a duration: write it with its unit, like '500 ms' or '10 minutes'; units are ms, seconds, minutes, "
            "hours, days and weeks"
        )
    micros = Fraction(number) * _MICROSECONDS[unit]
    if micros.denominator != 1:
        raise ValueError(f"{text!r} is no whole number of microseconds, and nothing here is finer: round it")
    if micros > LONGEST // timedelta(microseconds=1):
        raise ValueError(too_long(text))
    return timedelta(microseconds=int(micros))


def too_long(given: object) -> str:
    return f"{given!r} is longer than time is counted here, from the year 1 to 9999: write a shorter one"


def written_size(count: int) -> str:
    for unit, factor in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} bytes" if count else "0"


def written_duration(length: timedelta) -> str:
    micros = length // timedelta(microseconds=1)
    for unit in ("week", "day", "hour", "minute", "second"):
        count, rest = divmod(micros, _MICROSECONDS[unit])
        if count and not rest:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{micros / 1000:g} ms" if micros else "0"


def size_text(count: float) -> str:
    """Bytes for people: `1.2 MB`, in binary units."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def age_text(micros: float) -> str:
    """How long ago, for people: in the largest unit that gives at least two, rounded down."""
    for unit in ("day", "hour", "minute"):
        if micros >= 2 * _MICROSECONDS[unit]:
            return f"{int(micros // _MICROSECONDS[unit])} {unit}s"
    count = max(0, int(micros // _MICROSECONDS["second"]))
    return f"{count} second{'' if count == 1 else 's'}"


def time_text(micros: int | None) -> str:
    """A time in UTC, from the microseconds in records."""
    from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME

    if micros is None:
        return "-"
    if micros >= END_OF_TIME:
        return "the end of time"
    if micros < BEGIN_OF_TIME:  # a watermark behind an event of the year 1
        return "before the year 1"
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _split(text: str, what: str, example: str) -> tuple[Decimal, str]:
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is not {what}: write it like {example}")
    return Decimal(match[1]), match[2].lower()


def several(count: int, one: str, more: str = "") -> str:
    """`1 row`, `2 rows`; `more` is the plural of a word that does not only take an s."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"

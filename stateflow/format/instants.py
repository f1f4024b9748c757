"""Exact integers behind the values that keys and state share: instants, dates and decimals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from struct import Struct

import msgspec

from stateflow.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = 253_402_300_799_999_999
"""The last instant that a datetime can name, in microseconds since 1970: the watermark of a job that was drained."""
BEGIN_OF_TIME = -62_135_596_800_000_000
"""The first one, in the year 1."""
CLOCKS_DIFFER = 600_000_000
"""Hosts' clocks are apart by this much at most, in microseconds, without anybody's fault."""
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_TIMESTAMP, _PACKED_SECONDS = 0xD7FF, 1 << 34
_pack = Struct(">HQ").pack
_decoded = msgspec.msgpack.Decoder(datetime).decode
_SCALE = 18
_LIMIT = 10**38
# The default context rounds to 28 digits, which would merge distinct keys.
_EXACT = Context(prec=100)


def micros_since_epoch(value: datetime) -> int:
    """UsageError for a datetime that `instant` could not give back."""
    if value.tzinfo is None:
        raise UsageError(
            f"the datetime {value.isoformat(sep=' ')} has no time zone, so it names no instant: "
            "give it one, for example value.replace(tzinfo=datetime.UTC)"
        )
    since = value - EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if not BEGIN_OF_TIME <= micros <= END_OF_TIME:
        # Its own zone hides that it cannot be read back, which is always in UTC.
        nearest = "min" if micros < BEGIN_OF_TIME else "max"
        raise UsageError(
            f"the datetime {value.isoformat(sep=' ')} lies outside of the years 1 to 9999 once it is in UTC: take one within them, such as "
            f"datetime.{nearest}.replace(tzinfo=UTC)"
        )
    return micros


def instant(micros: int) -> datetime:
    seconds, rest = divmod(micros, 1_000_000)
    if 0 <= seconds < _PACKED_SECONDS:
        # As MessagePack has it: that takes half as long as adding a duration.
        return _decoded(_pack(_TIMESTAMP, rest * 1000 << 34 | seconds))
    return EPOCH + timedelta(microseconds=micros)


def nearest_instant(micros: int) -> datetime:
    """The instant for people, or the last one that there is: a window may end behind it."""
    return instant(min(max(micros, BEGIN_OF_TIME), END_OF_TIME))


def days_since_epoch(value: date) -> int:
    return value.toordinal() - _EPOCH_DAY


def day(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


FIRST_DAY, LAST_DAY = days_since_epoch(date.min), days_since_epoch(date.max)
"""The days that a date can name, as days since 1970."""


def unscaled_decimal(value: Decimal) -> int:
    """The integer behind a decimal(38,18)."""
    try:
        scaled = value.scaleb(_SCALE, _EXACT)
        unscaled = int(scaled)
    except (InvalidOperation, ValueError, OverflowError):
        raise UsageError(f"the decimal {value} is not a number that decimal(38,18) can hold") from None
    if unscaled != scaled or abs(unscaled) >= _LIMIT:
        raise UsageError(
            f"the decimal {value} does not fit decimal(38,18): it has 20 digits before the point and 18 after it"
        )
    return unscaled


def scaled_decimal(unscaled: int) -> Decimal:
    return Decimal(unscaled).scaleb(-_SCALE, _EXACT)

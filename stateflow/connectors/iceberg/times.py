"""Dates and times that PyIceberg writes: those of the years 1 to 9999, as Python has no others, and each data file is described by its bounds."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = date(1970, 1, 1)
_DAYS = ((date.min - _EPOCH).days, (date.max - _EPOCH).days)
_DAY = 86_400_000_000
_MICROS = (_DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1)
_RANGES = {"date": _DAYS, "timestamp": _MICROS, "timestamptz": _MICROS}
BEYOND = "a date or a time outside of the years 1 to 9999"


def is_time(kind: object) -> bool:
    """Whether a type of Iceberg has such values."""
    return str(kind) in _RANGES


def is_beyond(kind: object, least: int, greatest: int) -> bool:
    """Whether bounds of a column of times are not both of these years. They are days or microseconds since 1970."""
    first, last = _RANGES[str(kind)]
    return least < first or last < greatest


def has_beyond(kind: object, column: pa.Array) -> bool:
    """Whether a column has a date or a time of other years."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_time(kind) or len(column) == column.null_count:
        return False
    ends = pc.min_max(column.cast(pa.int32() if str(kind) == "date" else pa.int64())).as_py()
    return is_beyond(kind, ends["min"], ends["max"])

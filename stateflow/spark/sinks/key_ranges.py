"""Which files of a Delta table can hold a key of a batch, by the bounds of the batch and by Delta's statistics of each file.

A wrong yes costs time, a wrong no leaves two rows of a key. So a file may hold a key unless the bounds are surely apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stateflow.format.scalars import INTEGERS
from stateflow.spark.sinks.fit import PHYSICAL

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

Bound = int | str
"""A date is the days since 1970, a timestamp the microseconds: JSON keeps them as they are."""
Bounds = Mapping[str, Sequence[Bound] | None]
"""The least and the greatest value per column; None where they cannot be told, nothing where a column has no values."""

LONGEST = 256
"""Characters of a bound. A record keeps it, and records stay small."""
MILLISECOND = 1_000
MINUTE = 60_000_000
MOST_AGAIN = 1 / 8
"""The share of a batch's range of keys that may overlap with earlier batches while the keys count as growing."""
_INTEGERS = frozenset(INTEGERS)
_COMPARED = _INTEGERS | {"date", "timestamp", "timestamp_ntz", "string"}
"""No floats: 0 equals -0, and NaN has no place. No collations: other strings are equal there."""
_PARTITIONED = _INTEGERS | {"date", "string"}
_WHOLE = re.compile(r"-?[0-9]+")
_FIRST_DAY = date(1970, 1, 1)
_FIRST_INSTANT = datetime(1970, 1, 1)
_GREGORIAN = date(1582, 10, 15)
"""Writers that follow Spark 2 count the days before it by another calendar."""
_LOST = "\ufffd"
"""Statistics have it in place of bytes that are no UTF-8, which lie elsewhere among strings."""


def bounds_of(batch: pa.RecordBatch | pa.Table, columns: Mapping[str, int]) -> Bounds:
    """The bounds of the columns at these places, over staged rows."""
    import pyarrow.compute as pc

    found: dict[str, Sequence[Bound] | None] = {}
    for name, place in columns.items():
        column = batch.column(place)
        if len(column) == column.null_count:
            continue
        if not _is_compared(column.type):
            found[name] = None
            continue
        ends = pc.min_max(column)
        try:
            pair = tuple(_plain(ends[end]) for end in ("min", "max"))
        except UnicodeDecodeError:
            found[name] = None
            continue
        found[name] = None if any(isinstance(end, str) and len(end) > LONGEST for end in pair) else pair
    return found


def _is_compared(kind: pa.DataType) -> bool:
    import pyarrow.types as of

    return bool(
        of.is_signed_integer(kind)
        or of.is_date32(kind)
        or (of.is_timestamp(kind) and kind.unit == "us")
        or of.is_string(kind)
        or of.is_large_string(kind)
    )


def _plain(scalar: pa.Scalar) -> Any:
    """The scalar's value; for dates and timestamps their number, since Python's end with the year 9999."""
    return scalar.value if hasattr(scalar, "value") else scalar.as_py()


def together(several: Iterable[Bounds]) -> dict[str, Sequence[Bound] | None]:
    """The bounds of all of these rows."""
    found: dict[str, Sequence[Bound] | None] = {}
    for bounds in several:
        for name, pair in bounds.items():
            before = found.get(name, pair)
            if pair is None or before is None:
                found[name] = None
            else:
                least, greatest = zip(before, pair, strict=True)
                found[name] = (min(least), max(greatest))
    return found


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Where the values of a batch lie, in one key column of a table."""

    column: str
    """Its physical name: files are described by it."""
    type: str
    partitions: bool
    least: Bound
    greatest: Bound
    name: str = ""
    """As the table has it."""


def key_ranges(
    columns: Iterable[StructField], partition_by: Sequence[str], bounds: Bounds
) -> tuple[KeyRange, ...]:
    """One for each key column of the table that can be compared."""
    known = {name.lower(): pair for name, pair in bounds.items()}
    parts = {name.lower() for name in partition_by}
    ranges = []
    for field in columns:
        kind, pair = field.dataType.simpleString(), known.get(field.name.lower())
        partitions = field.name.lower() in parts
        if pair is not None and kind in (_PARTITIONED if partitions else _COMPARED):
            physical = str(field.metadata.get(PHYSICAL, field.name))
            ranges.append(KeyRange(physical, kind, partitions, pair[0], pair[1], field.name))
    return tuple(ranges)


def may_hold(add: Mapping[str, Any], ranges: Iterable[KeyRange]) -> bool:
    """True if the file of this action may hold a key of the batch: no, if the ranges of one key column do not meet."""
    stats = _stats(add)
    return not any(_misses(add, stats, key) for key in ranges)


def share_outside(add: Mapping[str, Any], ranges: Iterable[KeyRange]) -> float:
    """About how many of a file's rows have no key between the bounds of the batch, if they lie evenly between the file's own."""
    stats, inside = _stats(add), 1.0
    for key in ranges:
        if _misses(add, stats, key):
            return 1.0
        ends = _ends(add, stats, key)
        if ends is not None:
            least, greatest, first, last = _numbers([*ends, key.least, key.greatest])
            inside = min(inside, (min(greatest, last) - max(least, first) + 1) / (greatest - least + 1))
    return 1.0 - inside


def ranges_of(adds: Sequence[Mapping[str, Any]], ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The ranges of files' values, in those key columns whose range is known for each file."""
    stats = [_stats(add) for add in adds]
    found = []
    for key in ranges:
        ends = [_ends(add, its, key) for add, its in zip(adds, stats, strict=True)]
        known = [pair for pair in ends if pair is not None]
        if known and len(known) == len(ends):
            found.append(
                replace(key, least=min(pair[0] for pair in known), greatest=max(pair[1] for pair in known))
            )
    return tuple(found)


def keys_to_come_again(ranges: Sequence[KeyRange], before: Sequence[KeyRange]) -> KeyRange | None:
    """Where keys grow, those of a batch that the next one may have, too: the last ones, twice as far down as this batch reached
    into what was there `before`. None where keys do not grow."""
    there = {key.column: key for key in before}
    found = []
    for key in ranges:
        old = there.get(key.column)
        if old is None or key.partitions or isinstance(key.least, str):
            continue
        numbers = _numbers([old.least, key.least, old.greatest, key.greatest])
        if not numbers[0] < numbers[1] <= numbers[2] < numbers[3]:
            continue
        again = numbers[2] - numbers[1] + 1
        share = again / (numbers[3] - numbers[1] + 1)
        if share <= MOST_AGAIN:
            found.append((share, replace(key, least=numbers[3] - 2 * again + 1)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _numbers(values: Sequence[Bound]) -> list[int]:
    """Numbers about as far from each other as the values; strings count by the first characters that differ."""
    texts = [value.encode() for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        return [int(value) for value in values]
    alike = next(
        (k for k, here in enumerate(zip(*texts, strict=False)) if len(set(here)) > 1), min(map(len, texts))
    )
    return [int.from_bytes(text[alike : alike + 8].ljust(8, b"\0"), "big") for text in texts]


def _stats(add: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        stats = json.loads(add.get("stats") or "{}")
    except ValueError:
        return {}
    return stats if isinstance(stats, dict) else {}


def _misses(add: Mapping[str, Any], stats: Mapping[str, Any], key: KeyRange) -> bool:
    if key.partitions:
        values = add.get("partitionValues") or {}
        empty = key.column in values and values[key.column] is None
    else:
        nulls = _of_column(stats, "nullCount", key)
        empty = nulls is not None and nulls == stats.get("numRecords")
    if empty:
        # No key equals a null.
        return True
    ends = _ends(add, stats, key)
    return ends is not None and bool(ends[1] < key.least or key.greatest < ends[0])


def _ends(add: Mapping[str, Any], stats: Mapping[str, Any], key: KeyRange) -> tuple[Any, Any] | None:
    """No value of the file is below the first or above the second."""
    if key.partitions:
        least = greatest = (add.get("partitionValues") or {}).get(key.column)
    else:
        # Delta leaves out the columns after the first 32, and the greatest of some long strings.
        least, greatest = (_of_column(stats, end, key) for end in ("minValues", "maxValues"))
    try:
        ends = _read(least, key, -1), _read(greatest, key, 1)
    except (ValueError, OverflowError):
        return None
    return None if None in ends else ends


def _of_column(stats: Mapping[str, Any], what: str, key: KeyRange) -> Any:
    values = stats.get(what)
    return values.get(key.column) if isinstance(values, dict) else None


def _read(value: Any, key: KeyRange, away: int) -> Any:
    """A bound from Delta's statistics of a file, in the form of our bounds. It is moved away from the file's rows by the digits
    that the log leaves out. None if it is not reliable."""
    if key.type in _INTEGERS:
        if key.partitions and isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
        return value if type(value) is int else None
    if not isinstance(value, str):
        return None
    if key.type == "string":
        # The writer cuts strings off behind 32 characters, and makes up for it: the start of a string comes before it, and the
        # greatest has a last character that no string goes beyond.
        return None if _LOST in value.encode().decode() else value
    if key.type == "date":
        day = date.fromisoformat(value)
        return None if day < _GREGORIAN else (day - _FIRST_DAY).days
    return _instant(value, key.type, away)


def _instant(value: str, kind: str, away: int) -> int | None:
    instant = datetime.fromisoformat(value)
    if instant.date() < _GREGORIAN or (instant.tzinfo is None) != (kind == "timestamp_ntz"):
        return None
    # The log has milliseconds, and a zone without its seconds, which some had until 1972.
    room = MILLISECOND
    if instant.tzinfo is not None:
        room += MINUTE if instant.utcoffset() else 0
        instant = instant.astimezone(UTC).replace(tzinfo=None)
    return (instant - _FIRST_INSTANT) // timedelta(microseconds=1) + away * room

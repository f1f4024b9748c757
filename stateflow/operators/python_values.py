"""An Arrow column as Python values: all user code gets them from here, so that it sees the same whatever calls it.

Arrow's `to_pylist` builds a scalar object per value. Numpy is many times faster, so `to_pylist` remains only for values that
numpy cannot hold, and for what is nested, unless a map is in there, which it would give as a list of pairs, or a time without a zone.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.format.instants import FIRST_DAY, LAST_DAY
from stateflow.state.values.arrow.packed_instants import datetimes_of

Values = list[Any]


def values_of(column: Any) -> Values:
    """A column as Python values: ints, floats, text, aware datetimes, dates, Decimals, lists, dicts, None. A time without a zone is one
    of UTC, as it is everywhere."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_timestamp(kind):
        return _datetimes(column)
    if pa.types.is_date(kind):
        return _dates(column)
    if column.null_count or pa.types.is_nested(kind):
        return _nullable(column)
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _datetimes(column: Any) -> Values:
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    try:
        if not column.null_count:
            return datetimes_of(micros.to_numpy())
        values: Values = datetimes_of(pc.fill_null(micros, 0).to_numpy())
    except ValueError:
        raise UsageError(
            "a timestamp lies outside of the years 1 to 9999, which no datetime can hold: declare its column as a bigint and "
            "select unix_micros of it, or leave it out"
        ) from None
    for index in pc.indices_nonzero(column.is_null()).to_numpy().tolist():
        values[index] = None
    return values


def _dates(column: Any) -> Values:
    values: Values = column.to_numpy(zero_copy_only=False).tolist()
    # What no date can hold is a number here. The least and the largest tell whether there is one.
    bounds = pc.min_max(column.cast(pa.date32()).view(pa.int32())).as_py()
    if bounds["min"] is not None and not FIRST_DAY <= bounds["min"] <= bounds["max"] <= LAST_DAY:
        raise UsageError(
            "a date lies outside of the years 1 to 9999, which no Python date can hold: declare its column as an int and select "
            "unix_date of it, or leave it out"
        )
    return values


def _nullable(column: Any) -> Values:
    kind = column.type
    if pa.types.is_nested(kind):
        return _nested(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        # numpy would turn integers with nulls into floats.
        zero = pa.scalar(False if pa.types.is_boolean(kind) else 0, kind)
        filled = pc.fill_null(column, zero).to_numpy(zero_copy_only=False).tolist()
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False).tolist()
        return [v if there else None for v, there in zip(filled, valid, strict=True)]
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _nested(column: Any) -> Values:
    kind = column.type
    if not len(column):
        return []
    differs = not _is_as_arrow_has_it(kind)
    if pa.types.is_map(kind):
        values = _maps(column)
    elif differs and pa.types.is_struct(kind):
        values = _records(column)
    elif differs and pa.types.is_list(kind):
        values = _cut(column, values_of(_inside(column)))
    else:
        return column.to_pylist()  # type: ignore[no-any-return]
    if column.null_count:
        there = column.is_valid().to_numpy(zero_copy_only=False).tolist()
        return [value if is_there else None for value, is_there in zip(values, there, strict=True)]
    return values


def _maps(column: Any) -> Values:
    """Dicts; pairs where the keys are lists or dicts, which are no keys of a dict."""
    if all(map(_is_as_arrow_has_it, _held(column.type))):
        pairs = column.to_pylist()
    else:
        pairs = _cut(column, list(zip(*map(values_of, _inside(column).flatten()), strict=True)))
    if pa.types.is_nested(column.type.key_type):
        return pairs  # type: ignore[no-any-return]
    return [None if each is None else dict(each) for each in pairs]


def _held(kind: Any) -> list[Any]:
    """The types of what values of a type hold."""
    return [kind.field(place).type for place in range(kind.num_fields)]


@cache
def _is_as_arrow_has_it(kind: Any) -> bool:
    """Whether `to_pylist` gives the same, which is quicker for what is nested."""
    if pa.types.is_map(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return False
    return all(map(_is_as_arrow_has_it, _held(kind)))


def _records(column: Any) -> Values:
    names = [field.name for field in column.type]
    parts = [values_of(part) for part in column.flatten()]
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _inside(column: Any) -> Any:
    """What all lists, or maps, of a column hold, one after the other."""
    begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.values.slice(begin, end - begin)


def _cut(column: Any, items: Values) -> Values:
    ends = column.offsets.to_numpy()
    return [items[begin:end] for begin, end in pairwise((ends - ends[0]).tolist())]

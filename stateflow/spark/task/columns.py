"""From Arrow columns to Python rows, a column at a time; `operators/output.py` is the way back.

Arrow's `to_pylist` builds a scalar object per value. Going through numpy is many times faster, so `to_pylist` remains
for values that numpy cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.pipelines.rows import RowType
from stateflow.state.values.packed_instants import datetimes_of

Values = list[Any]


def values_of(column: Any) -> Values:
    """A column as Python values: ints, floats, text, aware datetimes, dates, Decimals, lists, dicts, None."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_timestamp(kind):
        return _datetimes(column)
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


def _nullable(column: Any) -> Values:
    kind = column.type
    if pa.types.is_nested(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        # numpy would turn integers with nulls into floats.
        zero = pa.scalar(False if pa.types.is_boolean(kind) else 0, kind)
        filled = pc.fill_null(column, zero).to_numpy(zero_copy_only=False).tolist()
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False).tolist()
        return [v if there else None for v, there in zip(filled, valid, strict=True)]
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class RowReader:
    """Makes rows of one type from the columns that carry its fields."""

    def __init__(self, rows: RowType, columns: Sequence[int]) -> None:
        self._make = rows.make
        self._columns = tuple(columns)
        self._convert: tuple[Callable[[Any], Any] | None, ...] = tuple(
            _converter(f.hint, f.type) for f in rows.fields
        )
        self._defaults = tuple(f.default for f in rows.fields)

    def read(self, batch: Any, known: Mapping[int, Values] = {}) -> Values:
        """One row object per row of an Arrow batch (or struct array's flattened children). `known` has the values of
        fields that the caller has read already, by the field's place."""
        columns = []
        fields = zip(self._columns, self._convert, self._defaults, strict=True)
        for place, (index, convert, default) in enumerate(fields):
            if place in known:
                columns.append(known[place])
                continue
            column = batch[index]
            values = values_of(column)
            if convert is not None:
                values = [None if v is None else convert(v) for v in values]
            if default is not None and column.null_count:
                values = default.fill(values)
            columns.append(values)
        return list(map(self._make, *columns))


def _converter(hint: Any, spark_type: str) -> Callable[[Any], Any] | None:
    """From `to_pylist`'s dicts and pairs to the hinted types; None where the value is right already."""
    if spark_type.startswith("map<") and hint is None:
        return dict
    if not spark_type.startswith(("struct<", "array<", "map<")) or hint is None:
        return None
    if spark_type.startswith("map<"):
        return lambda value: msgspec.convert(dict(value), hint)
    return lambda value: msgspec.convert(value, hint)

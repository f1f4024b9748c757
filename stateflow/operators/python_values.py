"""An Arrow column as Python values.

Arrow's `to_pylist` builds a scalar object per value. Numpy is many times faster, so `to_pylist` remains only for values that
numpy cannot hold.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.state.values.arrow.packed_instants import datetimes_of

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

"""A column's values in the type that the state keeps, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stateflow.operators.ready.aggregates.decimals import decimals, stored
from stateflow.operators.ready.grouping.keys import typed
from stateflow.state.keys.arrow_types import ARROW, wide


def kept(column: Any) -> Any:
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    if pa.types.is_decimal(kind):
        return stored(column)
    if pa.types.is_timestamp(kind):
        return typed(column, ARROW["datetime"])
    if pa.types.is_integer(kind):
        return typed(column, pa.int64())
    if pa.types.is_floating(kind):
        return typed(column, pa.float64())
    return typed(column, wide(kind))


def restored(column: Any, kind: Any) -> Any:
    """The values in the type that rows have."""
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).view(pa.date32())
    if pa.types.is_decimal(kind):
        return decimals(column, kind) if pa.types.is_large_binary(column.type) else column
    return column

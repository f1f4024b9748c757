"""A column's values in the type that the state keeps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stateflow.operators.ready.aggregates.decimals import stored
from stateflow.state.keys.arrow_types import ARROW


def kept(column: Any) -> Any:
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind) and kind != ARROW["datetime"]:
        return column.cast(ARROW["datetime"])
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    return stored(column) if pa.types.is_decimal(kind) else column

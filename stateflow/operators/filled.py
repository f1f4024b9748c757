"""Puts the defaults that a row class declares into tables, as user code gets them in rows one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.pipelines.rows.defaults import Default
from stateflow.state.values.arrow.lossless import MISFITS, array_of


def filled(uid: str, table: pa.Table, defaults: Mapping[str, Default]) -> pa.Table:
    """`table` with a default in the place of each null. A column without nulls stays the column that it is."""
    for name, default in defaults.items():
        at = table.schema.get_field_index(name)
        if at >= 0 and (column := table.column(at)).null_count:
            table = table.set_column(at, table.schema.field(at), _filled(uid, name, column, default))
    return table


def _filled(uid: str, name: str, column: Any, default: Default) -> Any:
    kind = column.type
    holes = np.flatnonzero(column.is_null().to_numpy())
    values = default.values(1 if default.factory is None else len(holes))
    try:
        made = array_of(values, kind)
    except MISFITS as error:
        raise UsageError(
            f"operator {uid!r}: field {name!r} of its rows has the default {values[0]!r}, which does not fit the column, a "
            f"{kind}: {error}"
        ) from error
    # Arrow fills nulls of plain columns only; taking rows works for lists and structs, too.
    rows = np.arange(len(column))
    rows[holes] = len(column) + np.arange(len(made))
    return pa.chunked_array([*column.chunks, made], kind).take(pa.array(rows))

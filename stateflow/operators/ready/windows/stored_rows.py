"""Whole rows in columnar state, and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.arrow_types import arrow_type
from stateflow.operators.filled import filled
from stateflow.operators.ready.aggregates.kept_columns import kept, restored
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.windows.assigning import instants
from stateflow.pipelines.ready.operators import ROW_THERE, stored_name
from stateflow.pipelines.rows.row_type import RowType


class StoredRows:
    """Rows as state columns: without the key and the time, which an entry is found by."""

    def __init__(self, uid: str, rows: RowType, kept: Sequence[str], time: str = "") -> None:
        self._uid = uid
        self._fields = rows.fields
        self._defaults = rows.defaults_but({time})
        self._time = time
        self._kept = kept
        self.names = [ROW_THERE, *map(stored_name, kept)]

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """The first column is never null, and so tells whether there is a row."""
        columns: dict[str, Any] = {ROW_THERE: pa.array(np.ones(rows.num_rows, dtype=bool))}
        for name in self._kept:
            columns[stored_name(name)] = kept(whole(rows[name]))
        return pa.table(columns)

    def rows(self, entries: pa.Table, times: Any = None) -> pa.Table:
        """The rows of entries, from the key columns and the state columns; `times` has event times that are not kept as a
        column. A row that was kept before its class had a field gets the field's default, as a row from the source does."""
        columns: dict[str, Any] = {}
        for field in self._fields:
            if field.name == self._time:
                columns[field.name] = instants(times)
            elif field.name in self._kept:
                column = whole(entries[stored_name(field.name)])
                columns[field.name] = restored(column, arrow_type(field.type))
            else:
                columns[field.name] = entries[field.name]
        return filled(self._uid, pa.table(columns), self._defaults)

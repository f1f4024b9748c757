"""Values of a columnar state whose columns have changed since some of them were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stateflow.format.records import StateSchema
from stateflow.state.values.arrow.column_values import ColumnBytes
from stateflow.state.values.evolution.versions import marked, todays_form


class EvolvedColumnBytes(ColumnBytes):
    """Reads values of every schema that the record has, and marks the values that it writes."""

    def __init__(self, schema: StateSchema) -> None:
        super().__init__(schema.value)
        today = todays_form(schema)
        assert today is not None
        self._today, self._number = today, schema.version

    def read(self, values: Sequence[bytes | None]) -> pa.Table:
        today = self._today
        return super().read([None if raw is None else today(raw) for raw in values])

    def write(self, columns: Sequence[Any], count: int) -> list[bytes]:
        number = self._number
        return [marked(raw, number) for raw in super().write(columns, count)]

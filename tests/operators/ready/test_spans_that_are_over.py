"""What a deduplication writes of spans that are over. What comes out of it, a model says (`tests/operators/test_kept_rows_model.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from stateflow.pipelines.ready.operators import UNTIL, Deduplicate, KeyedRows, deduplicate
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.columns import state
from tests.operators.ready.driving import Driven

SECOND = 1_000_000


@dataclass
class Event:
    id: str
    region: int
    amount: float
    day: date
    at: datetime
    note: str


SCHEMA = pa.schema(
    [
        ("id", pa.string()), ("region", pa.int64()), ("amount", pa.float64()), ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("note", pa.string()),
    ]
)  # fmt: skip


def declared(within: int) -> Deduplicate:
    return deduplicate(
        KeyedRows("once", row_type(Event), ("id", "region"), ()), time="at", within=within, keep="first"
    )


@pytest.mark.parametrize(("block", "written"), [(100_000, 1), (4, 2), (5, 1)])
def test_a_span_that_is_over_when_its_rows_come_out_is_not_written(
    block: int, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the next table may have rows of its key."""
    monkeypatch.setattr(state, "BLOCK", block)
    put, spans = state.ColumnState.put, []

    def noted(self: Any, keys: Any, values: Any = None, **more: Any) -> None:
        if values is not None and UNTIL in values.column_names:
            spans.extend(keys.to_pylist())
        put(self, keys, values, **more)

    monkeypatch.setattr(state.ColumnState, "put", noted)
    row = {"region": 1, "amount": None, "day": None, "note": None}
    rows = [{**row, "id": "a", "at": at * SECOND} for at in (0, 1, 20, 40, 99)]
    driven = Driven(declared(10 * SECOND))
    driven.batch(pa.Table.from_pylist(rows, SCHEMA), None)
    driven.batch(SCHEMA.empty_table(), 100 * SECOND)
    assert len(driven.rows) == 4
    assert len(spans) == written

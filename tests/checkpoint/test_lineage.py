"""What runs have read and written, from the history."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.lineage import rows_read, rows_written
from stateflow.checkpoint.statistics import HistoryLine


def line(slot: int, **noted: Any) -> HistoryLine:
    return HistoryLine(id=slot, kind="checkpoint", status="COMPLETED", metrics=noted)


def test_rows_of_a_source_and_of_a_sink_of_one_name_are_counted_apart() -> None:
    lines = [
        line(1, source_rows={"orders": 5, "refunds": 1}, sink_rows={"orders": 2}),
        line(2, source_rows={"orders": 7}, sink_rows={"orders": 4}),
    ]
    assert rows_read(lines) == {"orders": 12, "refunds": 1}
    assert rows_written(lines) == {"orders": 6}


def test_what_a_batch_noted_wrongly_counts_for_nothing() -> None:
    lines = [line(1, source_rows=7, sink_rows={"orders": "many"}), line(2)]
    assert (rows_read(lines), rows_written(lines)) == ({}, {})

"""Rows that came late for a part of their windows: an operator takes them, and counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.pipelines.ready.operators import PARTLY_LATE_ROWS
from stateflow.quantities import several


def partly_late_rows(operators: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """By operator the rows of a batch; `operators` is what it noted of each by its uid."""
    counts = {
        uid: int(noted.get("counters", {}).get(PARTLY_LATE_ROWS, 0)) for uid, noted in operators.items()
    }
    return {uid: count for uid, count in counts.items() if count}


def partly_late_warning(operator: str, rows: int) -> str:
    """`rows` is how many a run has had."""
    return (
        f"operator {operator!r}: {several(rows, 'row')} came late for a part of their windows, which were put out without them (for "
        'sessions: may have been): say .window(..., late="strict") to send such rows to .side("late"), or give the source a longer '
        "watermark"
    )

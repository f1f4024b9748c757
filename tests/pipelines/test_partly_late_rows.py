"""What a run says of rows that came late for a part of their windows."""

from __future__ import annotations

from stateflow.pipelines.partly_late_rows import partly_late_rows, partly_late_warning


def test_only_operators_that_had_such_rows_are_told_of() -> None:
    noted = {
        "visits": {"counters": {"partly_late_rows": 3, "late_rows": 7}},
        "minutes": {"counters": {"late_rows": 2}},
        "total": {},
    }
    assert partly_late_rows(noted) == {"visits": 3}


def test_the_warning_counts_them_and_says_what_to_write() -> None:
    assert partly_late_warning("visits", 1_200) == (
        "operator 'visits': 1,200 rows came late for a part of their windows, which were put out without them (for sessions: may have "
        'been): say .window(..., late="strict") to send such rows to .side("late"), or give the source a longer watermark'
    )

"""Rows that come late for a part of their windows are counted; with late="strict" what comes out is one computation over all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stateflow as sf
from stateflow.operators.ready.windows.partly_late import before_sessions, misses_windows
from stateflow.operators.ready.windows.spans import Spans
from stateflow.pipelines.ready import windows
from tests.refusals.refusal import refused


@pytest.mark.parametrize(
    ("window", "time", "closed", "partly"),
    [
        (windows.Sliding(20, 5), 12, 14, False),  # its windows end at 15, 20, 25 and 30
        (windows.Sliding(20, 5), 12, 15, True),
        (windows.Sliding(20, 5), 15, 19, False),
        (windows.Sliding(20, 5), 15, 20, True),
        (windows.Sliding(10, 4), 5, 5, False),  # 6 and 10 and 14
        (windows.Sliding(10, 4), 5, 6, True),
        (windows.Sliding(10, 4, 1), 5, 6, False),  # 7 and 11 and 15
        (windows.Sliding(10, 4, 1), 5, 7, True),
        (windows.Cumulative(20, 5), 12, 14, False),  # 15 and 20
        (windows.Cumulative(20, 5), 12, 15, True),
        (windows.Cumulative(20, 5, 2), 12, 16, False),  # 17 and 22
        (windows.Cumulative(20, 5, 2), 12, 17, True),
        (windows.Sliding(10, 10), 12, 19, False),
    ],
)
def test_a_row_misses_a_window_once_its_first_one_is_closed(
    window: windows.Window, time: int, closed: int, partly: bool
) -> None:
    assert misses_windows(window, np.array([time]), closed).tolist() == [partly]


@pytest.mark.parametrize(
    ("time", "partly"),
    [
        (31, False),  # ahead of all that is closed
        (30, True),  # one that ended at 30 would have had it
        (20, True),  # within the gap of what is open, and perhaps of what is closed
        (25, False),  # inside an open session
        (27, False),
    ],
)
def test_a_row_before_the_open_sessions_of_its_key_may_be_of_a_closed_one(time: int, partly: bool) -> None:
    opened = Spans(np.array([1, 1, 2]), np.array([25, 60, 10]), np.array([35, 70, 40]))
    key = 0 if time >= 30 else 1
    assert before_sessions(np.array([key]), np.array([time]), opened, 30).tolist() == [partly]


@pytest.mark.parametrize("late", ["strictly", None, True])
def test_another_word_for_when_rows_are_late_is_refused(late: Any) -> None:
    @sf.pipeline("hours")
    def hours(flow: sf.Flow) -> None:
        rows = flow.source(
            "rows", sf.delta("/in"), "user long, ts timestamp", event_time="ts", watermark="0 seconds"
        )
        rows.key_by("user").window(sf.session("1 hour"), late=late)

    with refused(sf.UsageError, "window: late is", "give it 'strict'", "or leave it out"):
        hours.build()

"""Rows that come late for a part of their windows are counted; with late="strict" what comes out is one computation over all others."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import stateflow as sf
from stateflow.operators.ready.windows.partly_late import before_sessions, misses_windows
from stateflow.operators.ready.windows.spans import Spans
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import window_aggregate
from stateflow.testing import ColumnarHarness
from tests.operators.ready.driving import Driven
from tests.operators.ready.test_windows_as_one_batch import (
    AGGREGATES,
    SECOND,
    WINDOWS,
    PerWindow,
    Run,
    counted,
    events,
    expected,
    found,
    keyed,
    micros,
    rounded,
    sessions,
    table,
    windows_of,
)


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


def accepted(rows: list[dict[str, Any]], late: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are not among the late ones."""

    def name(row: dict[str, Any]) -> tuple[Any, ...]:
        at = row["ts"] if isinstance(row["ts"], int) else micros(row["ts"])
        return (
            at,
            *(row[column] for column in ("user", "shop", "amount", "quantity", "name", "paid", "day")),
        )

    gone = Counter(map(name, late))
    kept = []
    for row in rows:
        if gone[name(row)]:
            gone[name(row)] -= 1
        else:
            kept.append(row)
    assert not +gone
    return kept


@pytest.mark.parametrize("late", ["strict", "lenient"])
@pytest.mark.parametrize("seed", range(5))
def test_strict_sessions_are_those_of_all_rows_that_were_not_late(seed: int, late: str) -> None:
    rows, chance = events(seed), random.Random(f"strict{seed}")
    gap, lateness = chance.choice((1, 4, 8)) * SECOND, chance.choice((0, 5)) * SECOND
    declared = window_aggregate(
        keyed(), PerWindow, AGGREGATES, window=windows.session(timedelta(microseconds=gap)), time="ts",
        lateness=lateness, emit="final", late=late,
    )  # fmt: skip
    driven = Run(declared, seed, chance.choice((0, 3, 10)) * SECOND).over(rows)
    kept = accepted(rows, driven.sides.get("late", []))
    wanted = {key: rounded(expected(mine)) for key, mine in sessions(kept, gap).items()}
    partly = driven.counters.get("partly_late_rows", 0)
    if late == "strict":
        assert partly == 0
    if not partly:
        assert found(driven.rows) == wanted
        assert len(driven.rows) == len(wanted)
    assert driven.counters.get("late_rows", 0) == len(rows) - len(kept)
    assert driven.entries() == 0


@pytest.mark.parametrize(
    ("late", "emit"),
    [("lenient", "final"), ("strict", "final"), ("strict", "changes"), ("strict", "on_time")],
)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_strict_windows_are_those_of_all_rows_that_were_not_late(
    seed: int, name: str, emit: str, late: str
) -> None:
    rows, window, chance = events(seed), WINDOWS[name], random.Random(f"{seed}{name}{emit}{late}")
    lateness = chance.choice((0, 7)) * SECOND
    declared = window_aggregate(
        keyed(), PerWindow, AGGREGATES, window=window, time="ts", lateness=lateness, emit=emit, late=late
    )
    driven = Run(declared, seed, chance.choice((0, 3)) * SECOND).over(rows)
    kept = accepted(rows, driven.sides.get("late", []))

    def closed_of(row: dict[str, Any]) -> int:
        return sum(
            row["mark"] is not None and end + lateness <= row["mark"]
            for _, end in windows_of(window, row["ts"])
        )

    partly = [row for row in kept if closed_of(row)]
    assert driven.counters.get("partly_late_rows", 0) == len(partly)
    assert bool(partly) == (late == "lenient" and window.count > 1)
    for row in kept if late == "strict" else []:
        row["mark"] = None  # each window that it is in has it
    wanted = {key: rounded(expected(mine)) for key, mine in counted(kept, window, lateness).items()}
    assert found(driven.rows) == wanted


def test_code_per_session_goes_by_it_too() -> None:
    @sf.pipeline("visits")
    def visits(flow: sf.Flow) -> None:
        rows = flow.source(
            "rows", sf.delta("/in"), "user long, ts timestamp", event_time="ts", watermark="0 seconds"
        )
        cut = rows.key_by("user").window(sf.session("4 seconds"), late="strict")
        cut.process("visits", Ended, output="user long, n long").collect("out", sf.memory("out"))

    harness = ColumnarHarness.of(visits.build(), "visits")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    harness.rows({"user": 1, "ts": noon})
    assert [each["n"] for each in harness.advance(noon + timedelta(seconds=4))] == [1]
    harness.rows({"user": 1, "ts": noon + timedelta(seconds=2)})
    assert harness.metrics == {"late_rows": 1}


class Ended(sf.WindowProcess[Any, Any, Any]):
    def process(self, key: Any, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext) -> Any:
        yield {"user": key, "n": len(rows)}


def test_a_row_inside_a_session_that_another_late_row_began_is_not_counted_again() -> None:
    declared = window_aggregate(
        keyed(),
        PerWindow,
        AGGREGATES,
        window=windows.session("4 seconds"),
        time="ts",
        lateness=0,
        emit="final",
    )
    driven = Driven(declared)
    first, second, third = events(0, 3)
    at = {"user": 1, "shop": "a"}
    driven.batch(table([{**first, **at, "ts": 0}]), None)
    # Of the session that ended at four seconds one row would have been, and the other makes one with it.
    driven.batch(table([{**second, **at, "ts": 3 * SECOND}, {**third, **at, "ts": 6 * SECOND}]), 4 * SECOND)
    assert driven.counters == {"partly_late_rows": 1}
    assert "late" not in driven.sides
    driven.batch(table([{**first, **at, "ts": 4 * SECOND}]), 5 * SECOND)
    assert driven.counters == {"partly_late_rows": 1}


@pytest.mark.parametrize("late", ["strictly", None, True])
def test_another_word_for_when_rows_are_late_is_refused(late: Any) -> None:
    @sf.pipeline("hours")
    def hours(flow: sf.Flow) -> None:
        rows = flow.source(
            "rows", sf.delta("/in"), "user long, ts timestamp", event_time="ts", watermark="0 seconds"
        )
        rows.key_by("user").window(sf.session("1 hour"), late=late)

    with pytest.raises(sf.UsageError, match=r"window: late is .*: give it 'strict', .* or leave it out"):
        hours.build()

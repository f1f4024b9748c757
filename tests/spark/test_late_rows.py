"""Late rows split off at a source: every row is counted once, whoever reads which branch."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

import stateflow as sf
from tests.spark.pipelines import LATE, ORDER, Order, Sum, Workbench, at


@pytest.mark.slow
def test_rows_are_counted_once_where_late_ones_are_split_off_and_where_a_batch_is_tried_again(
    bench: Workbench,
) -> None:
    counts, plain, late = (sf.memory(f"late-{n}") for n in ("counts", "plain", "late"))
    for table in (counts, plain, late):
        table.clear()
    failures = [ValueError("once"), ValueError("twice")]

    def failing(frame: DataFrame) -> DataFrame:
        if frame.count() and failures:
            raise failures.pop()
        return frame

    @sf.pipeline("late")
    def split(flow: sf.Flow) -> None:
        events = flow.source(
            "in", bench.source("in", ORDER), Order, event_time="ts", watermark="1 minute", late=LATE
        )
        events.key_by("user").process("sums", Sum).collect("counts", counts)
        events.collect("plain", plain)
        events.side(LATE).transform(failing).collect("late", late)

    for first in (0, 10, 20):
        bench.rows(
            "in",
            [
                Order(1, "a", 1.0, at(first)),
                Order(2, "a", 1.0, at(first - 12)),
                Order(3, "a", 1.0, at(first)),
            ],
        )
    bench.run(split, tolerable_failed_batches=5, failure_backoff="10 ms")
    assert not failures
    assert [r.rows for r in bench.reports if not r.input_free] == [3, 3, 3]
    records = bench.records("late")
    assert [r.statistics.get("processed_rows") for r in records if r.sources and not r.statistics.get("positions")] == [
        3, 3, 3,
    ]  # fmt: skip
    assert (len(plain.rows), len(late.rows)) == (7, 2)


def test_a_run_counts_rows_that_came_late_for_a_part_of_their_windows(bench: Workbench) -> None:
    @sf.pipeline("hops")
    def hops(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", ORDER), Order, event_time="ts", watermark="1 minute")
        windows = events.key_by("user").window(sf.hopping("20 minutes", every="5 minutes"))
        output = "user bigint, window_start timestamp, n bigint"
        windows.aggregate("hops", output, n=sf.count()).collect("hops", sf.memory("hops"))

    for minute in (
        0,
        31,
        14,
    ):  # the windows that end at 15 to 30 are closed; the row at 14 is in those that end at 15 to 30
        bench.rows("in", [Order(1, "a", 1.0, at(minute))])
    bench.rows("in", [Order(1, "a", 1.0, at(24)), Order(2, "a", 1.0, at(12))])
    report = bench.run(hops)
    assert [lost.rows for lost in report.lost] == [2]
    (warning,) = report.warnings
    assert warning.startswith("operator 'hops': 1 row came late for a part of their windows")
    counters = bench.reports[3].statistics["operators"]["hops"]["counters"]
    assert counters == {"partly_late_rows": 1, "late_rows": 1}

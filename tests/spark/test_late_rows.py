"""Late rows split off at a source: every row is counted once, whoever reads which branch."""

from __future__ import annotations

from pyspark.sql import DataFrame

import stateflow as sf
from tests.spark.pipelines import LATE, ORDER, Order, Sum, Workbench, at


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

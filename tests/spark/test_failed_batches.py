"""The life of a checkpoint that goes wrong: a deadline, tries that fail and one that succeeds, a crash without exactly-once."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.writer import Writer
from stateflow.errors import StateflowError
from stateflow.format.layout import origin_of
from stateflow.format.references import references
from stateflow.jobs.job import Job
from stateflow.spark.deadline import BatchDeadlineError, Deadline
from tests.refusals.refusal import refused
from tests.spark.pipelines import VISIT, Visit, Workbench, at


def counting(marks: Path, *, fail: int = 0, sleep: float = 0.0) -> type[Any]:
    """Counts visits per user. The first tries of its first key fail, or take long; `marks` remembers them over processes."""
    folder = str(marks)

    class Counting(sf.KeyedProcess[int, Visit, Visit]):
        count = sf.ValueState(int, default=0)

        def process(self, key: int, rows: Iterator[Visit], ctx: sf.Context) -> Iterator[Visit]:
            tries = len(list(Path(folder).iterdir()))
            if key == 1 and tries < max(fail, bool(sleep)):
                (Path(folder) / str(tries)).touch()
                if not sleep:
                    raise ValueError("the service is away")
                time.sleep(sleep)
            for row in rows:
                self.count.value += 1
                yield Visit(key, row.page, float(self.count.value), row.ts)

    marks.mkdir(exist_ok=True)
    return Counting


def pipeline(bench: Workbench, process: type[Any], sink: Any) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        out = visits.key_by("user", order_by="ts").process("counting", process)
        if isinstance(sink, str):
            out.append("out", sf.delta(sink))
        else:
            out.collect("out", sink)

    return orders


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    made = Workbench(spark, tmp_path)
    for minute in range(2):
        made.rows("visits", [Visit(user, "home", 1.0, at(minute)) for user in (1, 2)])
    return made


def counted(rows: list[Any]) -> Counter[tuple[int, float]]:
    return Counter((row["user"], row["seconds"]) for row in rows)


ONCE = Counter({(user, float(n)): 1 for user in (1, 2) for n in (1, 2)})


def test_a_spark_job_beyond_the_deadline_is_cancelled_and_says_so(spark: SparkSession) -> None:
    def sleeps(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(120)
        yield from batches

    began = time.monotonic()
    with (
        refused(BatchDeadlineError, "batch_deadline=1 s", "give it more time"),
        Deadline(spark, 1.0),
    ):
        spark.range(1).mapInPandas(sleeps, "id long").collect()
    assert time.monotonic() - began < 100


@pytest.mark.system
def test_a_batch_beyond_its_deadline_fails_and_its_next_try_may_succeed(
    bench: Workbench, tmp_path: Path
) -> None:
    sink = sf.memory("deadline")
    slow = pipeline(bench, counting(tmp_path / "marks", sleep=240), sink)
    bench.run(slow, batch_deadline="30 s", tolerable_failed_batches=1, failure_backoff="10 ms")
    assert counted(sink.rows) == ONCE
    assert [report.statistics.get("failed_tries") for report in bench.reports] == [1, None]


@pytest.mark.slow
def test_a_batch_that_fails_twice_is_tried_again_after_a_pause_that_doubles_and_counts_once(
    bench: Workbench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sf.memory("tolerable")
    flaky = pipeline(bench, counting(tmp_path / "marks", fail=2), sink)
    with caplog.at_level(logging.WARNING, "stateflow.spark.loop"):
        bench.run(flaky, tolerable_failed_batches=2, failure_backoff="200 ms", min_pause="1500 ms")
    pauses = [record.getMessage() for record in caplog.records if "in a row" in record.getMessage()]
    assert ["(1 in a row), again in 0.2 s" in pauses[0], "(2 in a row), again in 0.4 s" in pauses[1]] == [
        True,
        True,
    ]
    assert counted(sink.rows) == ONCE
    assert [report.statistics.get("failed_tries") for report in bench.reports] == [2, None]
    assert Job(str(tmp_path / "root"), "orders").summary().numberOfFailedCheckpoints == 2
    # The second batch began no sooner than the least pause after the end of the first.
    first, second = bench.records("orders")[-2:]
    ended = Job(str(tmp_path / "root"), "orders").log().slots[first.slot].outcome
    assert ended is not None
    assert second.now - ended.at >= 1_400_000


def test_one_failure_more_than_is_tolerated_fails_the_run(bench: Workbench, tmp_path: Path) -> None:
    flaky = pipeline(bench, counting(tmp_path / "marks", fail=2), sf.memory("intolerable"))
    with refused(StateflowError, "the service is away"):
        bench.run(flaky, tolerable_failed_batches=1, failure_backoff="10 ms")


@pytest.mark.slow
def test_at_least_once_a_crash_loses_no_row_and_no_state(
    bench: Workbench, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = str(tmp_path / "out")
    made = pipeline(bench, counting(tmp_path / "marks"), table)
    complete = Writer.complete

    def dies(writer: Writer, permit: Any, outcomes: Any, statistics: Any = None) -> Any:
        if outcomes:
            raise RuntimeError("killed between the sink and the log")
        return complete(writer, permit, outcomes, statistics)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "complete", dies)
        with pytest.raises(StateflowError, match="killed between the sink and the log"):
            bench.run(made, delivery="at_least_once")
    bench.run(made, delivery="at_least_once", takeover=True)
    found = counted([row.asDict() for row in spark.read.format("delta").load(table).collect()])
    assert set(found) == set(ONCE), "each batch came, and none was counted twice into the state"


def test_a_checkpoint_that_is_not_incremental_has_files_of_its_own(bench: Workbench, tmp_path: Path) -> None:
    made = pipeline(bench, counting(tmp_path / "marks"), sf.memory("own"))
    bench.run(made, incremental=True, inline_threshold=0, stop_after=1)
    shared = {ref.path for ref in references(bench.records("orders")[-1]) if ref.path}
    bench.run(made, incremental=False, inline_threshold=0, takeover=True)
    head = bench.records("orders")[-1]
    own = [ref for ref in references(head) if ref.path]
    assert own
    assert shared
    assert {origin_of(ref.path) for ref in own} == {(head.epoch, head.slot)}
    assert [f.text for f in Job(str(tmp_path / "root"), "orders").verify(deep=True)] == []

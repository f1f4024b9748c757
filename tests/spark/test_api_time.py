"""Event time, processing time, watermarks, lateness and expiry, as users see them on Spark."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame

import stateflow as sf
from stateflow.spark import runner
from stateflow.spark.batches.batch import Batch
from stateflow.spark.inputs.watermark import Holder
from stateflow.spark.loop import BatchLoop
from stateflow.spark.queries import Queries
from tests.spark.pipelines import LATE, ORDER, TOLD, Order, Remembering, Timed, Workbench, at


def order(user: int, minute: float, sku: str = "a") -> Order:
    return Order(user, sku, 1.0, at(minute))


def told(rows: list[dict[str, Any]], *kinds: str) -> list[tuple[Any, ...]]:
    return sorted((r["what"], r["user"], r["at"]) for r in rows if r["what"] in kinds)


@dataclass
class Clock:
    """Moves a little whenever somebody looks."""

    now: int = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.now += 10_000
        return self.now


@pytest.mark.slow
def test_timers_watermarks_lateness_and_idle_sources(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(runner, "_micros", clock)
    first, second, late, expiry = (sf.memory(f"time-{n}") for n in ("first", "second", "late", "expiry"))
    for table in (first, second, late, expiry):
        table.clear()

    @sf.pipeline("time")
    def timed(flow: sf.Flow) -> None:
        a = flow.source(
            "a", bench.source("a", ORDER), Order, event_time="ts", watermark="1 minute", late=LATE
        )
        b = flow.source("b", bench.source("b", ORDER), Order, event_time="ts", watermark="1 minute")
        a.key_by("user", order_by="ts").process("timed-a", Timed, output=TOLD).collect("first", first)
        b.key_by("user", order_by="-ts").process("timed-b", Timed, output=TOLD).collect("second", second)
        a.side(LATE).collect("late", late)
        a.key_by("user").process("expiry", Remembering, output="user long, found string, now long").collect(
            "expiring", expiry
        )

    # Two batches in one run: the watermark of the second is that of what the first one held.
    bench.rows("a", [order(1, 0), order(2, 5, "soon"), order(7, 0), order(8, 0), order(9, 0, "never")])
    bench.rows("b", [order(1, 5), order(1, 2)])
    bench.rows("a", [order(3, 30), order(1, 2), order(1, 4), order(2, 7), order(8, 12, "cancel")])
    bench.rows("b", [order(5, 3), order(5, 30), order(6, 2.5), order(6, 4)])
    bench.run(timed)
    assert [(r.input_free, r.rows) for r in bench.reports] == [(False, 7), (False, 9), (True, 0)]
    records = bench.records("time")
    assert [r.watermark for r in records[-3:]] == [None, _micros(4), _micros(29)]
    # A row exactly at the watermark is late.
    assert sorted((r["user"], r["ts"]) for r in late.rows) == [(1, at(2)), (1, at(4))]
    assert told(first.rows, "soon") == [("soon", 2, None)]
    idle = [
        ("idle", 1, at(10)),
        ("idle", 2, at(17)),
        ("idle", 7, at(10)),
        ("idle", 7, at(13)),
        ("idle", 9, at(10)),
    ]
    assert told(first.rows, "idle") == idle
    assert {slot for slot, rows in first.batches if told(rows, "idle")} == {records[-1].slot}
    assert [(r["user"], r["at"], r["late"]) for r in second.batches[0][1]] == [
        (1, at(5), False),
        (1, at(2), False),
    ]
    marks = {(r["user"], r["at"]): r["late"] for r in second.batches[1][1] if r["what"] == "row"}
    assert marks == {(5, at(30)): False, (5, at(3)): True, (6, at(2.5)): True, (6, at(4)): True}
    for table, key in ((first, "now"), (second, "now")):
        for slot, rows in table.batches:
            assert {_of(r[key]) for r in rows} == {next(r.now for r in records if r.slot == slot)}
    # In the second run `b` is quiet, and holds the watermark back.
    bench.rows("a", [order(4, 100)])
    report = bench.run(timed)
    assert [r.input_free for r in bench.reports] == [False]
    newest = bench.records("time")[-1]
    assert newest.watermark == _micros(29)
    assert report.held == Holder("b", newest.sources["b"].active or 0)
    assert told(first.batches[-1][1], "row", "idle") == [("row", 4, at(100))]
    # When all sources are idle none holds the others back; then `b` alone is idle, and timers fire: in shards that have
    # no rows too, after those that have, and at last without rows at all.
    bench.rows("a", [order(5, 200)])
    bench.rows("a", [order(6, 300)])
    clock.now += 600_000_000
    bench.run(timed)
    assert [r.input_free for r in bench.reports] == [False, False, True]
    found = [told(rows, "row", "idle") for _, rows in first.batches[-3:]]
    assert found[0] == [("row", 5, at(200))]
    assert found[1] == [("idle", 3, at(40)), ("idle", 4, at(110)), ("row", 6, at(300))]
    assert found[2] == [("idle", 5, at(210))]
    # What expired is not read, also before anything removes it; what a batch sets itself is there.
    seen = [(r["user"], r["found"], r["now"]) for r in expiry.rows]
    fresh = "[None, {}, [], None]"
    assert [found for user, found, _ in seen if user == 1] == [fresh]
    assert [found for user, found, _ in seen if user == 2] == [fresh, "[None, {}, [], 1]"]
    assert {now for _, _, now in seen} == {1}
    # Nothing to do: no timers are due, and a run without rows takes no checkpoint.
    before = bench.states("time")
    bench.run(timed)
    assert (bench.reports, bench.states("time")) == ([], before)


@pytest.mark.slow
def test_a_clock_that_is_behind_the_newest_batch_is_told_with_the_way_back(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, out = Clock(), sf.memory("behind")
    monkeypatch.setattr(runner, "_micros", clock)

    @sf.pipeline("behind")
    def pipeline(flow: sf.Flow) -> None:
        a = flow.source("a", bench.source("a", ORDER), Order)
        a.key_by("user").process("expiry", Remembering, output="user long, found string, now long").collect(
            "out", out
        )

    bench.rows("a", [order(1, 5)])
    assert bench.run(pipeline).warnings == ()
    right, month = bench.records("behind")[-1], 30 * 86_400_000_000
    clock.now += month
    bench.rows("a", [order(1, 5)])
    assert bench.run(pipeline).warnings == ()
    ahead = bench.records("behind")[-1]
    clock.now -= month
    warning = (
        "the clock says 2027-01-15 08:00:00, and the newest batch was of 2027-02-14 08:00:00: a batch's time never goes back, so until the "
        "clock has come there no processing-time timer fires, no ttl of processing time ends, and no quiet source becomes idle; set the "
        "clock if it is wrong, and if the batch's was, take the job back to before it: `stateflow checkpoints behind` lists the "
        "times, and `stateflow restore behind FILE --from N` goes there"
    )
    bench.rows("a", [order(1, 5)])
    assert bench.run(pipeline).warnings == (warning,)
    assert bench.records("behind")[-1].now == ahead.now
    assert bench.run(pipeline).warnings == (warning,), "also without a batch"
    bench.job("behind").restore(f"checkpoint:{right.slot}", pipeline, options=bench.options()).apply()
    assert bench.run(pipeline).warnings == ()
    assert right.now < bench.records("behind")[-1].now < ahead.now


@pytest.mark.slow
def test_a_run_that_finds_nothing_releases_what_a_quiet_source_has_held_back(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, out, quiet = Clock(), sf.memory("released"), sf.memory("quiet")
    monkeypatch.setattr(runner, "_micros", clock)
    out.clear()

    @sf.pipeline("quiet")
    def pipeline(flow: sf.Flow) -> None:
        a = flow.source("a", bench.source("a", ORDER), Order, event_time="ts", watermark="1 minute")
        b = flow.source("b", bench.source("b", ORDER), Order, event_time="ts", watermark="1 minute")
        a.key_by("user", order_by="ts").process("timed", Timed, output=TOLD).collect("out", out)
        b.collect("quiet", quiet)

    bench.rows("b", [order(1, 5)])
    bench.run(pipeline)
    bench.rows("a", [order(3, 30), order(4, 100)])
    held = bench.run(pipeline).held
    assert held is not None
    assert (held.source, told(out.rows, "idle")) == ("b", [])
    # The runs are short, and nobody looks for ten minutes between them.
    clock.now += 600_000_000
    report = bench.run(pipeline)
    assert [r.input_free for r in bench.reports] == [True]
    assert (report.held, told(out.rows, "idle")) == (None, [("idle", 3, at(40))])


@pytest.mark.slow
def test_the_time_that_a_batch_takes_makes_no_source_idle(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks while a batch runs, and `b` may get rows meanwhile. A partition is idle as of the same time as a source."""
    clock, run_batch = Clock(), Batch.run
    monkeypatch.setattr(runner, "_micros", clock)

    def slowly(batch: Batch) -> Any:
        clock.now += 200_000_000
        return run_batch(batch)

    monkeypatch.setattr(Batch, "run", slowly)

    @sf.pipeline("slow")
    def slow(flow: sf.Flow) -> None:
        for uid in ("a", "b"):
            rows = flow.source(uid, bench.source(uid, ORDER), Order, event_time="ts", watermark="1 minute")
            rows.collect(f"out-{uid}", sf.memory(f"slow-{uid}"))

    # A run that ends by itself reads what was there when it began. Nobody has looked for what came to `b` since, however long it took.
    bench.rows("b", [order(2, 3)])
    for minute in (30, 60, 90):
        bench.rows("a", [order(1, minute)])
    report = bench.run(slow)
    first, _, third = bench.records("slow")[-3:]
    assert [record.watermark for record in bench.records("slow")[-3:]] == [None, _micros(2), _micros(2)]
    assert third.now - first.now > 400_000_000
    assert report.held == Holder("b", first.now)
    assert bench.run(slow).held is None, "the next run has seen that `b` had no rows for 600 seconds"
    bench.rows("b", [order(2, 100)])
    for minute in (120, 150):
        bench.rows("a", [order(1, minute)])
    report = bench.run(slow)
    assert report.held == Holder("b", bench.records("slow")[-2].now)


def test_a_source_that_is_added_makes_no_other_one_idle(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position is recorded before the first batch, which reads what has gathered for the others since the run before."""
    clock = Clock()
    monkeypatch.setattr(runner, "_micros", clock)

    def pipeline_with(*more: str) -> sf.Pipeline:
        @sf.pipeline("grown")
        def grown(flow: sf.Flow) -> None:
            for uid in ("a", "b"):
                rows = flow.source(
                    uid, bench.source(uid, ORDER), Order, event_time="ts", watermark="1 minute"
                )
                rows.collect(f"out-{uid}", sf.memory(f"grown-{uid}"))
            for uid in more:
                flow.source(uid, bench.source(uid, ORDER), Order).collect(uid, sf.memory(f"grown-{uid}"))

        return grown

    bench.rows("b", [order(2, 3)])
    for minute in (30, 60):
        bench.rows("a", [order(1, minute)])
    bench.run(pipeline_with())
    clock.now += 3_600_000_000
    bench.rows("b", [order(2, 4)])
    bench.rows("c", [order(3, 0)])
    bench.run(pipeline_with("c"))
    positions, batch = bench.records("grown")[-2:]
    assert positions.statistics["positions"] == ["c"]
    assert batch.watermark == _micros(2)


@dataclass
class Delayed:
    """A job in which `b` has rows in the first batch only, 200 seconds before the second one."""

    bench: Workbench
    clock: Clock = field(default_factory=Clock)

    def watermarks(self, **options: Any) -> list[int | None]:
        """Of three batches."""

        @sf.pipeline("delayed")
        def delayed(flow: sf.Flow) -> None:
            for uid in ("a", "b"):
                source = self.bench.source(uid, ORDER)
                rows = flow.source(uid, source, Order, event_time="ts", watermark="1 minute")
                rows.collect(f"out-{uid}", sf.memory(f"delayed-{uid}"))

        self.bench.rows("b", [order(2, 3)])
        for minute in (30, 60, 90):
            self.bench.rows("a", [order(1, minute)])
        self.bench.run(delayed, **options)
        return [record.watermark for record in self.bench.records("delayed")[-3:]]


@pytest.fixture
def job(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Delayed:
    made = Delayed(bench)
    monkeypatch.setattr(runner, "_micros", made.clock)
    return made


HELD = [None, 2, 2]
"""The third batch begins 400 seconds after the last rows of `b`. The job has looked 200 seconds after them."""


def test_the_tries_of_a_batch_make_no_source_idle(job: Delayed, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch, tries = Batch.run, itertools.count(1)

    def fails_once_a_batch(batch: Batch) -> Any:
        job.clock.now += 100_000_000
        if next(tries) % 2:
            raise sf.StateflowError("the disk is full")
        return run_batch(batch)

    monkeypatch.setattr(Batch, "run", fails_once_a_batch)
    assert job.watermarks(tolerable_failed_batches=1, failure_backoff="1 ms") == [
        None if mark is None else _micros(mark) for mark in HELD
    ]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["trigger", "min_pause"])
def test_the_time_between_two_batches_in_which_nobody_looks_makes_no_source_idle(
    option: str, job: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock alone goes on by as much as the option says."""
    on_batch, query = BatchLoop.on_batch, Queries._query

    def at_the_trigger(loop: BatchLoop, frame: DataFrame, batch_id: int) -> None:
        job.clock.now += 200_000_000
        on_batch(loop, frame, batch_id)

    def paused(loop: BatchLoop) -> None:
        job.clock.now += 200_000_000

    if option == "trigger":
        monkeypatch.setattr(BatchLoop, "on_batch", at_the_trigger)
        monkeypatch.setattr(
            Queries, "_query", lambda queries, when: query(queries, {"processingTime": "0 seconds"})
        )
    else:
        monkeypatch.setattr(BatchLoop, "_pause", paused)
    options = {"trigger": "200 seconds", "stop_after": 3} if option == "trigger" else {}
    assert job.watermarks(**options) == [None if mark is None else _micros(mark) for mark in HELD]


def _micros(minute: float) -> int:
    return _of(at(minute))


def _of(instant: Any) -> int:
    return round(instant.timestamp() * 1e6)

"""The record of a batch on its way, while the next batch is evaluated, or while nothing answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.checkpoint import writer as writing
from stateflow.errors import FencedError, IncompatibleError, StateflowError, UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Prepared
from stateflow.spark.deliveries import Deliveries as RunDeliveries
from stateflow.spark.in_flight import InFlight, Passage
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.source_records import SourceRecords
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.failing_decision import fail_once
from tests.spark.pipelines import VISIT, Visit, Workbench, at
from tests.spark.sink_places import contents

# ---- one way, without Spark ----


def held(
    event: threading.Event, *, decides: bool = True, error: Exception | None = None
) -> Callable[[Passage], None]:
    """The steps of a record that goes on when the event is set, behind its decision or before it, and may fail then."""

    def steps(passage: Passage) -> None:
        if decides:
            passage.decided()
        event.wait(60)
        if error is not None:
            raise error

    return steps


def test_who_sends_a_record_goes_on_when_it_is_decided() -> None:
    ways, delivers = InFlight("orders"), threading.Event()
    ways.send(4, held(delivers), 60)
    assert (ways.slot, ways.failed) == (4, False)
    delivers.set()
    ways.arrive(60)
    assert (ways.slot, ways.failed) == (None, False)
    ways.close()


def test_what_fails_behind_the_decision_is_raised_where_somebody_waits_or_looks() -> None:
    for wait in (lambda ways: ways.arrive(60), _look_until):
        ways, fails = InFlight("orders"), threading.Event()
        ways.send(4, held(fails, error=StateflowError("the table is away")), 60)
        fails.set()
        with refused(StateflowError, "the table is away"):
            wait(ways)
        assert ways.failed
        ways.close()


def _look_until(ways: InFlight) -> None:
    for _ in range(6000):
        ways.look(lambda: None)
        time.sleep(0.01)


def test_who_looks_meanwhile_takes_nothing_from_who_sends() -> None:
    ways = InFlight("orders")
    passages = ways._passages

    class Looked:
        """Somebody looks as soon as a record has arrived, before its sender waits for it."""

        get = staticmethod(passages.get)

        def put(self, passage: Passage | None) -> None:
            passages.put(passage)
            while passage is not None and not passage.has_ended:
                time.sleep(0.001)
            ways.look(lambda: 60)

    ways._passages = Looked()  # type: ignore[assignment]
    ways.send(4, lambda passage: passage.decided(), 60)
    ways.arrive(60)

    def steps(passage: Passage) -> None:
        raise StateflowError("the store is away")

    with refused(StateflowError, "the store is away"):
        ways.send(5, steps, 60)
    assert (ways.slot, ways.failed) == (None, False), "who sends hears of it, and may try again"
    ways.close()


def test_what_fails_before_the_decision_is_raised_at_once() -> None:
    def steps(passage: Passage) -> None:
        raise StateflowError("the store is away")

    ways = InFlight("orders")
    with refused(StateflowError, "the store is away"):
        ways.send(4, steps, 60)
    assert (ways.slot, ways.failed) == (None, False)
    ways.send(4, lambda passage: passage.decided(), 60)
    ways.arrive(60)
    ways.close()


@pytest.mark.parametrize(
    ("decides", "sentence"),
    [(False, "has not said within batch_deadline whether record 4"), (True, "record 4 .* is decided, and")],
)
def test_nobody_waits_longer_than_the_deadline(decides: bool, sentence: str) -> None:
    ways, answers = InFlight("orders"), threading.Event()

    def waits() -> None:
        ways.send(4, held(answers, decides=decides), 0.05)
        ways.arrive(0.05)

    with pytest.raises(UnavailableError, match=sentence):
        waits()
    assert ways.overdue
    answers.set()
    ways.close()


def test_who_looks_at_a_delivery_that_is_overdue_hears_of_it() -> None:
    ways, answers = InFlight("orders"), threading.Event()
    ways.look(lambda: 0.0)
    ways.send(4, held(answers), 60)
    for left in (None, 60.0):
        ways.look(lambda left=left: left)
    with refused(UnavailableError, "record 4", "is decided, and"):
        ways.look(lambda: 0.0)
    assert ways.overdue
    answers.set()
    ways.close()


# ---- runs ----


class Count(sf.KeyedProcess[int, Visit, Visit]):
    count = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[Visit], ctx: sf.Context) -> Iterator[Visit]:
        for row in rows:
            self.count.value += 1
            yield Visit(key, row.page, float(self.count.value), row.ts)


def pipeline(bench: Workbench, deliver: Callable[[DataFrame, Any], Any], *more: str) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        counted = visits.key_by("user", order_by="ts").process("count", Count)
        counted.for_each_batch("out", deliver)
        if "append" in more:
            counted.append("appended", sf.delta(str(bench.folder / "appended")))
        if "upsert" in more:
            counted.upsert("newest", sf.delta(str(bench.folder / "newest")), keys=["user"], order_by="ts")

    return orders


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    made = Workbench(spark, tmp_path)
    for minute in range(4):
        made.rows("visits", [Visit(user, "home", 1.0, at(minute)) for user in (1, 2)])
    return made


class Deliveries:
    """The rows that a function sink gets. It may hang or fail at its second delivery."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, float]] = []
        self.at_second: Callable[[], None] = lambda: None
        self.began: list[float] = []
        self.ended: list[float] = []

    def __call__(self, frame: DataFrame, delivery: Any) -> None:
        self.began.append(time.monotonic())
        if len(self.began) == 2:
            self.at_second()
        rows = [(delivery.slot, row["user"], row["seconds"]) for row in frame.collect()]
        self.rows += [row for row in rows if row not in self.rows]
        self.ended.append(time.monotonic())


def comes_too_late(answers: threading.Event) -> None:
    """An answer for which nobody waits any more."""
    answers.wait(280)
    raise ConnectionError("the answer came too late")


def counts(deliveries: Deliveries) -> list[tuple[int, float]]:
    return sorted((user, count) for _, user, count in deliveries.rows)


ALL = [(user, float(n)) for user in (1, 2) for n in (1, 2, 3, 4)]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each batch began to be evaluated."""
    begins: list[float] = []
    split = OpenInputs.split

    def noted(inputs: OpenInputs, frame: DataFrame) -> Any:
        begins.append(time.monotonic())
        return split(inputs, frame)

    monkeypatch.setattr(OpenInputs, "split", noted)
    return begins


@pytest.mark.slow
def test_with_two_in_flight_the_next_batch_is_evaluated_during_a_delivery_and_all_arrive_in_order(
    spark: SparkSession, bench: Workbench, evaluated: list[float]
) -> None:
    deliveries = Deliveries()

    def until_the_third_begins() -> None:
        for _ in range(6000):
            if len(evaluated) > 2:
                return
            time.sleep(0.01)

    deliveries.at_second = until_the_third_begins
    report = bench.run(pipeline(bench, deliveries, "append", "upsert"), max_concurrent_checkpoints=2)
    assert evaluated[2] < deliveries.ended[1]
    assert (counts(deliveries), report.batches) == (ALL, 4)
    slots = [slot for slot, _, _ in deliveries.rows]
    assert slots == sorted(slots)
    # No record is decided before the one below it is complete, whatever is evaluated meanwhile.
    log = bench.job("orders").log()
    assert [r.sinks["out"].prev for r in log.chain if "out" in r.sinks][1:] == [
        r.slot for r in log.chain if "out" in r.sinks
    ][:-1]
    assert contents(spark, bench.folder / "appended", "user", "seconds") == ALL
    assert contents(spark, bench.folder / "newest", "user", "seconds") == [(1, 4.0), (2, 4.0)]


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the third batch is prepared."""
    prepare, prepared, ended = FunctionSink.prepare, [], threading.Event()

    def noted(sink: FunctionSink, *given: Any) -> Prepared:
        made = prepare(sink, *given)
        prepared.append(made)
        if len(prepared) == 3:
            ended.set()
        return made

    monkeypatch.setattr(FunctionSink, "prepare", noted)
    return ended


@pytest.mark.slow
def test_a_sink_is_asked_when_the_record_before_is_complete(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, third: threading.Event
) -> None:
    deliveries, job = Deliveries(), bench.job("orders")
    asked: list[tuple[int, int, tuple[Any, ...]]] = []
    too_early = threading.Event()

    def check(sink: FunctionSink, prepared: Prepared, at: SinkSlot, stager: Any) -> None:
        log = job.log()
        asked.append((at.slot, log.next_slot, log.pending))
        if len(asked) == 3:
            too_early.set()

    def while_the_third_is_prepared() -> None:
        assert third.wait(120)
        assert not too_early.wait(0.5)

    deliveries.at_second = while_the_third_is_prepared
    monkeypatch.setattr(FunctionSink, "check", check)
    bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=2)
    assert counts(deliveries) == ALL
    assert [(slot == next_slot, pending) for slot, next_slot, pending in asked] == [(True, ())] * 4


@pytest.mark.slow
def test_what_a_sink_refuses_when_it_is_asked_is_not_decided(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries = Deliveries()

    def refuses(sink: FunctionSink, prepared: Prepared, at: SinkSlot, stager: Any) -> None:
        if deliveries.began:
            raise IncompatibleError("the target has these rows")

    with monkeypatch.context() as patched:
        patched.setattr(FunctionSink, "check", refuses)
        with refused(IncompatibleError, "the target has these rows"):
            bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=2)
    assert bench.job("orders").log().pending == ()
    assert len(deliveries.began) == 1
    bench.run(pipeline(bench, deliveries))
    assert counts(deliveries) == ALL


@pytest.mark.slow
def test_a_run_goes_round_undone_versions_once_its_last_batch_is_delivered(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the table `a` the job has read minute 30; what came at minute 70 is undone."""
    moves, delivered = threading.Event(), list[int]()
    move = SourceRecords.move

    def seen(records: SourceRecords, *given: Any) -> None:
        moves.set()
        move(records, *given)

    def slowly(frame: DataFrame, delivery: sf.Delivery) -> None:
        moves.wait(20)
        time.sleep(0.5)
        delivered.extend(row["ts"].minute for row in frame.collect())

    @sf.pipeline("tables")
    def tables(flow: sf.Flow) -> None:
        source = sf.delta(str(path), options={"maxFilesPerTrigger": 1})
        flow.source("a", source, Visit).for_each_batch("out", slowly)

    def add(*minutes: int) -> None:
        for minute in minutes:
            by_hand.append(path, [(1, "home", 1.0, at(minute))], by_hand.columns(VISIT))

    path = bench.folder / "a"
    add(30)
    moves.set()
    bench.run(tables)
    moves.clear()
    add(40, 50)
    by_hand.go_back(path, 1)
    add(55)
    monkeypatch.setattr(SourceRecords, "move", seen)
    bench.run(tables, max_concurrent_checkpoints=2)
    assert delivered == [30, 40, 55]
    assert [r.statistics["undone_by"] for r in bench.records("tables") if "undone_by" in r.statistics] == [
        {"a": 3}
    ]


@pytest.mark.slow
def test_with_one_in_flight_no_batch_is_evaluated_during_a_delivery(
    bench: Workbench, evaluated: list[float]
) -> None:
    deliveries = Deliveries()
    deliveries.at_second = lambda: time.sleep(0.5)
    bench.run(pipeline(bench, deliveries))
    assert counts(deliveries) == ALL
    assert all(begin > end for begin, end in zip(evaluated[1:], deliveries.ended, strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_a_delivery_that_fails_ends_the_run_and_the_next_one_delivers_it_once(
    bench: Workbench, evaluated: list[float], most: int
) -> None:
    deliveries = Deliveries()
    deliveries.at_second = is_away
    with refused(StateflowError, "the service is away"):
        bench.run(
            pipeline(bench, deliveries),
            max_concurrent_checkpoints=most,
            tolerable_failed_batches=3,
            failure_backoff="1 ms",
        )
    assert len(deliveries.began) == 2
    assert len(evaluated) <= most + 1, "no batch is tried again"
    bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=most)
    assert counts(deliveries) == ALL


def is_away() -> None:
    raise ConnectionError("the service is away")


def test_a_batch_that_waits_for_a_delivery_that_failed_is_not_tried_again(
    bench: Workbench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who looks at deliveries while batches run would as a rule end the run first.
    monkeypatch.setattr(InFlight, "look", lambda *_: None)
    deliveries = Deliveries()
    deliveries.at_second = is_away
    with refused(StateflowError, "the service is away"):
        bench.run(
            pipeline(bench, deliveries),
            max_concurrent_checkpoints=2,
            tolerable_failed_batches=3,
            failure_backoff="1 ms",
        )
    assert "again in" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_a_decision_that_fails_before_anything_is_written_is_tried_again(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    deliveries, failed = Deliveries(), fail_once(monkeypatch, slot=4)
    bench.run(
        pipeline(bench, deliveries),
        max_concurrent_checkpoints=most,
        tolerable_failed_batches=1,
        failure_backoff="1 ms",
    )
    assert failed == [4]
    assert counts(deliveries) == ALL


@contextmanager
def _short_deadline(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[], bool]) -> Iterator[None]:
    """A deadline of a second for who waits while something hangs, and none that a busy machine could miss elsewhere."""
    wait = Passage.wait

    def waits(passage: Passage, *, to_the_end: bool, seconds: float | None) -> None:
        for _ in range(2800):
            if passage.has_ended or hangs() or (passage.is_decided and not to_the_end):
                break
            time.sleep(0.1)
        wait(passage, to_the_end=to_the_end, seconds=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Passage, "wait", waits)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_a_delivery_that_hangs_ends_the_run_at_its_deadline_and_the_next_one_delivers_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    deliveries, answers = Deliveries(), threading.Event()

    deliveries.at_second = lambda: comes_too_late(answers)
    late = "is decided, and its sinks have not taken it within batch_deadline"
    with (
        _short_deadline(monkeypatch, lambda: len(deliveries.began) == 2),
        pytest.raises(UnavailableError, match=late),
    ):
        bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=most)
    bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=most)
    assert counts(deliveries) == ALL
    answers.set()


def test_a_last_delivery_that_hangs_ends_a_run_that_has_nothing_more_to_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, deliveries, answers = Workbench(spark, tmp_path), Deliveries(), threading.Event()
    for minute in range(2):
        bench.rows("visits", [Visit(1, "home", 1.0, at(minute))])
    time_left = RunDeliveries._time_left

    deliveries.at_second = lambda: comes_too_late(answers)
    monkeypatch.setattr(
        RunDeliveries, "_time_left", lambda own: 0.0 if len(deliveries.began) == 2 else time_left(own)
    )
    with refused(UnavailableError, "is decided", "batch_deadline"):
        bench.run(pipeline(bench, deliveries), max_concurrent_checkpoints=2, trigger="until-stopped")
    answers.set()
    bench.run(pipeline(bench, deliveries))
    assert counts(deliveries) == [(1, 1.0), (1, 2.0)]


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_a_delivery_that_fails_since_a_newer_run_has_cleaned_up_says_who_has_the_job(
    spark: SparkSession, tmp_path: Path, most: int
) -> None:
    bench, other = Workbench(spark, tmp_path), Workbench(spark, tmp_path)
    for minute in range(2):
        bench.rows("visits", [Visit(1, "home", 1.0, at(minute))])
    deliveries, others = Deliveries(), Deliveries()

    def is_taken_over() -> None:
        other.run(pipeline(bench, others), takeover=True)
        raise FileNotFoundError("the staged rows")

    deliveries.at_second = is_taken_over
    # Its heart does not notice it meanwhile.
    with refused(FencedError, "epoch 2", "this run's 1", "do not retry"):
        bench.run(
            pipeline(bench, deliveries),
            max_concurrent_checkpoints=most,
            heartbeat_interval="1 minute",
            heartbeat_timeout="2 minutes",
        )
    assert counts(deliveries) + counts(others) == [(1, 1.0), (1, 2.0)]


def test_a_store_that_hangs_at_the_decision_ends_the_run_and_the_next_one_finds_out(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries, answers, create = Deliveries(), threading.Event(), writing.create_once
    hung: list[str] = []

    def hangs(store: Any, path: str, body: bytes) -> bytes:
        stored = create(store, path, body)
        if path == JobLayout("orders").pending(4) and not hung:
            hung.append(path)
            comes_too_late(answers)
        return stored

    monkeypatch.setattr(writing, "create_once", hangs)
    unknown = "has not said within batch_deadline whether record 4 .* is decided"
    with _short_deadline(monkeypatch, lambda: bool(hung)), pytest.raises(UnavailableError, match=unknown):
        bench.run(pipeline(bench, deliveries))
    bench.run(pipeline(bench, deliveries))
    assert counts(deliveries) == ALL
    answers.set()

"""A source is silent for as long as somebody has looked and found nothing. No row is late because nobody looked."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.errors import StateflowError
from stateflow.format.records import PartitionTime, SourceState
from stateflow.jobs.job import Job
from stateflow.spark import runner
from stateflow.spark.batches.batch import Batch
from stateflow.spark.inputs.observations import Observation
from stateflow.spark.inputs.silence import Looking, is_read_through, looked_into, recorded_sources
from stateflow.spark.inputs.watermark import advanced
from stateflow.spark.queries import Queries
from stateflow.spark.runner import RunReport
from stateflow.spark.session.shipping import by_value
from tests.jobs.log import record
from tests.spark import by_hand, pipelines
from tests.spark.pipelines import ORDER, Order, Workbench, at
from tests.spark.test_api_time import Clock

MINUTE = 60_000_000
HOUR = 60 * MINUTE
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MICROS = round(NOON.timestamp() * 1e6)
LATER, EARLIER = NOON + timedelta(hours=1), NOON - timedelta(hours=1)


# ---- what a run looks into ----


@pytest.mark.parametrize(
    ("until", "newest", "looked"),
    [
        (None, (), {"a": 0, "b": 0}),
        (EARLIER, (), {"a": -HOUR, "b": -HOUR}),
        (LATER, (), {"a": 0, "b": 0}),  # what will come by then is not there yet
        ({"a": LATER}, (), {"a": 0}),  # nobody reads b
        ({"a": LATER, "b": EARLIER}, (), {"a": 0, "b": -HOUR}),
        ({"a": LATER, "b": 7}, (), {"a": 0}),  # versions may follow the seventh
        ({"a": LATER, "b": 7}, ("b",), {"a": 0, "b": 0}),
        (7, (), {}),
        (NOON.replace(tzinfo=None), (), {}),  # the sources refuse it
        ({}, (), {}),
    ],
)
def test_a_run_looks_into_the_sources_that_it_reads_up_to_their_bounds(
    until: Any, newest: tuple[str, ...], looked: dict[str, int]
) -> None:
    found = looked_into(["a", "b"], NOON_MICROS, until, newest)
    assert {uid: time - NOON_MICROS for uid, time in found.items()} == looked


def quiet(looked: int, silent: int, **more: Any) -> SourceState:
    return SourceState(("-",), active=looked - silent, looked=looked, silent=silent, **more)


Step = tuple[str, Any]


def waits(now: int) -> Step:
    return "was_idle", now


@pytest.mark.parametrize(
    ("steps", "now", "silent"),
    [
        # The record has looked into both at 100, and b had had no rows for 10.
        ([], 900, {"a": 0, "b": 10}),
        # A run that ends by itself knows nothing until it has ended, and then what was there as it began.
        ([("begin", {"a": 500, "b": 500})], 900, {"a": 0, "b": 10}),
        ([("begin", {"a": 500, "b": 500}), ("reached_end", None)], 900, {"a": 400, "b": 410}),
        ([("begin", {"a": 500}), ("reached_end", None)], 900, {"a": 400, "b": 10}),
        ([("begin", {"a": 50, "b": 500}), ("reached_end", None)], 900, {"a": 0, "b": 410}),
        # Two queries, of which the second one did not end.
        (
            [("begin", {"a": 500, "b": 500}), ("reached_end", None), ("begin", {"a": 700, "b": 700})],
            900,
            {"a": 400, "b": 410},
        ),
        # One without end knows what was there when it has looked since, and has found nothing. It was seen to wait twice after that.
        ([("begin_without_end", (0, 150))], 900, {"a": 0, "b": 10}),
        ([("begin_without_end", (0, 150)), waits(900)], 900, {"a": 0, "b": 10}),
        ([("begin_without_end", (0, 150)), waits(899), waits(900)], 900, {"a": 0, "b": 10}),
        ([("begin_without_end", (0, 150)), *map(waits, (898, 899, 900))], 900, {"a": 798, "b": 808}),
        ([("begin_without_end", (300, 150)), *map(waits, (898, 899, 900))], 900, {"a": 498, "b": 508}),
        # Nobody looks while a batch runs, nor between two triggers.
        ([("begin_without_end", (0, 150)), ("ended_batch", 850)], 900, {"a": 0, "b": 10}),
        (
            [("begin_without_end", (0, 150)), ("ended_batch", 850), *map(waits, (898, 899, 900))],
            900,
            {"a": 48, "b": 58},
        ),
        (
            [("begin_without_end", (0, 150)), *map(waits, (198, 199, 200)), ("ended_batch", 850)],
            900,
            {"a": 0, "b": 10},
        ),
        (
            [("begin_without_end", (30, 150)), ("ended_batch", 850), *map(waits, (898, 899, 900))],
            900,
            {"a": 18, "b": 28},
        ),
        (
            [("begin_without_end", (300, 150)), ("ended_batch", 850), *map(waits, (898, 899, 900))],
            900,
            {"a": 0, "b": 10},
        ),
        # Nor does a process that sleeps, or that waits for an answer. What it goes on with at 890 may be what it saw at 230.
        (
            [("begin_without_end", (0, 150)), ("ended_batch", 200), *map(waits, (210, 220, 230))],
            890,
            {"a": 10, "b": 20},
        ),
        (
            [("begin_without_end", (0, 150)), ("ended_batch", 200), *map(waits, (210, 220, 230, 890, 891))],
            891,
            {"a": 30, "b": 40},
        ),
        # Once it has looked again, it has seen what came meanwhile, if anything.
        (
            [("begin_without_end", (0, 150)), ("ended_batch", 200), *map(waits, (230, 890, 891, 892))],
            892,
            {"a": 690, "b": 700},
        ),
        # On a busy machine each look comes late.
        (
            [("begin_without_end", (0, 150)), ("ended_batch", 200), *map(waits, range(300, 901, 100))],
            900,
            {"a": 500, "b": 510},
        ),
        # A second query without end begins anew.
        (
            [
                ("begin_without_end", (0, 150)),
                ("ended_batch", 200),
                *map(waits, (300, 400, 500)),
                ("begin_without_end", (0, 600)),
            ],
            900,
            {"a": 0, "b": 10},
        ),
        # The clock of the host went back.
        ([("begin_without_end", (0, 150)), *map(waits, (898, 899, 900))], 80, {"a": 0, "b": 10}),
    ],
)
def test_silence_grows_as_somebody_looks(steps: list[Step], now: int, silent: dict[str, int]) -> None:
    looking = Looking(("a", "b"))
    for name, given in steps:
        step = getattr(looking, name)
        if given is None:
            step()
        else:
            step(*given) if isinstance(given, tuple) else step(given)
    known = looking.known({"a": quiet(100, 0), "b": quiet(100, 10)}, now)
    assert {uid: each.silent for uid, each in known.items()} == silent


def test_nobody_looks_into_a_source_that_waits() -> None:
    looking = Looking(("a", "b"))
    looking.begin_without_end(0, 150)
    for now in (900, 901, 902):
        looking.was_idle(now)
    known = looking.known({"a": quiet(100, 0), "b": quiet(100, 10)}, 902, {"b": "a"})
    assert [each.silent for each in known.values()] == [800, 10]


def test_a_batch_looks_until_its_run_began_or_its_query_began_to_look_for_it() -> None:
    looking = Looking(("a", "b"))
    looking.begin({"a": 500})
    assert looking.of_batch(900) == {"a": 500}, "what came meanwhile is for the next run"
    looking.begin_without_end(300, 600)
    assert looking.of_batch(900) == {"a": 600, "b": 600}
    looking.was_idle(880)
    assert looking.of_batch(900) == {"a": 880, "b": 880}, "one source may have answered long before another"
    looking.ended_batch(920)
    assert looking.of_batch(990) == {"a": 920, "b": 920}
    assert looking.of_batch(910) == {"a": 910, "b": 910}, "the clock of the host went back"


# ---- what a batch makes of it ----


DELTA = '{"sourceVersion":1,"reservoirId":"t","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'
FILE = '{"logOffset":%d}'
TOPIC = '{"orders":{"0":%d,"1":3,"2":%d}}'


@pytest.mark.parametrize(
    ("before", "after", "through"),
    [
        (DELTA % 3, DELTA % 3, True),
        (DELTA % 3, DELTA % 4, False),  # a commit without rows, and the limit of a batch: others may follow
        (FILE % 3, FILE % 4, False),
        (TOPIC % (3, 3), TOPIC % (4, 3), False),
        ("-", "-", True),
        ("-", FILE % 0, False),
        ("12", "13", True),  # a source of Spark's whose offset is a time
        (None, DELTA % 3, False),
    ],
)
def test_a_source_that_moved_without_rows_may_have_more(
    before: str | None, after: str, through: bool
) -> None:
    known = None if before is None else SourceState((before,))
    assert is_read_through(SourceState((after,)), known) is through
    assert is_read_through(SourceState((after,)), known, cuts_batches=True) is (through and before == after)


def after_batch(
    states: Mapping[str, SourceState], looked: Mapping[str, int], **rows: Observation
) -> dict[str, tuple[int | None, int]]:
    """Per source until when somebody has looked, and its silence."""
    moved = {
        uid: structs.replace(state, lines=(FILE % 9,)) if uid in rows else state
        for uid, state in states.items()
    }
    found = advanced(moved, rows, 1000, before=states, looked=looked)
    return {uid: (state.looked, state.silent) for uid, state in found.items()}


def test_rows_end_a_silence_and_looking_prolongs_it() -> None:
    states = {"a": quiet(100, 10), "b": quiet(100, 10), "c": quiet(100, 10)}
    found = after_batch(states, {"a": 600, "b": 600}, a=Observation(1, 5), c=Observation(1, 5))
    assert found == {"a": (600, 0), "b": (600, 510), "c": (100, 0)}
    assert after_batch(states, {}, a=Observation(0, None)) == dict.fromkeys("abc", (100, 10))
    assert after_batch(states, {"b": 50})["b"] == (100, 10), "a bound that lies behind"
    assert after_batch(states, {"b": 600}, b=Observation(0, None))["b"] == (100, 10), "it may have more"


def test_a_source_without_a_first_row_is_silent_from_its_first_batch_on() -> None:
    """By the bounds of a backfill, which lie long before the times of its records."""
    first = advanced({"a": SourceState(("-",))}, {}, 1000, looked={"a": 600})
    assert (first["a"].looked, first["a"].silent) == (600, 0)
    assert after_batch(first, {"a": 900}) == {"a": (900, 300)}


def test_of_a_topic_each_partition_is_silent_by_itself() -> None:
    partitions = {f"orders/{n}": PartitionTime(5, 90, 10) for n in range(3)}
    before = structs.replace(quiet(100, 0, partitions=partitions), lines=(TOPIC % (3, 3),))
    after = structs.replace(before, lines=(TOPIC % (4, 4),))
    rows = Observation(1, 7, partitions={"orders/0": 7})
    found = advanced({"a": after}, {"a": rows}, 1000, before={"a": before}, looked={"a": 600})["a"]
    assert found.partitions == {
        "orders/0": PartitionTime(7, 1000, 0),
        "orders/1": PartitionTime(5, 90, 510),
        "orders/2": PartitionTime(5, 90, 10),  # of the messages that were read there none was a row
    }


def test_a_record_from_before_this_was_noted_has_looked_at_its_time() -> None:
    old = SourceState(("-",), active=40, partitions={"t/0": PartitionTime(5, 30)})
    given = {"old": old, "new": quiet(70, 20), "never": SourceState(("-",))}
    found = recorded_sources(record(1, now=100, sources=given))
    assert {uid: (each.looked, each.silent) for uid, each in found.items()} == {
        "old": (100, 60),
        "new": (70, 20),
        "never": (100, 0),
    }
    assert found["old"].partitions["t/0"].silent == 70


# ---- runs ----


def order(minute: float) -> Order:
    return Order(1, "a", 1.0, at(minute))


@dataclasses.dataclass
class Pair:
    """A job of two sources. `b` has had a row of minute 3, when `a` was at minute 30."""

    bench: Workbench
    clock: Clock
    late: Any

    def pipeline(self, *uids: str) -> sf.Pipeline:
        @sf.pipeline("pair")
        def pair(flow: sf.Flow) -> None:
            for uid in uids or ("a", "b"):
                side = sf.output("late", Order)
                rows = flow.source(
                    uid,
                    self.bench.source(uid, ORDER),
                    Order,
                    event_time="ts",
                    watermark="1 minute",
                    late=side,
                )
                rows.collect(f"out-{uid}", sf.memory(f"pair-{uid}"))
                rows.side(side).collect(f"late-{uid}", self.late)

        return pair

    def begin(self) -> None:
        self.rows("b", 3)
        self.rows("a", 30)
        self.run()

    def rows(self, uid: str, minute: float) -> None:
        self.bench.rows(uid, [order(minute)])

    def run(self, **options: Any) -> RunReport:
        return self.bench.run(self.pipeline(), **options)

    def watermarks(self) -> list[float | None]:
        """Of the batches so far, in minutes."""
        start = at(0).timestamp() * 1e6
        return [
            None if each.watermark is None else (each.watermark - start) / MINUTE
            for each in self.bench.records("pair")
            if "positions" not in each.statistics
        ]

    def late_minutes(self) -> list[float]:
        return sorted((row["ts"] - at(0)).total_seconds() / 60 for row in self.late.rows)

    def ends_well(self) -> None:
        """The next run finds what waits in `b`, of minute 5, and nothing of it is late."""
        self.run()
        assert self.late_minutes() == []
        ours = self.bench.records("pair")[-1].sources["b"]
        assert ours.event_time == round(at(5).timestamp() * 1e6), "its row was read"


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """As it is after its first run. Beside its folder lies a copy that no test changes."""
    by_value([pipelines])
    bench, clock = Workbench(spark, tmp_path_factory.mktemp("pair")), Clock()
    made = Pair(bench, clock, sf.memory("pair-late"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "_micros", clock)
        made.begin()
    shutil.copytree(bench.folder, copy_of(bench.folder))
    return made


def copy_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-copy")


@pytest.fixture
def pair(begun: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """In the folder of the first run: records say where the files are that were read."""
    shutil.rmtree(begun.bench.folder)
    shutil.copytree(copy_of(begun.bench.folder), begun.bench.folder)
    made = Pair(dataclasses.replace(begun.bench), dataclasses.replace(begun.clock), begun.late)
    monkeypatch.setattr(runner, "_micros", made.clock)
    for table in ("pair-a", "pair-b", "pair-late"):
        sf.memory(table).clear()
    return made


def during(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], None]) -> None:
    """Something happens while a batch runs, the first one or a later one."""
    run_batch, batches = Batch.run, iter(range(1, 1000))

    def run(batch: Batch) -> Any:
        if next(batches) == number:
            happens()
        return run_batch(batch)

    monkeypatch.setattr(Batch, "run", run)


@pytest.mark.slow
def test_a_run_that_is_bounded_for_one_source_makes_the_other_one_no_later(pair: Pair) -> None:
    """It takes place an hour later, has two batches of `a`, and leaves out what waits in `b`."""
    pair.rows("b", 5)
    pair.rows("a", 60)
    pair.rows("a", 90)
    pair.clock.now += HOUR
    held = pair.run(until={"a": datetime(2030, 1, 1, tzinfo=UTC)}).held
    assert held is not None
    assert held.source == "b"
    assert pair.watermarks()[-2:] == [2, 2]
    pair.clock.now += HOUR
    pair.ends_well()


@pytest.mark.slow
def test_what_comes_after_the_bound_of_a_source_is_not_late(pair: Pair) -> None:
    """The bound of `b` lies a minute after its last rows, and the run an hour after it."""
    before = pair.bench.records("pair")[-1].now
    bound = datetime.fromtimestamp((before + MINUTE) / 1e6, UTC)
    pair.clock.now += HOUR
    pair.rows("a", 60)
    pair.rows("a", 90)
    pair.run(until={"a": datetime(2030, 1, 1, tzinfo=UTC), "b": bound})
    pair.rows("b", 5)
    pair.ends_well()


def test_a_bounded_run_knows_what_there_was_up_to_its_bound(pair: Pair) -> None:
    """As each hour of a backfill does, and a run on time: `b` had nothing in the hour before the bound."""
    before = pair.bench.records("pair")[-1].now
    pair.clock.now += 2 * HOUR
    pair.rows("a", 60)
    pair.rows("a", 90)
    assert pair.run(until=datetime.fromtimestamp((before + HOUR) / 1e6, UTC)).held is None
    assert pair.watermarks()[-2:] == [2, 59]


@pytest.mark.slow
def test_what_comes_while_a_run_reads_is_not_late_in_the_next_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends by itself reads what was there when it began, and may take long."""

    def comes() -> None:
        pair.clock.now += HOUR
        pair.rows("b", 5)

    for minute in (60, 90, 120):
        pair.rows("a", minute)
    with monkeypatch.context() as patched:
        during(patched, 1, comes)
        assert pair.run().batches == 3
    assert pair.watermarks()[-3:] == [2, 2, 2]
    pair.ends_well()


def test_the_time_that_a_run_takes_to_begin_makes_no_row_late(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.rows("a", 60)
    pair.run()
    pair.rows("b", 5)
    pair.rows("a", 90)
    begins = Queries.run

    def slowly(queries: Queries) -> str:
        pair.clock.now += HOUR
        return begins(queries)

    monkeypatch.setattr(Queries, "run", slowly)
    pair.ends_well()


def test_what_comes_while_a_batch_is_tried_again_is_not_late(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run without end: its second batch looks when it is planned, and not when its last try begins."""
    run_batch, tries = Batch.run, iter(range(1, 1000))

    def run(batch: Batch) -> Any:
        number = next(tries)
        if number == 1:
            pair.clock.now += HOUR
            pair.rows("b", 5)
            raise StateflowError("the disk is full")
        if number == 2:
            pair.rows("a", 90)
        return run_batch(batch)

    monkeypatch.setattr(Batch, "run", run)
    pair.rows("a", 60)
    pair.run(trigger="until-stopped", stop_after=2, tolerable_failed_batches=1, failure_backoff="1 ms")
    assert pair.late_minutes() == []
    assert pair.bench.records("pair")[-1].sources["b"].event_time == round(at(5).timestamp() * 1e6)


def test_what_comes_while_the_driver_sleeps_is_not_late(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run without end, which has waited for a moment before."""
    was_idle, times = Looking.was_idle, iter(range(1, 1000))

    def slept(looking: Looking, now: int) -> None:
        was_idle(looking, now)
        if next(times) == 4:
            pair.rows("b", 5)
            pair.clock.now += HOUR

    monkeypatch.setattr(Looking, "was_idle", slept)
    pair.rows("a", 60)
    pair.run(trigger="until-stopped", stop_after=2)
    assert pair.late_minutes() == []
    assert pair.bench.records("pair")[-1].sources["b"].event_time == round(at(5).timestamp() * 1e6)


def test_a_quiet_source_becomes_idle_in_a_run_without_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes, and some moments later `a` has a row."""
    was_idle, times = Looking.was_idle, iter(range(1, 1000))

    def passes(looking: Looking, now: int) -> None:
        was_idle(looking, now)
        number = next(times)
        if number == 4:
            pair.clock.now += HOUR
        if number == 8:
            pair.rows("a", 90)

    monkeypatch.setattr(Looking, "was_idle", passes)
    pair.rows("a", 60)
    pair.run(trigger="until-stopped", stop_after=2)
    assert pair.watermarks()[-2:] == [2, 59]


def test_an_empty_file_is_no_silence_of_what_waits_behind_it(pair: Pair) -> None:
    """The source takes one file a batch."""
    pair.bench.rows("b", [])
    pair.rows("b", 5)
    pair.rows("a", 60)
    pair.rows("a", 90)
    pair.clock.now += HOUR
    pair.ends_well()


def test_a_run_that_finds_an_empty_file_alone_sees_the_silence_at_its_end(pair: Pair) -> None:
    pair.bench.rows("b", [])
    pair.rows("a", 60)
    pair.clock.now += HOUR
    assert pair.run().held is None


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "watermark"), [(0, 2), (4, 59)])
def test_a_run_goes_on_from_a_record_from_before_this_was_noted(
    minutes: int, watermark: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes after the record, in which `b` has had no rows for some time."""
    decide = Writer.decide

    def as_before(writer: Writer, draft: Draft) -> CommitPermit:
        plain = {uid: structs.replace(s, looked=None, silent=0) for uid, s in draft.sources.items()}
        return decide(writer, structs.replace(draft, sources=plain))

    pair.clock.now += minutes * MINUTE
    pair.rows("a", 40)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "decide", as_before)
        pair.run()
    assert pair.bench.records("pair")[-1].sources["b"].looked is None
    pair.clock.now += 2 * MINUTE
    pair.rows("a", 60)
    pair.rows("a", 90)
    pair.run()
    assert pair.watermarks()[-2:] == [2, watermark]


@pytest.mark.slow
def test_a_source_that_is_added_waits_for_no_rows_longer_than_the_timeout(pair: Pair) -> None:
    (pair.bench.folder / "c").mkdir()
    three = pair.pipeline("a", "b", "c")
    pair.rows("b", 40)
    pair.rows("a", 60)
    pair.bench.run(three)
    assert pair.watermarks()[-1] is None, "nobody knows yet that c has nothing"
    pair.clock.now += HOUR
    pair.rows("b", 50)
    pair.rows("a", 90)
    pair.rows("a", 95)
    pair.bench.run(three)
    assert pair.watermarks()[-1] == 49


def delta(bench: Workbench, name: str, *minutes: float) -> str:
    """A version of the table for each minute."""
    for minute in minutes:
        by_hand.append(bench.folder / name, [(1, "a", 1.0, at(minute))], by_hand.columns(ORDER))
    return str(bench.folder / name)


@dataclasses.dataclass
class Tables:
    """A job of two Delta tables. `b` has had a row of minute 3, when `a` was at minute 30."""

    bench: Workbench
    clock: Clock
    late: Any

    @property
    def pipeline(self) -> sf.Pipeline:
        @sf.pipeline("tables")
        def tables(flow: sf.Flow) -> None:
            for uid in ("a", "b"):
                side = sf.output("late", Order)
                table = sf.delta(str(self.bench.folder / uid), options={"maxFilesPerTrigger": 1})
                rows = flow.source(uid, table, Order, event_time="ts", watermark="1 minute", late=side)
                rows.collect(f"out-{uid}", sf.memory(f"tables-{uid}"))
                rows.side(side).collect(f"late-{uid}", self.late)

        return tables

    def b(self) -> SourceState:
        head = self.job.log().head
        assert head is not None
        return head.sources["b"]

    @property
    def job(self) -> Job:
        return self.bench.job("tables")

    def forget(self) -> None:
        """A restore that resets the watermark."""
        self.job.restore("latest", self.pipeline, options=self.bench.options(), reset_watermark=True).apply()

    def ends_well(self, **options: Any) -> None:
        """`b` gets a row of minute 5, and it is not late."""
        delta(self.bench, "b", 5)
        self.bench.run(self.pipeline, **options)
        assert list(self.late.rows) == []
        assert self.b().event_time == round(at(5).timestamp() * 1e6), "its row was read"


@pytest.fixture
def tables(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Tables:
    clock = Clock()
    monkeypatch.setattr(runner, "_micros", clock)
    made = Tables(bench, clock, sf.memory("tables-late"))
    made.late.clear()
    delta(bench, "a", 30)
    delta(bench, "b", 3)
    bench.run(made.pipeline)
    return made


@pytest.mark.slow
def test_going_round_undone_versions_of_one_table_makes_no_row_of_another_late(tables: Tables) -> None:
    """The record that says so, an hour after the last batch, has looked into no source."""
    path = delta(tables.bench, "a", 60, 70)
    by_hand.go_back(Path(path), 1)
    delta(tables.bench, "a", 90)
    before = tables.b()
    tables.clock.now += HOUR
    tables.ends_well()
    moved = [each for each in tables.bench.records("tables") if "undone_by" in each.statistics]
    assert [(each.sources["b"].looked, each.sources["b"].silent) for each in moved] == [
        (before.looked, before.silent)
    ]
    assert moved[0].now > (before.looked or 0) + HOUR


@pytest.mark.slow
def test_a_version_is_no_bound_of_time(tables: Tables) -> None:
    """`b` is read up to its first version, an hour after it had rows. Only if there is no other it had none."""
    tables.clock.now += HOUR
    delta(tables.bench, "a", 60, 70)
    assert tables.bench.run(tables.pipeline, until={"a": 1, "b": 0}).held is None
    delta(tables.bench, "b", 100)
    tables.bench.run(tables.pipeline)
    watermark = tables.bench.records("tables")[-1].watermark
    tables.clock.now += HOUR
    delta(tables.bench, "b", 95)
    delta(tables.bench, "a", 130, 150)
    held = tables.bench.run(tables.pipeline, until={"a": 4, "b": 1}).held
    assert held is not None
    assert held.source == "b"
    assert tables.bench.records("tables")[-1].watermark == round(at(99).timestamp() * 1e6) != watermark


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["checkpoint", "canonical"])
def test_a_job_that_goes_back_reads_first_what_has_gathered(origin: str, tables: Tables) -> None:
    """To where it was an hour ago, when `b` had had no rows for a moment, whatever the job has seen since."""
    bench, job = tables.bench, tables.job
    delta(bench, "a", 60)
    bench.run(tables.pipeline)
    newest = bench.records("tables")[-1]
    place = f"checkpoint:{newest.slot}"
    if origin != "checkpoint":
        place = job.savepoint(origin, options=bench.options(), to=str(bench.folder / "saved")).url  # type: ignore[call-overload]
    tables.clock.now += HOUR
    delta(bench, "a", 70, 80)
    bench.run(tables.pipeline, retained_checkpoints=10)
    assert tables.b().silent > HOUR
    job.restore(place, tables.pipeline, options=bench.options()).apply()
    assert tables.b() == newest.sources["b"]
    tables.ends_well()


@pytest.mark.slow
def test_a_source_that_is_quiet_after_its_event_time_was_forgotten_becomes_idle(tables: Tables) -> None:
    """As after `--reset-watermark`: nobody knows when it had rows last."""
    tables.forget()
    tables.clock.now += HOUR
    delta(tables.bench, "a", 60, 70)
    assert tables.bench.run(tables.pipeline).held is None
    assert tables.bench.records("tables")[-1].watermark == round(at(59).timestamp() * 1e6)


@pytest.mark.slow
def test_a_time_that_is_still_to_come_is_told_with_the_way_back(tables: Tables) -> None:
    delta(tables.bench, "b", 60)
    years = timedelta(days=40 * 365) / timedelta(minutes=1)
    delta(tables.bench, "a", years)
    [warning] = tables.bench.run(tables.pipeline).warnings
    assert warning == (
        "source 'a': a row has the event time 2065-12-22 00:00, which is still to come, and the watermark goes by it: rows with true times "
        "will be late; correct the time where it is made, then take the watermark back with `stateflow restore tables FILE --from latest "
        "--reset-watermark`"
    )
    tables.clock.now += HOUR
    delta(tables.bench, "a", 70, 80, 90)
    assert tables.bench.run(tables.pipeline).warnings == ()
    assert [row["ts"] for row in tables.late.rows] == [at(80), at(90)], "once the other one is idle"
    tables.late.clear()
    tables.forget()
    delta(tables.bench, "a", 100, 110)
    delta(tables.bench, "b", 100)
    tables.bench.run(tables.pipeline)
    assert list(tables.late.rows) == []

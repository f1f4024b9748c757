"""Sources that are days apart: the one ahead waits, nothing is lost, and one that has ended or is silent holds nobody back for ever."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.records import SourceState
from stateflow.jobs.job import Job
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.alignment import nothing_waits, waiting
from stateflow.spark.inputs.silence import found_nothing
from stateflow.spark.runner import RunRequest, run
from tests.spark import by_hand
from tests.spark.pipelines import VISIT, Visit, Workbench, at

HOUR = 3600 * 1_000_000
NOW = 100 * HOUR
FILES = 7


@pytest.fixture
def flow() -> Flow:
    flow = Flow("apart")
    for uid in ("ahead", "behind", "middle"):
        flow.source(uid, lambda spark: spark, Visit, event_time="ts", watermark="1 hour")
    flow.source("timeless", lambda spark: spark, Visit)
    return flow


def states(**hours: tuple[float | None, float | None]) -> dict[str, SourceState]:
    """Per source the hour of its newest event, and the hour at which it had rows last."""
    return {
        uid: SourceState(
            lines=("-",),
            event_time=None if event is None else round(event * HOUR),
            active=None if active is None else round(active * HOUR),
        )
        for uid, (event, active) in hours.items()
    }


def shifted(given: dict[str, SourceState]) -> dict[str, SourceState]:
    """With the hours at which sources had rows counted from a hundred hours on, which no event time but that of the future reaches. Somebody
    has looked into all of them until then."""
    moved = {
        uid: structs.replace(each, active=each.active + NOW - 9 * HOUR, looked=each.active + NOW - 9 * HOUR)
        for uid, each in given.items()
        if each.active is not None
    }
    return given | found_nothing(moved, dict.fromkeys(moved, NOW))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (states(ahead=(40, 9), behind=(10, 9)), {"ahead": "behind"}),
        (states(ahead=(34, 9), behind=(10, 9)), {}),  # as far as it may be
        (states(ahead=(40, 9), behind=(10, 9), middle=(20, 9)), {"ahead": "behind"}),
        (states(ahead=(40, 9), behind=(10, 9), middle=(35, 9)), {"ahead": "behind", "middle": "behind"}),
        (
            states(ahead=(40, 1), behind=(10, 9)),
            {"ahead": "behind"},
        ),  # it has had no rows for long, as it waits
        (states(ahead=(40, 9), behind=(10, 7.9)), {}),  # idle: it holds nobody
        (states(ahead=(40, 7.9), behind=(10, 7.9)), {}),
        (states(ahead=(70, 9), behind=(10, 7.9), middle=(40, 9)), {"ahead": "middle"}),
        (states(ahead=(999, 9), behind=(80, 9)), {}),  # a time that is still to come
        (states(ahead=(40, 9), behind=(10, 8)), {"ahead": "behind"}),
        (states(ahead=(40, 9), behind=(None, None)), {}),  # it has had no rows: nobody knows where it is
        (states(ahead=(40, 9)), {}),
        (states(ahead=(40, 9), timeless=(None, 9)), {}),
        ({}, {}),
    ],
)
def test_who_is_ahead_waits(given: dict[str, SourceState], expected: dict[str, str], flow: Flow) -> None:
    assert waiting(flow, shifted(given), 24 * HOUR, NOW, HOUR) == expected


def test_without_an_idle_timeout_a_source_is_waited_for_however_long_it_is_silent(flow: Flow) -> None:
    given = states(ahead=(40, 9), behind=(10, 1))
    assert waiting(flow, shifted(given), 24 * HOUR, NOW, 0) == {"ahead": "behind"}


def test_a_source_that_has_ended_neither_waits_nor_is_waited_for(flow: Flow) -> None:
    given = shifted(states(ahead=(70, 9), behind=(10, 9), middle=(40, 9)))
    assert waiting(flow, given, 24 * HOUR, NOW, HOUR, {"behind"}) == {"ahead": "middle"}
    assert waiting(flow, given, 24 * HOUR, NOW, HOUR, {"behind", "middle"}) == {}


STEPS = {"ahead": timedelta(days=1), "behind": timedelta(hours=1)}
"""Of two sources: how much later the events of a file are than those of the one before."""


def add_files(bench: Workbench, name: str, step: timedelta, count: int = FILES) -> None:
    for number in range(count):
        bench.rows(name, [Visit(1, "home", 1.0, at(0) + number * step)])


def add_versions(folder: Path, name: str, step: timedelta, count: int = FILES) -> None:
    for number in range(count):
        by_hand.append(folder / name, [(1, "home", 1.0, at(0) + number * step)], by_hand.columns(VISIT))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sources as Delta tables, of which each test takes a copy."""
    folder = tmp_path_factory.mktemp("tables")
    for name, step in STEPS.items():
        add_versions(folder, name, step)
    return folder


@dataclass
class Sides:
    """A pipeline that reads two sources, with as many files each."""

    pipeline: sf.Pipeline
    bench: Workbench

    def came(self, name: str) -> int:
        """The rows of a source that have reached its sink."""
        return len(kept(self.bench, name).rows)


def kept(bench: Workbench, name: str) -> Any:
    return sf.memory(f"{bench.folder.name}-{name}")


class Ticks(sf.KeyedProcess[int, Visit, Visit]):
    """Has a batch without input every second."""

    tick = sf.Timer("processing")

    def process(self, key: int, rows: Iterator[Visit], ctx: sf.Context) -> None:
        for _ in rows:
            self.tick.set(timedelta(seconds=1))

    @tick.fires
    def ticked(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Visit]:
        self.tick.set(timedelta(seconds=1))
        yield Visit(key, "tick", 0.0, at)


def sides(spark: SparkSession, folder: Path, tables: Path | None, *, ticking: bool = False) -> Sides:
    """Of Delta tables, or else of files."""
    bench = Workbench(spark, folder)
    for name, step in STEPS.items():
        if tables is None:
            add_files(bench, name, step)
        else:
            shutil.copytree(tables / name, folder / name)

    def opened(name: str) -> Any:
        if tables is None:
            return bench.source(name, VISIT)
        return lambda spark: (
            spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(folder / name))
        )

    @sf.pipeline("apart")
    def apart(flow: sf.Flow) -> None:
        for name in STEPS:
            rows = flow.source(name, opened(name), Visit, event_time="ts", watermark="0 seconds")
            rows.collect(f"{name}-out", kept(bench, name))
            if ticking and name == "behind":
                ticks = rows.key_by("user").process("ticks", Ticks)
                ticks.collect("ticked", sf.memory("ticked"))

    return Sides(apart, bench)


def drifts(bench: Workbench) -> list[tuple[int, float]]:
    """Per batch the rows of the source that is ahead, and by how many hours it is."""
    told = []
    for report in bench.reports:
        times = {uid: source.event_time or 0 for uid, source in report.record.sources.items()}
        rows = report.record.statistics["source_rows"].get("ahead", 0)
        told.append((rows, (times["ahead"] - times["behind"]) / HOUR))
    return told


@pytest.mark.slow
def test_a_source_that_is_days_ahead_waits_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    made = sides(spark, tmp_path, None)
    made.bench.run(made.pipeline, target_batch_duration="5 minutes", max_source_drift="36 hours")
    told = drifts(made.bench)
    # Each batch has a file of both, until one is two days in, and the other two hours.
    assert told[:3] == [(1, 0.0), (1, 23.0), (1, 46.0)]
    assert told[3:FILES] == [(0, 48.0 - hour) for hour in range(3, FILES)]
    # Then the one that was waited for has ended.
    assert [rows for rows, _ in told[FILES:]] == [1] * (FILES - 3)
    waited = [report.record.statistics.get("waited") for report in made.bench.reports]
    assert waited == [None] * 3 + [{"ahead": "behind"}] * (FILES - 3) + [None] * (FILES - 3)
    assert (made.came("ahead"), made.came("behind")) == (FILES, FILES)


@pytest.mark.slow
def test_a_source_waits_in_the_next_run_too_and_however_long_its_batches_take(
    spark: SparkSession, tmp_path: Path, tables: Path
) -> None:
    made = sides(spark, tmp_path, tables)
    # Shorter than a batch: what waits has had no rows for longer.
    options = {"target_batch_duration": "5 minutes", "max_source_drift": "36 hours"}
    options["source_idle_timeout"] = "1 ms"
    made.bench.run(made.pipeline, stop_after=4, **options)
    assert [rows for rows, _ in drifts(made.bench)] == [1, 1, 1, 0]
    assert Job(str(tmp_path / "root"), "apart").status().waited == {"ahead": "behind"}
    made.bench.run(made.pipeline, stop_after=2, **options)
    assert [rows for rows, _ in drifts(made.bench)] == [0, 0]
    made.bench.run(made.pipeline, **options)
    told = drifts(made.bench)
    assert [rows for rows, _ in told] == [0] * (FILES - 6) + [1] * (FILES - 3)
    assert (made.came("ahead"), made.came("behind")) == (FILES, FILES)
    # There is nothing more of the one that was waited for, when a run begins.
    add_versions(tmp_path, "ahead", timedelta(days=2), 3)
    made.bench.run(made.pipeline, **options)
    assert [rows for rows, _ in drifts(made.bench)] == [1] * 3


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["drained", "bounded"])
def test_of_three_sources_two_still_wait_for_each_other_when_the_third_has_ended(
    bench: Workbench, bounded: bool, tmp_path: Path
) -> None:
    steps = {"ahead": timedelta(days=2), "middle": timedelta(hours=12), "short": timedelta(hours=1)}
    for name, step in steps.items():
        add_files(bench, name, step)

    @sf.pipeline("three")
    def three(flow: sf.Flow) -> None:
        for name in steps:
            rows = flow.source(name, bench.source(name, VISIT), Visit, event_time="ts", watermark="0 seconds")
            rows.collect(f"{name}-out", kept(bench, name))

    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "root"),
            "cache_dir": str(tmp_path / "cache"),
            "local_fsync": False,
            "target_batch_duration": "5 minutes",
            "max_source_drift": "36 hours",
        },
        env={},
        folder=tmp_path,
    )
    until = datetime.now().astimezone() if bounded else None
    run(RunRequest(three, options, until=until, listener=bench.reports.append))
    took = {
        name: [report.record.statistics["source_rows"].get(name, 0) for report in bench.reports]
        for name in steps
    }
    assert {name: sum(rows) for name, rows in took.items()} == dict.fromkeys(steps, FILES)
    last = {name: max(n for n, rows in enumerate(each) if rows) for name, each in took.items()}
    assert last["short"] < last["middle"] < last["ahead"]
    # Of 14 days and of 3.5 days: while the middle one is read, the other one is ahead by 36 hours and a batch at most.
    for report in bench.reports[: last["middle"]]:
        times = {uid: source.event_time or 0 for uid, source in report.record.sources.items()}
        assert (times["ahead"] - times["middle"]) / HOUR <= 36 + 48


@pytest.mark.slow
def test_rows_that_wait_are_not_late_when_the_other_source_jumps_ahead(bench: Workbench) -> None:
    hours = {"ahead": (0, 72, 96, 120), "behind": (0, 1, 2, 480)}
    for name, each in hours.items():
        for hour in each:
            bench.rows(name, [Visit(1, "home", 1.0, at(60 * hour))])

    @sf.pipeline("jump")
    def jump(flow: sf.Flow) -> None:
        for name in hours:
            late = sf.output(f"{name}-late", Visit)
            source = bench.source(name, VISIT)
            rows = flow.source(name, source, Visit, event_time="ts", watermark="0 seconds", late=late)
            rows.collect(f"{name}-out", kept(bench, f"{name}-out"))
            rows.side(f"{name}-late").collect(f"{name}-late", kept(bench, f"{name}-late"))

    # Shorter than a batch, so that who has had no rows in the last one is idle.
    options = {"max_source_drift": "36 hours", "source_idle_timeout": "1 ms"}
    bench.run(jump, target_batch_duration="5 minutes", **options)
    assert [rows for rows, _ in drifts(bench)][:4] == [1, 1, 0, 0]
    counts = {
        f"{name}-{kind}": len(kept(bench, f"{name}-{kind}").rows)
        for name in hours
        for kind in ("out", "late")
    }
    assert counts == {"ahead-out": 4, "ahead-late": 0, "behind-out": 4, "behind-late": 0}


@pytest.mark.slow
def test_without_the_option_none_waits(spark: SparkSession, tmp_path: Path) -> None:
    made = sides(spark, tmp_path, None)
    made.bench.run(made.pipeline, target_batch_duration="5 minutes")
    assert [rows for rows, _ in drifts(made.bench)] == [1] * FILES


@pytest.mark.slow
def test_a_bounded_run_lets_a_source_wait_and_reads_all_up_to_its_bound(
    spark: SparkSession, tmp_path: Path, tables: Path
) -> None:
    made = sides(spark, tmp_path, tables)
    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "root"),
            "cache_dir": str(tmp_path / "cache"),
            "local_fsync": False,
            "target_batch_duration": "5 minutes",
            "max_source_drift": "36 hours",
        },
        env={},
        folder=tmp_path,
    )
    run(RunRequest(made.pipeline, options, until=FILES - 2, listener=made.bench.reports.append))
    told = drifts(made.bench)
    assert told[:3] == [(1, 0.0), (1, 23.0), (1, 46.0)]
    assert [rows for rows, _ in told[3 : FILES - 1]] == [0] * (FILES - 4)
    assert sum(rows for rows, _ in told) == FILES - 1


@pytest.mark.slow
@pytest.mark.parametrize("ticking", [False, True], ids=["quiet", "with timers"])
def test_in_an_endless_run_a_silent_source_is_waited_for_until_it_is_idle(
    ticking: bool, spark: SparkSession, tmp_path: Path
) -> None:
    made = sides(spark, tmp_path, None, ticking=ticking)
    stop = threading.Event()
    code = {
        "checkpoint_dir": str(tmp_path / "root"),
        "cache_dir": str(tmp_path / "cache"),
        "local_fsync": False,
        "trigger": "until-stopped",
        "target_batch_duration": "5 minutes",
        "max_source_drift": "36 hours",
        "source_idle_timeout": "8 seconds",
    }
    seen: list[datetime] = []

    def listen(report: Any) -> None:
        made.bench.reports.append(report)
        seen.append(datetime.now().astimezone())
        if sum(each.record.statistics["source_rows"].get("ahead", 0) for each in made.bench.reports) == FILES:
            stop.set()

    # Without `cancel` the process that runs the tests would wait for it at its end.
    patience = threading.Timer(240, stop.set)
    patience.start()
    try:
        run(RunRequest(made.pipeline, load(code=code, env={}, folder=tmp_path), listener=listen, stop=stop))
    finally:
        patience.cancel()
    rows = [rows for rows, _ in drifts(made.bench) if rows is not None]
    assert sum(rows) == FILES
    assert 0 in rows


def test_a_pipeline_in_which_nothing_can_wait_is_told(flow: Flow) -> None:
    assert nothing_waits(flow) == []
    one = Flow("one")
    one.source("orders", lambda spark: spark, Visit)
    assert "no source has event_time=" in nothing_waits(one)[0]
    one.source("visits", lambda spark: spark, Visit, event_time="ts", watermark="1 hour")
    assert "only source 'visits' has event_time=" in nothing_waits(one)[0]

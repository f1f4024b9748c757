"""The end of a job that was cut off, and the end that was reached when nobody was told."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.control import INPUT_DRAINED, INTERRUPTED, JOB_DRAINED
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.config.options import load
from stateflow.errors import IncompatibleError, StateflowError, UnavailableError
from stateflow.format.records import Owner
from stateflow.liveness.heart import Heart
from stateflow.pipelines.loading import load_pipeline
from stateflow.spark import carry_out
from stateflow.spark.runner import RunRequest, _Run
from tests.jobs.made import ORDERS, PARAMETERS, REPOSITORY, MadeJob
from tests.refusals.refusal import refused
from tests.spark.pipelines import VISIT, Told, Visit, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")

TASK = Owner("r", dag_run="dag/1", task="run")


@pytest.mark.parametrize(
    ("writer", "pending", "drain", "refused"),
    [
        (
            TASK,
            False,
            True,
            False,
        ),  # its own earlier try was through, and its task died before it could say so
        (Owner("other"), True, True, False),  # decided, and not delivered
        (Owner("other"), False, True, True),
        (TASK, False, False, True),
    ],
)
def test_only_a_run_that_finishes_a_drain_may_follow_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: Owner,
    *,
    pending: bool,
    drain: bool,
    refused: bool,
) -> None:
    job = MadeJob(tmp_path)
    job.batch()
    job.final = True
    job.writer.owner = writer
    job.batch(carried_out=not pending)
    loaded = load_pipeline(str(ORDERS), REPOSITORY)
    options = load(code={"checkpoint_dir": str(tmp_path)}, env={}, folder=tmp_path)
    run = _Run(RunRequest(loaded.pipeline, options, PARAMETERS, job="orders", owner=TASK, drain=drain))
    if refused:
        with pytest.raises(IncompatibleError, match="was drained at checkpoint"):
            run._check_before_spark()
    else:
        run._check_before_spark()


class Silence(sf.KeyedProcess[int, Visit, Told]):
    """Tells of users who come no more."""

    end = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.end.set(row.ts + timedelta(hours=1))
        return ()

    @end.fires
    def gone(self, key: int, at: datetime, ctx: sf.Context) -> Any:
        yield Told(key, "gone")


def watching(
    bench: Workbench, uid: str, process: type[sf.KeyedProcess[int, Visit, Told]], told: Any
) -> sf.Pipeline:
    @sf.pipeline("users")
    def users(flow: sf.Flow) -> None:
        rows = flow.source(
            "visits", bench.source("visits", VISIT), Visit, event_time="ts", watermark="1 minute"
        )
        rows.key_by("user").process(uid, process).collect("told", told)

    return users


def drain_that_cannot_be_delivered(
    bench: Workbench, pipeline: sf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = carry_out.Sinks.carry_out

    def away(sinks: carry_out.Sinks, permit: CommitPermit, still_owner: Any) -> dict[str, str]:
        if permit.record.final:
            raise StateflowError("the table is away")
        return inner(sinks, permit, still_owner)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(carry_out.Sinks, "carry_out", away)
        with pytest.raises(StateflowError, match="the table is away"):
            bench.run(pipeline, drain=True)


def test_output_of_a_drain_that_could_not_be_delivered_is_delivered_by_the_next_run_of_it(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = sf.memory(tmp_path.name)
    bench.rows("visits", [Visit(1, "home", 1.0, at(0)), Visit(2, "home", 1.0, at(1))])

    users = watching(bench, "silence", Silence, told)
    drain_that_cannot_be_delivered(bench, users, monkeypatch)
    assert told.rows == []
    assert bench.run(users, drain=True).stopped == JOB_DRAINED
    assert sorted((row["user"], row["text"]) for row in told.rows) == [(1, "gone"), (2, "gone")]
    with pytest.raises(IncompatibleError, match="was drained"):
        bench.run(users, drain=True)


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["the batch that the stop comes in", "the drain", "the drain, told to end"])
def test_a_drain_that_a_stop_asks_for_tries_a_failed_batch_again(
    bench: Workbench, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its host wants it to end, also when that comes before the drain has begun."""
    told = sf.memory(tmp_path.name)
    bench.rows("visits", [Visit(1, "home", 1.0, at(0))])
    decide, failed, asked = Writer.decide, list[bool](), threading.Event()
    beat_once = Heart.beat_once

    def beats(heart: Heart, **how: bool) -> bool:
        wrote = beat_once(heart, **how)
        if heart.drain:
            asked.set()
        return wrote

    def decides(writer: Writer, draft: Draft) -> CommitPermit:
        if not asked.is_set() and draft.sinks:
            bench.job("users").stop(drain=True)
            assert asked.wait(10)
            if fails.endswith("told to end"):
                os.kill(os.getpid(), signal.SIGTERM)
        if asked.is_set() and draft.final == fails.startswith("the drain") and not failed:
            failed.append(True)
            raise UnavailableError("the store is away")
        return decide(writer, draft)

    monkeypatch.setattr(Heart, "beat_once", beats)
    monkeypatch.setattr(Writer, "decide", decides)
    endless = {"trigger": "until-stopped", "heartbeat_interval": "100 ms"}
    with refused(UnavailableError, "store is away") if fails.endswith("told to end") else nullcontext():
        bench.run(
            watching(bench, "silence", Silence, told),
            **endless,
            tolerable_failed_batches=1,
            failure_backoff="1 ms",
            min_pause="10 minutes",
        )
    gone = [] if fails.endswith("told to end") else ["gone"]
    assert (failed, [row["text"] for row in told.rows]) == ([True], gone)


@pytest.mark.slow
def test_a_stop_calls_off_a_drain_that_has_not_begun(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, told = Workbench(spark, tmp_path), sf.memory(tmp_path.name)
    bench.rows("visits", [Visit(1, "home", 1.0, at(0))])
    decide, beat_once, heard = Writer.decide, Heart.beat_once, list[str]()

    def beats(heart: Heart, **how: bool) -> bool:
        wrote = beat_once(heart, **how)
        heard.append(heart.reason)
        return wrote

    def asks(reason: str, *, drain: bool) -> None:
        bench.job("users").stop(reason=reason, drain=drain)
        until = time.monotonic() + 10
        while reason not in heard and time.monotonic() < until:
            time.sleep(0.01)

    def decides(writer: Writer, draft: Draft) -> CommitPermit:
        if not any(heard) and draft.sinks:
            asks("by mistake", drain=True)
            asks("not that", drain=False)
        return decide(writer, draft)

    monkeypatch.setattr(Heart, "beat_once", beats)
    monkeypatch.setattr(Writer, "decide", decides)
    users = watching(bench, "silence", Silence, told)
    report = bench.run(users, trigger="until-stopped", heartbeat_interval="100 ms")
    assert "by mistake" in heard
    assert (report.stopped, told.rows) == ("not that", [])
    assert bench.run(users, drain=True).stopped == JOB_DRAINED


class Chain(sf.KeyedProcess[int, Visit, Told]):
    """A timer that sets itself again, twice."""

    end = sf.Timer("event")
    rung = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.end.set(row.ts + timedelta(hours=1))
        return ()

    @end.fires
    def ring(self, key: int, at: datetime, ctx: sf.Context) -> Any:
        self.rung.value += 1
        if self.rung.value < 3:
            self.end.set(at + timedelta(hours=1))
        yield Told(key, f"rung {self.rung.value}")


def test_a_drain_that_its_host_ends_before_its_timers_have_fired_is_no_good_end(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = sf.memory(tmp_path.name)
    bench.rows("visits", [Visit(1, "home", 1.0, at(0))])

    users = watching(bench, "chain", Chain, told)
    # Told to end before it begins to drain.
    assert bench.run(users, drain=True, stop_after=1).stopped == INTERRUPTED
    assert told.rows == []

    drain_that_cannot_be_delivered(bench, users, monkeypatch)
    # Nothing is left but to deliver, which comes before a batch could be stopped.
    assert bench.run(users, drain=True, stopped=True).stopped == JOB_DRAINED
    assert [row["text"] for row in told.rows] == ["rung 1", "rung 2", "rung 3"]


@pytest.mark.slow
def test_a_last_run_tells_of_a_bound_behind_which_nobody_reads_and_of_the_way_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders")
    for n in range(3):
        spark.range(10 * n, 10 * n + 10).write.format("delta").mode("append").save(table)
    bench, output = Workbench(spark, tmp_path), str(tmp_path / "copies")

    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        flow.source("orders", sf.delta(table)).append("copies", sf.delta(output))

    def numbers() -> set[int]:
        return {row.id for row in spark.read.format("delta").load(output).collect()}

    report = bench.run(copies, drain=True, until=0)
    assert (report.stopped, numbers()) == (JOB_DRAINED, set(range(10)))
    (told,) = report.warnings
    assert "is over with this run, and its bound ends what is read of orders" in told
    way = re.search(r"restore checkpoint (\d+) with --rewind-sinks and run without --final", told)
    assert way is not None

    bench.job("copies").restore(
        f"checkpoint:{way[1]}", copies, options=bench.options(), rewind_sinks=True
    ).apply()
    assert bench.run(copies).stopped == INPUT_DRAINED
    assert numbers() == set(range(30))


def test_a_last_run_that_has_read_nothing_up_to_its_bound_leaves_another_job_as_the_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders")
    spark.range(10).write.format("delta").save(table)
    bench, told = Workbench(spark, tmp_path), sf.memory(tmp_path.name)

    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        flow.source("orders", sf.delta(table)).collect("copies", told)

    (warning,) = bench.run(copies, drain=True, until=datetime(2001, 1, 1, tzinfo=UTC)).warnings
    assert "if there are some, begin another job (--job) and run without --final" in warning
    assert bench.run(copies, job="again").rows == 10


def test_a_last_run_whose_bound_is_the_newest_version_tells_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders")
    spark.range(10).write.format("delta").save(table)
    bench, told = Workbench(spark, tmp_path), sf.memory(tmp_path.name)

    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        flow.source("orders", sf.delta(table)).collect("copies", told)

    assert bench.run(copies, drain=True, until=0).warnings == ()

"""What the thread beside a run hears and says."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import (
    KILLED,
    Heartbeat,
    RunOutcome,
    StopRequest,
    beat,
    read_heartbeat,
    request_stop,
)
from stateflow.cli.run import AnnouncedStop
from stateflow.cli.streams import open_unfailing
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.liveness.heart import Heart
from stateflow.observe.health import health_of
from tests.jobs.made import MadeJob

TASK = Owner("r", dag_run="dag/1", task="run")


@pytest.mark.parametrize("recalled", [True, False])
def test_a_driver_whose_task_was_killed_before_it_claimed_the_job_ends_as_soon_as_it_has(
    tmp_path: Path, *, recalled: bool
) -> None:
    job = MadeJob(tmp_path)
    scheduled.begin(job.store, job.layout, TASK.dag_run, TASK.task, None, lambda: 1)
    if recalled:
        scheduled.recall(job.store, job.layout, TASK.dag_run, TASK.task)
    stop = threading.Event()
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        heart.begin(job.writer.epoch)
        assert stop.wait(10 if recalled else 0.3) == recalled
    assert heart.reason == (KILLED if recalled else "")


def test_a_recall_is_heard_also_when_the_store_was_away_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = MadeJob(tmp_path)
    scheduled.begin(job.store, job.layout, TASK.dag_run, TASK.task, None, lambda: 1)
    scheduled.recall(job.store, job.layout, TASK.dag_run, TASK.task)
    failures = [2]
    find = scheduled.find

    def sometimes(*told: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise OSError("the store is away")
        return find(*told)

    monkeypatch.setattr(scheduled, "find", sometimes)
    stop = threading.Event()
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        heart.begin(job.writer.epoch)
        assert stop.wait(10)
    assert heart.reason == KILLED


def test_the_last_beat_is_tried_more_than_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = MadeJob(tmp_path)
    failures = [2]

    def sometimes(store: Any, layout: Any, sign: Heartbeat) -> None:
        if sign.ended and failures[0]:
            failures[0] -= 1
            raise OSError("the store is away")
        beat(store, layout, sign)

    monkeypatch.setattr("stateflow.liveness.heart.beat", sometimes)
    with Heart(job.store, job.layout, TASK, 0.05, threading.Event()) as heart:
        heart.begin(job.writer.epoch)
    last = read_heartbeat(job.store, job.layout, job.writer.epoch)
    assert last is not None
    assert last.ended


@pytest.mark.parametrize("before_the_look", [False, True])
def test_a_heartbeat_that_a_store_writes_late_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, before_the_look: bool
) -> None:
    job, hangs, last_written = MadeJob(tmp_path), threading.Event(), threading.Event()

    def slowly(store: Any, layout: Any, sign: Heartbeat) -> None:
        if not sign.ended:
            hangs.set()
            assert last_written.wait(30)
        beat(store, layout, sign)
        if sign.ended:
            last_written.set()
            if before_the_look:
                heart.join(30)

    monkeypatch.setattr("stateflow.liveness.heart.beat", slowly)
    monkeypatch.setattr("stateflow.liveness.heart.SOON", 0.1)
    with Heart(job.store, job.layout, TASK, 0.05, threading.Event()) as heart:
        heart.begin(job.writer.epoch)
        assert hangs.wait(30)
    assert not heart.is_alive()
    last = read_heartbeat(job.store, job.layout, job.writer.epoch)
    assert last is not None
    assert last.ended


def test_a_stop_is_heard_when_nobody_can_be_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed pipe, or a full disk behind the log."""
    job = MadeJob(tmp_path)
    stop = AnnouncedStop()
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(sys, "stderr", full)
        open_unfailing()
        with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
            heart.begin(job.writer.epoch)
            request_stop(
                job.store, job.layout, StopRequest(epoch=job.writer.epoch, by=TASK, reason="enough", at=1)
            )
            assert stop.wait(10)
            time.sleep(0.3)
            assert heart.is_alive()
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert heart.reason == "enough"


def test_a_stop_that_comes_behind_a_signal_is_why_the_run_has_ended(tmp_path: Path) -> None:
    job, stop = MadeJob(tmp_path), threading.Event()
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        heart.begin(job.writer.epoch)
        stop.set()  # as the handler of a signal does, such as the one of a host that replaces its Spark
        request_stop(
            job.store, job.layout, StopRequest(epoch=job.writer.epoch, by=TASK, reason="enough", at=1)
        )
        until = time.monotonic() + 10
        while not heart.reason and time.monotonic() < until:
            time.sleep(0.01)
        assert heart.reason == "enough"


def test_who_asks_for_a_drain_is_told_in_the_run_that_it_was_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, stop = MadeJob(tmp_path), threading.Event()
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        heart.begin(job.writer.epoch)
        asked = StopRequest(epoch=job.writer.epoch, by=TASK, reason="the end of the year", at=1, drain=True)
        request_stop(job.store, job.layout, asked)
        until = time.monotonic() + 10
        while not heart.reason and time.monotonic() < until:
            time.sleep(0.01)
    (said,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "draining" in said
    assert "the end of the year" in said
    assert not stop.is_set(), "its batches are tried again"


@pytest.mark.parametrize("by", ["a stop", "a recall", "a newer run"])
def test_whatever_else_ends_a_run_calls_its_drain_off(tmp_path: Path, by: str) -> None:
    job, stop = MadeJob(tmp_path), threading.Event()
    epoch = job.writer.epoch
    drain = StopRequest(epoch=epoch, by=TASK, reason="by mistake", at=1, drain=True)
    scheduled.begin(job.store, job.layout, TASK.dag_run, TASK.task, None, lambda: 1)
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        if by == "a recall":  # before the run has claimed the job
            scheduled.recall(job.store, job.layout, TASK.dag_run, TASK.task)
            request_stop(job.store, job.layout, drain)
            heart.begin(epoch)
        else:
            heart.begin(epoch)
            request_stop(job.store, job.layout, drain)
            until = time.monotonic() + 10
            while not heart.drain and time.monotonic() < until:
                time.sleep(0.01)
            assert heart.drain
            assert not stop.is_set()
        if by == "a stop":
            request_stop(job.store, job.layout, replace(drain, reason="enough", drain=False))
        elif by == "a newer run":
            job.begin("newer")
        assert stop.wait(10)
        request_stop(job.store, job.layout, replace(drain, reason="once more"))
        time.sleep(0.2)
    assert not heart.drain
    assert heart.reason == {"a stop": "enough", "a recall": KILLED}.get(by, heart.reason) != drain.reason
    assert (heart.fenced is not None) == (by == "a newer run")


def test_a_run_that_has_nothing_to_decide_learns_all_the_same_that_it_was_taken_over(tmp_path: Path) -> None:
    job = MadeJob(tmp_path)
    stop = threading.Event()
    with Heart(job.store, job.layout, TASK, 0.05, stop) as heart:
        heart.begin(job.writer.epoch)
        assert not stop.wait(0.3)
        assert heart.fenced is None
        newer = job.begin("newer")
        assert stop.wait(10)
    assert f"epoch {newer.epoch} is newer" in str(heart.fenced)


def test_how_a_run_failed_is_written_and_read_without_its_password(tmp_path: Path) -> None:
    job = MadeJob(tmp_path)
    url, shown = "postgresql://etl:hush@db.internal/orders", "postgresql://etl:***@db.internal/orders"
    with (
        suppress(ConnectionError),
        Heart(job.store, job.layout, TASK, 0.05, threading.Event()) as heart,
    ):
        heart.begin(job.writer.epoch)
        raise ConnectionError(f"cannot reach {url}")
    written = job.store.read(job.layout.heartbeat(job.writer.epoch))
    assert shown.encode() in written
    assert b"hush" not in written
    ended = read_heartbeat(job.store, job.layout, job.writer.epoch)
    assert ended is not None
    older = replace(ended, outcome=RunOutcome(exit_code=1, error=f"cannot reach {url}"))
    beat(job.store, job.layout, older)
    assert b"hush" in job.store.read(job.layout.heartbeat(job.writer.epoch))
    status = Job(str(tmp_path), "orders").status()
    assert status.outcome["error"] == f"cannot reach {shown}"
    assert shown in health_of(status, time.time_ns() // 1000, None).reason

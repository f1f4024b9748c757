"""Stopping by a task: a request that stays, a watch that ends with the task, and what became of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import StateflowRescaleOperator, StateflowStopOperator
from stateflow.checkpoint.control import stop_requested
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import CommitPermit
from stateflow.jobs.job import Job
from stateflow.savepoints.format import list_savepoints
from stateflow.storage.roots import open_store
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, airflow_signals, context_of, killed_at_every_write, ran, task
from tests.jobs.made import MadeJob, made_job
from tests.refusals.refusal import refused


def stop(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowStopOperator, attempt, **arguments)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """What happens while a task waits: called in place of every sleep of its watch, whose clock goes on by a second."""
    made, now = Job.__init__, 0.0

    def watch(happens: Callable[[], object]) -> None:
        def sleep(seconds: float) -> None:
            nonlocal now
            now += 1
            happens()

        def watched(job: Job, *arguments: Any, **named: Any) -> None:
            made(job, *arguments, **{**named, "sleep": sleep, "monotonic": lambda: now})

        monkeypatch.setattr(Job, "__init__", watched)

    return watch


def request(job: MadeJob) -> Any:
    return stop_requested(job.store, job.layout, job.writer.epoch)


def test_a_run_is_asked_and_watched_until_it_has_ended(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    meanwhile(lambda: job.beat(2, ended=True))
    attempt = Try("it")
    result = stop(attempt, note="upgrade to 2.0")
    assert (result["outcome"], result["checkpoint"], result["epoch"]) == ("stopped", 4, 1)
    assert (request(job).reason, request(job).by.dag_run) == ("upgrade to 2.0", "upkeep/manual__1")
    assert attempt.pushed["stateflow"]["checkpoint"] == 4


def test_a_job_that_does_not_run_is_fine(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    assert stop()["outcome"] == "not running"
    assert request(job) is None


def test_nor_does_one_that_was_only_rescaled(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    ran(StateflowRescaleOperator, parallelism=2)
    assert stop()["outcome"] == "not running"


def test_a_run_without_a_heartbeat_is_called_lost(tmp_path: Path, connect: Connect, meanwhile: Any) -> None:
    connect(tmp_path)
    made_job(tmp_path, ended=False)
    meanwhile(lambda: None)
    assert stop()["outcome"] == "lost"


def test_a_run_that_takes_longer_than_the_task_waits_is_looked_at_again(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    counter = iter(range(2, 1000))
    meanwhile(lambda: job.beat(next(counter)))
    with pytest.raises(AirflowException, match=r"job 'orders' \(epoch 1\) has not ended in 60 s") as failed:
        stop(wait="{{ '1 minute' }}")
    assert not isinstance(failed.value, AirflowFailException)
    job.beat(1000, ended=True)
    assert stop(Try("it", try_number=2))["outcome"] == "stopped"


@pytest.mark.parametrize("cleared", [False, True])
def test_a_stop_that_failed_asks_the_run_that_lives_when_it_is_cleared_and_no_other_in_a_retry(
    tmp_path: Path, connect: Connect, meanwhile: Any, cleared: bool
) -> None:
    connect(tmp_path)
    one = made_job(tmp_path, ended=False)
    counter = iter(range(2, 1000))
    meanwhile(lambda: one.beat(next(counter)))
    with refused(AirflowException, "'orders' (epoch 1)"):
        stop(wait="1 minute")
    one.beat(1000, ended=True)
    two = MadeJob(tmp_path, "orders", run="two")
    two.batch()
    two.beat(1)
    meanwhile(lambda: two.beat(2, ended=True))
    attempt = Try("it", try_number=3, clears=1, max_tries=4) if cleared else Try("it", try_number=2)
    again = stop(attempt)
    assert (again["outcome"], again["epoch"]) == ("stopped", two.writer.epoch if cleared else 1)
    assert (request(two) is not None) is cleared


def test_a_task_that_is_told_to_end_no_longer_watches(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    operator = task(StateflowStopOperator)
    meanwhile(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with airflow_signals(operator), refused(AirflowException, "was killed"):
        operator.execute(context_of(Try("it")))
    assert request(job) is not None  # what was asked stays asked


def test_a_savepoint_of_where_it_ended_comes_with_it(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)

    def end() -> None:
        job.batch()
        job.beat(2, ended=True)

    meanwhile(end)
    result = stop(savepoint=True, note="upgrade")
    assert (result["checkpoint"], result["kind"], result["note"]) == (5, "native", "upgrade")
    [(path, listed)] = list_savepoints(open_store(str(tmp_path)), "orders")
    assert result["savepoint"] == f"file://{tmp_path}/{path}"
    assert listed.savepoint is not None
    assert listed.savepoint.record.slot == 5


def test_a_savepoint_leaves_the_next_run_alone_which_is_in_the_middle_of_a_batch(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    decided: list[CommitPermit] = []

    def happens() -> None:
        if not decided:
            job.beat(2, ended=True)
            decided.append(job.begin("the next run").decide(Draft("checkpoint")))
        elif job.log().pending and job.ticks > 60:
            job.writer.complete(decided[0], {})
        job.beat(job.ticks)

    meanwhile(happens)
    result = stop(savepoint=True)
    job.writer.still_owner()
    assert (result["outcome"], result["epoch"], result["checkpoint"]) == ("stopped", 1, decided[0].slot)


def drained(job: MadeJob) -> None:
    decide = job.writer.decide
    job.writer.decide = lambda record: decide(msgspec.structs.replace(record, final=True))  # type: ignore[method-assign]
    job.batch()
    job.beat(2, ended=True)


def test_a_drain_says_that_it_was_one(tmp_path: Path, connect: Connect, meanwhile: Any) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    meanwhile(lambda: drained(job))
    assert stop(drain=True)["drained"]
    assert request(job).drain
    assert (
        stop(Try("it", run_id="manual__2"), drain=True)["outcome"] == "not running"
    )  # and is drained all the same


def test_a_job_that_nobody_drained_is_not_said_to_be(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    meanwhile(lambda: job.beat(2, ended=True))
    with pytest.raises(
        AirflowFailException, match="job 'orders' is stopped, and nothing has drained it: run it once more"
    ):
        stop(drain=True)
    with pytest.raises(AirflowFailException, match="job 'orders' is not running, and nothing has drained it"):
        stop(Try("it", run_id="manual__2"), drain=True)


def test_a_retry_after_a_kill_at_any_point_sees_the_end_and_makes_one_savepoint(
    tmp_path: Path, connect: Connect, meanwhile: Any
) -> None:
    jobs: dict[Path, MadeJob] = {}
    stages = 0

    def fresh(at: int) -> Path:
        root = tmp_path / str(at)
        jobs[root] = made_job(root, ended=False)
        connect(root)
        meanwhile(lambda: jobs[root].beat(2, ended=True))
        return root

    for at, root in killed_at_every_write(fresh, lambda place: stop(Try("it"), savepoint=True)):
        stages = at
        result = stop(Try("it", try_number=2), savepoint=True)
        assert result["outcome"] == "stopped", at
        assert [f"file://{root}/{path}" for path, _ in list_savepoints(open_store(str(root)), "orders")] == [
            result["savepoint"]
        ], at
    assert stages >= 5

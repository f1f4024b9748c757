"""A busy job: the run operator gives way without Spark, without a slot, and without using a try."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import msgspec
import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState

from stateflow.airflow.triggers.idle import StateflowIdleTrigger
from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import RunOutcome
from stateflow.errors import BusyError
from stateflow.format.records import Owner
from tests.airflow.conftest import Connect
from tests.airflow.runner import run_task
from tests.airflow.tasks import fired
from tests.airflow.test_empty_runs import OfTask
from tests.airflow.test_run_operator import Done, Method, operator
from tests.jobs.made import MadeJob

OTHER = Owner("other", host="elsewhere", dag_run="orders_dag/another", task="run")


@pytest.fixture
def method(tmp_path: Path, connect: Connect) -> Method:
    connect(tmp_path / "root", options={"heartbeat_interval": "100 ms", "heartbeat_timeout": "1 second"})
    return Method(tmp_path / "root")


@contextmanager
def other_run(method: Method, seconds: float = 60, over: Event | None = None) -> Iterator[MadeJob]:
    """A run of somebody else that beats until the block ends, until it is said to be over, or for so long."""
    job = MadeJob(method.root, "orders", run="other")
    over, end = over or Event(), time.monotonic() + seconds

    def live() -> None:
        counter = 0
        while not over.wait(0.05) and time.monotonic() < end:
            counter += 1
            job.beat(counter, owner=OTHER)
        job.beat(counter + 1, owner=OTHER, ended=True)

    job.beat(0, owner=OTHER)
    thread = Thread(target=live)
    thread.start()
    try:
        yield job
    finally:
        over.set()
        thread.join()


def test_a_busy_job_costs_no_driver_and_no_try(method: Method) -> None:
    with other_run(method):
        told = run_task(operator(method, retries=0))
    assert told.state is TaskInstanceState.UP_FOR_RESCHEDULE
    assert timedelta(0) < told.message.reschedule_date - datetime.now(UTC) <= timedelta(seconds=30)
    assert method.specs == []
    assert run_task(operator(method), rescheduled_at=datetime.now(UTC)).state is TaskInstanceState.SUCCESS


def test_a_task_that_gave_way_began_where_the_other_run_has_ended(method: Method) -> None:
    def began_from() -> int | None:
        mark = scheduled.find(other.store, other.layout, "orders_dag/scheduled__2026-01-31", "run")
        assert mark is not None
        return mark.began_from

    first = MadeJob(method.root, "orders", run="first").batch()
    with other_run(method) as other:
        assert run_task(operator(method)).state is TaskInstanceState.UP_FOR_RESCHEDULE
        assert began_from() == first
        ended_at = [other.batch(), other.batch()][-1]
    method.fails = Done(1)
    run_task(operator(method))
    assert began_from() == ended_at
    OfTask(method.root, "orders").batch()
    run_task(operator(method))
    assert (began_from(), len(method.specs)) == (ended_at, 2), "by then the task has done something itself"


def test_a_driver_that_finds_the_job_busy_when_spark_is_up_costs_no_try_either(method: Method) -> None:
    method.fails = Done(BusyError.exit_code, ("stateflow: job 'orders' is run by another",))
    assert run_task(operator(method, retries=0)).state is TaskInstanceState.UP_FOR_RESCHEDULE


def test_a_job_that_stays_busy_fails_for_good_when_the_limit_is_over(method: Method) -> None:
    with other_run(method):
        told = run_task(
            operator(method, retries=3, busy_timeout=timedelta(minutes=10)),
            rescheduled_at=datetime.now(UTC) - timedelta(minutes=11),
            max_tries=3,
        )
    assert told.state is TaskInstanceState.FAILED
    assert "is run by DAG run 'orders_dag/another'" in str(told.error)
    assert "busy_timeout=10 minutes" in str(told.error)


def test_without_a_limit_a_busy_job_is_refused_at_once(method: Method) -> None:
    with other_run(method):
        told = run_task(operator(method, busy_timeout=timedelta(0)))
    assert told.state is TaskInstanceState.FAILED


def test_waiting_in_the_worker_has_the_same_limit(method: Method) -> None:
    with other_run(method):
        told = run_task(operator(method, on_live="wait", busy_timeout=timedelta(seconds=1)))
    assert told.state is TaskInstanceState.FAILED
    assert "busy_timeout=1 second" in str(told.error)
    assert method.specs == []


def test_waiting_in_the_worker_goes_on_when_the_other_run_has_ended(method: Method) -> None:
    with other_run(method, 2):
        assert run_task(operator(method, on_live="wait")).state is TaskInstanceState.SUCCESS
    assert len(method.specs) == 1


def deferral(method: Method, **arguments: Any) -> dict[str, Any]:
    told = run_task(operator(method, on_live="wait", deferrable=True, **arguments))
    assert told.state is TaskInstanceState.DEFERRED
    assert told.message.next_method == "resume_idle"
    assert told.message.classpath == "stateflow.airflow.triggers.idle.StateflowIdleTrigger"
    assert method.specs == []
    return dict(told.message.trigger_kwargs)


def test_a_deferrable_task_waits_in_the_triggerer_and_then_starts_one_driver(method: Method) -> None:
    over = Event()
    with other_run(method, over=over):
        fields = deferral(method)
        Timer(1, over.set).start()
        event = fired(StateflowIdleTrigger, fields)
    told = run_task(operator(method, on_live="wait", deferrable=True), resumed=("resume_idle", event))
    assert told.state is TaskInstanceState.DEFERRED
    assert told.message.next_method == "resume"
    assert len(method.specs) == 1


def test_the_triggerer_waits_no_longer_than_the_limit(method: Method) -> None:
    with other_run(method):
        began = time.monotonic()
        event = fired(StateflowIdleTrigger, deferral(method, busy_timeout=timedelta(seconds=3)))
        assert time.monotonic() - began < 10
        told = run_task(
            operator(method, on_live="wait", deferrable=True, busy_timeout=timedelta(seconds=3), retries=3),
            resumed=("resume_idle", event),
            max_tries=3,
        )
    assert told.state is TaskInstanceState.FAILED
    assert "busy_timeout=3 seconds" in str(told.error)


def test_a_driver_that_finds_the_job_busy_itself_does_not_begin_the_limit_anew(method: Method) -> None:
    """As one does that a full host has no place for, time after time."""
    limit = timedelta(minutes=10)
    task = operator(method, on_live="wait", deferrable=True, busy_timeout=limit, retries=0)
    began = time.time() - limit.total_seconds() + 5
    left = run_task(task, resumed=("resume_idle", {"since": began}))
    assert left.message.next_method == "resume"
    ended = RunOutcome(exit_code=BusyError.exit_code, error="the host 'team' has no place free")
    event = {**left.message.trigger_kwargs["handover"], "outcome": msgspec.to_builtins(ended)}
    waits = run_task(task, resumed=("resume", event))
    assert waits.message.trigger_kwargs["since"] == began
    told = run_task(task, resumed=("resume", {**event, "busy_since": began - 5}))
    assert told.state is TaskInstanceState.FAILED
    assert "busy_timeout=10 minutes" in str(told.error)


def test_execution_timeout_ends_the_wait_in_the_triggerer(method: Method) -> None:
    began, limit = datetime.now(UTC), timedelta(seconds=3)
    task = operator(method, on_live="wait", deferrable=True, execution_timeout=limit, retries=3)
    with other_run(method):
        left = run_task(task, started_at=began)
        event = fired(StateflowIdleTrigger, dict(left.message.trigger_kwargs))
        assert timedelta(0) <= datetime.now(UTC) - began - limit < timedelta(seconds=10)
        told = run_task(task, resumed=("resume_idle", event), started_at=began, max_tries=3)
    assert told.state is TaskInstanceState.UP_FOR_RETRY
    assert "execution_timeout=3 seconds" in str(told.error)
    assert method.specs == []


def test_the_triggerer_takes_a_run_without_a_heartbeat_for_dead(method: Method) -> None:
    with other_run(method) as job:
        fields = deferral(method)
    job.beat(99, owner=OTHER)
    began = time.monotonic()
    fired(StateflowIdleTrigger, fields)
    assert 1 <= time.monotonic() - began < 10


def test_an_error_is_left_to_the_task_to_tell(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_run(method):
        fields = deferral(method)
        monkeypatch.delenv("AIRFLOW_CONN_STATEFLOW_DEFAULT")
        assert set(fired(StateflowIdleTrigger, fields)) == {"since"}

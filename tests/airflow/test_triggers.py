"""Triggers wait without holding up their neighbours, bear a store that is away, and end with one small event."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from airflow._shared.module_loading import import_string
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow.airflow.triggers import job as triggers
from stateflow.airflow.triggers.freshness import Answer
from stateflow.airflow.triggers.idle import StateflowIdleTrigger
from stateflow.airflow.triggers.job import (
    CheckpointFreshnessTrigger,
    JobTrigger,
    WatermarkTrigger,
    followed,
    in_thread,
)
from stateflow.airflow.triggers.overdue import in_time
from stateflow.airflow.triggers.run import StateflowRunTrigger
from stateflow.driver.run_state import RunState
from stateflow.driver.supervision import Supervision
from stateflow.errors import BusyError, CorruptError, NotFoundError, StateflowError, UnavailableError
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.looking import HOUR
from tests.jobs.builder import T0, before_now
from tests.jobs.made import JUST_NOW, MadeJob, made_job

AWAY = UnavailableError("the store is away")


def fresh(**arguments: Any) -> CheckpointFreshnessTrigger:
    return CheckpointFreshnessTrigger(**{"job": "orders", "max_age": 3600.0, **arguments})


def events(trigger: JobTrigger) -> list[Any]:
    async def gathered() -> list[TriggerEvent]:
        return [event async for event in trigger.run()]

    return [event.payload for event in asyncio.run(gathered())]


def no_pause(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Between two looks something happens, and no time passes."""

    async def sleep(seconds: float) -> None:
        meanwhile()

    monkeypatch.setattr(followed, "__kwdefaults__", {**(followed.__kwdefaults__ or {}), "sleep": sleep})


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def follow(
    answers: Iterable[Answer | Exception], *, interval: float = 60, patience: float = 600
) -> tuple[dict[str, Any], Clock, list[str]]:
    """What comes of so many looks."""
    looks, clock, said = iter(answers), Clock(), []

    async def look() -> Answer:
        one = next(looks)
        if isinstance(one, Exception):
            raise one
        return one

    event = asyncio.run(
        followed(
            look,
            interval=interval,
            patience=patience,
            say=said.append,
            monotonic=clock.monotonic,
            sleep=clock.sleep,
        )
    )
    return event, clock, said


NOT_YET = Answer(False, "not yet")
DONE = Answer(True, "there it is", checkpoint=42, watermark=T0, age=1.5)


# The loop


def test_it_looks_at_once_and_then_at_every_interval() -> None:
    event, clock, said = follow([NOT_YET, NOT_YET, DONE])
    assert event == {"done": "there it is", "checkpoint": 42, "watermark": T0, "age": 1.5}
    assert clock.pauses == [60, 60]
    assert said == ["not yet", "not yet", "there it is"]
    assert follow([DONE])[1].pauses == []


def test_a_store_that_is_away_is_asked_ever_more_rarely() -> None:
    event, clock, said = follow([AWAY, AWAY, AWAY, AWAY, NOT_YET, DONE], patience=10_000)
    assert "done" in event
    assert clock.pauses == [120, 240, 300, 300, 60]
    assert said[0] == "the store is out of reach, trying again in 120 s: the store is away"


def test_after_a_limit_the_task_is_told_and_may_be_retried() -> None:
    event, clock, _ = follow([AWAY] * 20, patience=600)
    assert event == {"failed": "the store is away", "retry": True}
    assert sum(clock.pauses) == 660


def test_the_limit_counts_anew_after_the_store_was_there() -> None:
    event, clock, _ = follow([AWAY, AWAY, NOT_YET, AWAY, AWAY, DONE], patience=300)
    assert "done" in event
    assert clock.pauses == [120, 240, 60, 120, 240]


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (CorruptError("damaged"), False),
        (NotFoundError("no such job"), False),
        (BusyError("busy"), True),
        (StateflowError("it failed"), True),
    ],
)
def test_other_errors_end_it_at_once(error: StateflowError, retry: bool) -> None:
    assert follow([error])[0] == {"failed": str(error), "retry": retry}


# Triggers on jobs


def test_a_fresh_job_fires_one_event(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    (event,) = events(fresh())
    assert event["checkpoint"] == 3
    assert event["done"].startswith("job 'orders' has a checkpoint of ")
    assert len(json.dumps(event)) < 500


def test_a_stale_one_fires_when_it_has_become_fresh(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ago=3 * HOUR, batches=2)
    looks: list[int] = []

    def later() -> None:
        looks.append(1)
        if len(looks) == 2:
            job.clock = before_now(JUST_NOW)  # type: ignore[method-assign]
            job.batch()

    no_pause(monkeypatch, later)
    (event,) = events(fresh())
    assert (event["checkpoint"], len(looks)) == (4, 2)


def test_a_watermark_fires_when_it_is_there(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    seen = iter((None, T0 - 1, T0))
    glance = Job.glance

    def with_watermark(job: Job) -> Any:
        from dataclasses import replace

        return replace(glance(job), watermark=next(seen))

    monkeypatch.setattr(Job, "glance", with_watermark)
    no_pause(monkeypatch, lambda: None)
    (event,) = events(WatermarkTrigger(job="orders", watermark=T0))
    assert event["watermark"] == T0
    assert next(seen, "all seen") == "all seen"


def test_a_task_whose_time_is_over_waits_no_longer(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    began = time.monotonic()
    assert events(fresh(deadline=time.time() + 0.5)) == [{"overdue": True}]
    assert 0.4 < time.monotonic() - began < 30
    assert events(fresh(deadline=time.time() - 5)) == [{"overdue": True}]
    assert "done" in events(fresh(max_age=4 * 3600.0, deadline=time.time() + 60))[0]


def test_a_time_out_of_what_is_waited_for_is_none_of_the_tasks_time() -> None:
    async def away() -> dict[str, Any]:
        raise TimeoutError("the store did not answer")

    with pytest.raises(TimeoutError, match="did not answer"):
        asyncio.run(in_time(away(), time.time() + 60))


def test_a_job_that_is_missing_is_waited_for_or_not(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    (event,) = events(fresh(missing="fail"))
    assert event["failed"].startswith("there is no job 'orders'")
    assert event["retry"] is False
    no_pause(monkeypatch, lambda: made_job(tmp_path, ago=JUST_NOW, batches=2))
    (event,) = events(fresh())
    assert event["checkpoint"] == 3


def test_a_connection_that_was_deleted_meanwhile_is_said(tmp_path: Path) -> None:
    (event,) = events(fresh(stateflow_conn_id="elsewhere"))
    assert event["failed"].startswith("there is no connection 'elsewhere': add it with")
    assert event["retry"] is False


def test_a_store_that_came_back_is_asked_with_the_connection_as_it_is_then(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path / "old")
    made_job(tmp_path / "new", ago=JUST_NOW, batches=2)
    with pytest.MonkeyPatch.context() as away:

        def glance(job: Job) -> Any:
            raise AWAY

        away.setattr(Job, "glance", glance)
        (tmp_path / "old").mkdir()

        def mended() -> None:
            away.undo()
            connect(tmp_path / "new")

        no_pause(monkeypatch, mended)
        (event,) = events(fresh())
    assert event["checkpoint"] == 3


def test_no_other_trigger_waits_for_a_slow_store(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    asked, answered = threading.Event(), threading.Event()
    glance = Job.glance

    def slow(job: Job) -> Any:
        asked.set()
        assert answered.wait(60), "the event loop stood still"
        return glance(job)

    monkeypatch.setattr(Job, "glance", slow)

    async def both() -> Any:
        waiting = asyncio.ensure_future(anext(fresh().run()))
        while not asked.is_set():
            await asyncio.sleep(0)
        answered.set()  # only a loop that goes on gets here
        return await waiting

    assert asyncio.run(both()).payload["checkpoint"] == 3


def test_slow_stores_do_not_take_the_threads_of_others() -> None:
    release = threading.Event()

    async def crowd() -> str:
        stuck = [asyncio.ensure_future(in_thread(release.wait)) for _ in range(50)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(asyncio.to_thread(lambda: "free"), timeout=60)
        finally:
            release.set()
            await asyncio.gather(*stuck)

    assert asyncio.run(crowd()) == "free"


def test_a_trigger_that_is_called_off_ends(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)

    async def called_off() -> None:
        task = asyncio.ensure_future(anext(fresh().run()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(called_off())


# Through Airflow's database


@pytest.mark.parametrize(
    "trigger",
    [
        fresh(stateflow_conn_id="lake", checkpoint_dir="/data", missing="fail", poke_interval=5.0, store_patience=7.0, deadline=8.0),
        WatermarkTrigger(job="orders", watermark=T0),
    ],
)  # fmt: skip
def test_they_come_back_as_they_went(trigger: JobTrigger) -> None:
    stored = Trigger.from_object(trigger)
    rebuilt = import_string(stored.classpath)(**stored.kwargs)
    assert type(rebuilt) is type(trigger)
    assert rebuilt.serialize() == trigger.serialize()


def test_what_is_stored_holds_no_credentials(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path, storage_options={"secret_access_key": "hush"})
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    trigger = fresh()
    (event,) = events(trigger)
    assert "hush" not in json.dumps([trigger.serialize(), event])


def test_the_names_are_those_that_the_triggerer_imports() -> None:
    for name in ("CheckpointFreshnessTrigger", "WatermarkTrigger"):
        assert import_string(f"stateflow.airflow.triggers.job.{name}") is getattr(triggers, name)


# A hundred jobs on one triggerer


def deferred_runs(root: Path, count: int) -> list[BaseTrigger]:
    """Of a run each, which shows signs of life."""
    triggers: list[BaseTrigger] = []
    for number in range(count):
        job = MadeJob(root, f"job-{number}")
        owner = Owner("r", dag_run=f"dag/{number}", task="run")
        job.beat(1, owner=owner)
        triggers.append(
            StateflowRunTrigger(
                job=job.name, stateflow_conn_id="stateflow_default", checkpoint_dir=str(root),
                dag_run=owner.dag_run, task=owner.task, patience=600, grace=60, handover={"above": 0},
            )
        )  # fmt: skip
    return triggers


def waiting_tasks(root: Path, count: int) -> list[BaseTrigger]:
    """Of tasks that wait for the end of those runs."""
    return [
        StateflowIdleTrigger(
            job=f"job-{number}", stateflow_conn_id="stateflow_default", checkpoint_dir=str(root),
            dag_run="other/1", task="run", patience=600, since=time.time(), limit=600,
        )
        for number in range(count)
    ]  # fmt: skip


def test_a_hundred_jobs_on_one_triggerer_take_a_thousandth_of_a_core_each_at_most(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    triggers = [*deferred_runs(tmp_path, 100), *waiting_tasks(tmp_path, 100)]
    looks, cpu = asyncio.run(cpu_of(triggers, warm=200, seconds=6))
    assert looks >= 100, "each was looked at"
    assert cpu / 6 / 100 <= 0.001


async def cpu_of(triggers: list[BaseTrigger], *, warm: int, seconds: float) -> tuple[int, float]:
    """Looks and seconds of processor time of this process while all of them wait, after so many looks: to begin costs more than to
    wait, and takes a busy machine many seconds. What threads of other tests cost the process without them is not theirs."""
    looks = 0
    look = Supervision.look

    def counted(supervision: Supervision) -> RunState:
        nonlocal looks
        looks += 1
        return look(supervision)

    async def waited(trigger: BaseTrigger) -> None:
        async for event in trigger.run():
            raise AssertionError(f"it fired: {event.payload}")

    async def spent() -> float:
        began = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - began

    others = await spent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervision, "look", counted)
        tasks = [asyncio.create_task(waited(each)) for each in triggers]
        async with asyncio.timeout(60):
            while looks < warm:
                await asyncio.sleep(0.1)
        looks = 0
        cpu = await spent() - others
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return looks, cpu

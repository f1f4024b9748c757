"""Sensors wait for what their names say, in every mode, and tell in one sentence what they wait for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseSensorOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from stateflow.airflow import CheckpointFreshnessSensor, CheckpointLink, WatermarkSensor
from stateflow.airflow.triggers.job import CheckpointFreshnessTrigger, WatermarkTrigger
from stateflow.errors import CorruptError, UnavailableError
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.looking import HOUR, FakeTask, context
from tests.airflow.runner import WHEN, run_task
from tests.jobs.builder import T0, before_now
from tests.jobs.made import JUST_NOW, made_job
from tests.refusals.refusal import refused


def fresh(**arguments: Any) -> CheckpointFreshnessSensor:
    return CheckpointFreshnessSensor(**{"task_id": "wait", "job": "orders", "max_age": HOUR, **arguments})


def passed(**arguments: Any) -> WatermarkSensor:
    return WatermarkSensor(
        **{"task_id": "wait", "job": "orders", "watermark": datetime(2026, 1, 1, tzinfo=UTC), **arguments}
    )


def with_watermark(root: Path, watermark: int | None) -> None:
    made_job(root, batches=1, watermark=watermark, ago=JUST_NOW)


def store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def glance(job: Job) -> Any:
        raise UnavailableError("s3://bucket/root cannot be reached: connection refused")

    monkeypatch.setattr(Job, "glance", glance)


# What counts as fresh


def test_a_young_checkpoint_is_fresh_and_the_result_says_which(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    task = FakeTask()
    result = fresh().execute(context(task))
    assert {name: result[name] for name in ("job", "conn_id", "checkpoint", "watermark")} == {
        "job": "orders",
        "conn_id": "stateflow_default",
        "checkpoint": 3,
        "watermark": None,
    }
    assert 0 <= result["age"] < 600
    assert task.pushed["stateflow"] == {"conn_id": "stateflow_default", "job": "orders", "checkpoint": 3}


def test_an_old_checkpoint_is_not(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    assert not fresh().poke(context())
    log = capsys.readouterr().out
    assert "not younger than 1 hour yet: job 'orders' is stale: its newest checkpoint is 3 hours old" in log


def test_a_job_without_input_is_fresh_when_its_run_ended_well(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ago=3 * HOUR, batches=2)
    job.drained(ago=timedelta(minutes=5))
    assert fresh().poke(context())
    job.drained(ago=2 * HOUR)
    assert not fresh().poke(context())


def test_a_lost_run_makes_a_young_checkpoint_no_older(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=timedelta(minutes=5), ended=False, batches=2)
    assert fresh().poke(context())


def test_a_job_that_was_drained_for_good_needs_not_be_fresher(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=900 * HOUR, final=True, batches=2)
    assert fresh().poke(context())


def test_the_age_may_be_a_text(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    assert not fresh(max_age="2 hours").poke(context())
    assert fresh(max_age="4 hours").poke(context())


# Watermarks


@pytest.mark.parametrize(("watermark", "done"), [(T0 - 1, False), (T0, True), (T0 + 1, True), (None, False)])
def test_the_watermark_has_to_have_reached_the_time(
    tmp_path: Path, connect: Connect, watermark: int | None, done: bool
) -> None:
    connect(tmp_path)
    with_watermark(tmp_path, watermark)
    assert bool(passed().poke(context())) is done


def test_the_log_says_how_far_it_has_got(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path)
    with_watermark(tmp_path, T0 - 2 * 3_600_000_000)
    passed().poke(context())
    log = capsys.readouterr().out
    wanted = "the watermark of job 'orders' stands at 2025-12-31 22:00:00, 2 hours before 2026-01-01 00:00:00"
    assert wanted in log


def test_the_end_of_the_data_interval_is_the_default(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    with_watermark(tmp_path, T0)
    for end, done in ((datetime(2026, 1, 1, tzinfo=UTC), True), (datetime(2026, 1, 2, tzinfo=UTC), False)):
        sensor = WatermarkSensor(task_id="wait", job="{{ params.job }}")
        rendering = context(data_interval_end=end, params={"job": "orders"})
        sensor.render_template_fields(rendering)
        assert bool(sensor.poke(rendering)) is done


def test_a_run_without_a_data_interval_is_told_so(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    sensor = WatermarkSensor(task_id="wait", job="orders")
    sensor.render_template_fields(context(data_interval_end=None))
    with refused(AirflowFailException, "task 'wait'", "watermark='None'", "is no time", "no data interval"):
        sensor.execute(context())


@pytest.mark.parametrize(
    "text", ["2026-01-01T00:00:00+00:00", "2026-01-01", "2026-01-01T01:00:00+01:00", "2026-01-01 00:00:00"]
)
def test_a_time_without_a_zone_is_utc(tmp_path: Path, connect: Connect, text: str) -> None:
    connect(tmp_path)
    with_watermark(tmp_path, T0)
    assert passed(watermark=text).condition().watermark == T0  # type: ignore[attr-defined]


# A job that is not there


def test_a_job_that_does_not_exist_yet_is_waited_for(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path)
    made_job(tmp_path, "clicks")
    sensor = fresh()
    assert not sensor.poke(context())
    log = capsys.readouterr().out
    assert "waiting for a first run: there is no job 'orders'" in log
    assert "clicks" in log
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    assert sensor.poke(context())


def test_so_is_a_root_that_does_not_exist_yet(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path / "later")
    assert not fresh().poke(context())
    assert not (tmp_path / "later").exists()


def test_or_the_task_fails_at_once(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    with refused(AirflowFailException, "there is no job 'orders' in", "its jobs are: none"):
        fresh(missing="fail").execute(context())


@pytest.mark.parametrize("missing", ["wait", "fail"])
def test_a_connection_that_does_not_exist_fails_in_any_case(missing: str) -> None:
    with pytest.raises(
        AirflowFailException, match="there is no connection 'elsewhere': add it with `airflow connections add"
    ):
        fresh(missing=missing, stateflow_conn_id="elsewhere").execute(context())


# Modes


def test_already_fresh_nobody_is_deferred(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    assert fresh(deferrable=True).execute(context())["checkpoint"] == 3


def test_otherwise_the_triggerer_asks_the_same_question(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    with pytest.raises(TaskDeferred) as deferred:
        fresh(deferrable=True, poke_interval=7, timeout=1234, missing="fail").execute(context())
    trigger = deferred.value.trigger
    assert isinstance(trigger, CheckpointFreshnessTrigger)
    assert trigger.serialize() == (
        "stateflow.airflow.triggers.job.CheckpointFreshnessTrigger",
        {
            "job": "orders",
            "stateflow_conn_id": "stateflow_default",
            "checkpoint_dir": "",
            "missing": "fail",
            "poke_interval": 7.0,
            "store_patience": 600.0,
            "max_age": 3600.0,
            "deadline": None,
        },
    )
    assert deferred.value.timeout == timedelta(seconds=1234)
    assert deferred.value.method_name == "execute_complete"


def test_execution_timeout_holds_in_the_triggerer_too(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    limit = timedelta(minutes=2)
    task = fresh(deferrable=True, execution_timeout=limit)
    left = run_task(task)
    assert left.message.trigger_kwargs["deadline"] == (WHEN + limit).timestamp()
    told = run_task(task, resumed=("execute_complete", {"overdue": True}))
    assert "execution_timeout=2 minutes" in str(told.error)


def test_a_watermark_is_deferred_as_a_number(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    with_watermark(tmp_path, None)
    with pytest.raises(TaskDeferred) as deferred:
        passed(deferrable=True).execute(context())
    assert isinstance(deferred.value.trigger, WatermarkTrigger)
    assert deferred.value.trigger.watermark == T0


def test_what_the_trigger_said_is_the_result(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    task = FakeTask()
    event = {
        "done": "job 'orders' has a checkpoint of 3 seconds ago",
        "checkpoint": 42,
        "watermark": T0,
        "age": 3.0,
    }
    result = fresh().execute_complete(context(task), event)
    assert result == {
        "job": "orders",
        "conn_id": "stateflow_default",
        "root": str(tmp_path),
        "checkpoint": 42,
        "watermark": T0,
        "age": 3.0,
    }
    assert task.pushed["stateflow"]["checkpoint"] == 42


@pytest.mark.parametrize(("retry", "error"), [(True, AirflowException), (False, AirflowFailException)])
def test_what_failed_there_fails_here(retry: bool, error: type[Exception]) -> None:
    with pytest.raises(AirflowException, match=r"^the store is away$") as raised:
        fresh().execute_complete(context(), {"failed": "the store is away", "retry": retry})
    assert type(raised.value) is error


def test_a_soft_fail_is_a_skip(tmp_path: Path, connect: Connect) -> None:
    with pytest.raises(AirflowSkipException):
        fresh(soft_fail=True).resume_execution(
            "execute_complete", {"event": {"failed": "gone", "retry": False}}, context()
        )


def test_deferring_is_the_default_where_airflow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fresh().deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert fresh().deferrable is True
    assert fresh(deferrable=False).deferrable is False


def test_a_rescheduled_sensor_gives_its_slot_back(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)

    class Rescheduled(FakeTask):
        def get_first_reschedule_date(self, context: Any) -> None:
            return None

    with pytest.raises(AirflowRescheduleException):
        fresh(mode="reschedule").execute(context(Rescheduled()))


def test_a_sensor_that_pokes_looks_again_until_its_time_is_up(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ago=3 * HOUR, batches=2)
    monkeypatch.setattr("airflow.sdk.bases.sensor.time.sleep", lambda seconds: job.drained())
    assert fresh().execute(context())["age"] < 600
    made_job(tmp_path, "clicks", ago=3 * HOUR, batches=2)
    with pytest.raises(AirflowSensorTimeout):
        fresh(job="clicks", timeout=0).execute(context())


# What goes wrong


def test_a_store_that_is_away_is_borne_for_a_while(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=JUST_NOW, batches=2)
    ticks = iter((0.0, 100.0, 599.0, 600.0))
    monkeypatch.setattr("stateflow.airflow.sensors.time.monotonic", lambda: next(ticks))
    store_is_away(monkeypatch)
    sensor = fresh()
    for _ in range(3):
        assert not sensor.poke(context())
    log = capsys.readouterr().out
    assert "the store is out of reach: s3://bucket/root cannot be reached" in log
    with pytest.raises(UnavailableError):
        sensor.poke(context())


def test_time_away_is_counted_anew_after_it_was_there(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    made_job(tmp_path, ago=3 * HOUR, batches=2)
    ticks = iter((0.0, 1000.0))
    monkeypatch.setattr("stateflow.airflow.sensors.time.monotonic", lambda: next(ticks))
    sensor = fresh()
    with pytest.MonkeyPatch.context() as away:
        store_is_away(away)
        assert not sensor.poke(context())
    assert not sensor.poke(context())
    store_is_away(monkeypatch)
    assert not sensor.poke(context())


def test_a_rescheduled_sensor_cannot_count_and_is_retried(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    store_is_away(monkeypatch)

    class Rescheduled(FakeTask):
        def get_first_reschedule_date(self, context: Any) -> None:
            return None

    with pytest.raises(AirflowException, match=r"^s3://bucket/root cannot be reached") as raised:
        fresh(mode="reschedule").execute(context(Rescheduled()))
    assert type(raised.value) is AirflowException
    assert raised.value.__suppress_context__


def test_a_deferrable_sensor_leaves_the_waiting_to_the_triggerer(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    store_is_away(monkeypatch)
    with pytest.raises(TaskDeferred):
        fresh(deferrable=True).execute(context())


def test_a_damaged_job_is_not_retried(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)

    def glance(job: Job) -> Any:
        raise CorruptError("orders/chk-00000002/_metadata is damaged: restore an earlier checkpoint")

    monkeypatch.setattr(Job, "glance", glance)
    with pytest.raises(AirflowFailException, match=r"^orders/chk-00000002/_metadata is damaged"):
        fresh().execute(context())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_age": 5}, "task 'wait': max_age=5 has to be a timedelta"),
        ({"max_age": timedelta(0)}, "max_age=.* has to be more than 0"),
        ({"max_age": "soon"}, "task 'wait': max_age='soon' 'soon' is not a duration"),
        ({"job": ""}, "task 'wait': job='' names nothing"),
        ({"job": 7}, "task 'wait': job=7 has to be a text"),
        ({"missing": "explode"}, "task 'wait': missing='explode' is not one of wait, fail"),
        ({"deferrable": "perhaps"}, "task 'wait': deferrable='perhaps' has to be true or false"),
        ({"store_patience": 600}, "task 'wait': store_patience=600 has to be a timedelta"),
        ({"stateflow_conn_id": None}, "task 'wait': stateflow_conn_id=None has to be a text"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fresh(**arguments)


def test_so_are_wrong_times() -> None:
    with pytest.raises(ValueError, match="task 'wait': watermark='tomorrow' is no time: write it like"):
        passed(watermark="tomorrow")
    with pytest.raises(TypeError, match="task 'wait': watermark=7 has to be a datetime"):
        passed(watermark=7)


@pytest.mark.parametrize("sensor", [CheckpointFreshnessSensor, WatermarkSensor])
def test_they_are_sensors_with_templates_and_the_link(sensor: type[BaseSensorOperator]) -> None:
    assert issubclass(sensor, BaseSensorOperator)
    assert {"job", "stateflow_conn_id", "checkpoint_dir", "missing"} <= set(sensor.template_fields)
    assert any(isinstance(link, CheckpointLink) for link in sensor.operator_extra_links)


def test_a_dag_with_them_goes_through_airflows_database() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("watch", schedule=None) as dag:
        fresh(task_id="one", deferrable=True)
        passed(task_id="other", watermark="{{ data_interval_end }}")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert {task.task_id for task in stored.tasks} == {"one", "other"}
    assert stored.get_task("one").operator_extra_link_dict.keys() == {"Checkpoints"}


def test_a_heartbeat_says_nothing_of_freshness(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ago=3 * HOUR, batches=2)
    job.clock = before_now(JUST_NOW)  # type: ignore[method-assign]
    job.beat(50)
    assert not fresh().poke(context())


@pytest.mark.parametrize("kind", [CheckpointFreshnessSensor, WatermarkSensor])
def test_a_note_is_a_template_of_sensors_too(kind: Any) -> None:
    assert {"note", "job", "stateflow_conn_id", "checkpoint_dir"} <= set(kind.template_fields)

"""Sensors in a real Airflow: deferred to its triggerer and back, and the alert of a run that is late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.looking import HOUR
from tests.airflow.server import PROJECT, AirflowServer, airflow, connection
from tests.airflow.stage import until
from tests.jobs.builder import T0, before_now
from tests.jobs.made import JUST_NOW, made_job
from tests.long_form import IN_TEST_AIRFLOW

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),  # Airflow takes its time to start on a machine that is busy
    IN_TEST_AIRFLOW,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("waiting")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[AirflowServer]:
    nobody_there = connection(
        "s3://bucket/checkpoints",
        storage_options={
            "endpoint": "http://127.0.0.1:9",
            "allow_http": "true",
            "access_key_id": "nobody",
            "secret_access_key": "hush-hush",
            "max_retries": "0",
            "region": "local",
        },
    )
    # `send` of an alert is found by its name.
    with airflow(
        folder, connections={"unreachable": nobody_there}, environment={"PYTHONPATH": str(PROJECT)}
    ) as running:
        running.client().await_dags("waiting")
        yield running


def test_tasks_wait_in_the_triggerer_and_go_on_when_the_job_is_there(
    server: AirflowServer, folder: Path
) -> None:
    client = server.client()
    job = made_job(folder / "checkpoints", "seen", ago=3 * HOUR, batches=2)
    run = client.trigger("waiting", {"job": "seen", "until": "2026-01-01T00:00:00+00:00"})
    client.await_task(run, "fresh", states=("deferred",))
    client.await_task(run, "reached", states=("deferred",))
    client.await_task(run, "rescheduled", states=("up_for_reschedule",))

    # A store that is away is borne for as long as was said, and then told without a secret.
    assert client.await_task(run, "away") == "failed"
    log = client.log(run, "away")
    assert "trying again in" in log
    assert "s3://bucket/checkpoints" in log
    assert "hush-hush" not in log

    # The run is late, so the triggerer looks after the jobs; and so does the task that failed.
    alerts = folder / "alerts"
    until(lambda: alerts.exists() and "is stale" in alerts.read_text(), "the alert of the deadline", 180)
    sentence = "job 'seen' is stale: its newest checkpoint is 3 hours old: start its next run"
    assert sentence in alerts.read_text()
    until(lambda: "is not known" in alerts.read_text(), "the alert of the task that failed", 180)

    job.clock, job.watermark = before_now(JUST_NOW), T0  # type: ignore[method-assign]
    job.batch()
    for task in ("fresh", "reached", "rescheduled"):
        assert client.await_task(run, task) == "success", client.log(run, task)
    result = client.xcom(run, "reached")
    assert (result["job"], result["checkpoint"], result["watermark"]) == ("seen", 4, T0)
    assert client.xcom(run, "fresh")["age"] < 3600
    assert client.links(run, "fresh")["Checkpoints"].endswith("/jobs/stateflow_default/seen/checkpoints/4")

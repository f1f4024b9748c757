"""Airflow as it is, with Spark as it is: a pipeline from its first run to its recovery, and what cannot be done."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from demo.table import compared
from stateflow.jobs.job import Job
from tests.airflow.postgres import binaries
from tests.airflow.server import (
    AirflowClient,
    AirflowServer,
    RefusedError,
    RunOf,
)
from tests.airflow.stage import PATIENCE, ROWS, contents
from tests.airflow.story import refusal, whole_story
from tests.long_form import IN_TEST_AIRFLOW

pytestmark = [
    pytest.mark.system,
    pytest.mark.core,
    pytest.mark.timeout(1800),
]  # Airflow and starts of Spark, on a machine that may be busy


@pytest.fixture(scope="module")
def job(server: AirflowServer, folder: Path) -> Job:
    """The story's, whose pipeline has run and been recovered."""
    whole_story(server.client(), server.client("second"), folder)
    return Job(str(folder / "checkpoints"), "orders")


@pytest.fixture(scope="module")
def unanswered(server: AirflowServer, job: Job) -> RunOf:
    """A recovery that nobody approves. It has a minute for it, during which other tests go on."""
    return server.client().trigger("stateflow_recovery", {"job": job.name, "origin": "latest"})


def test_a_run_a_savepoint_kill_9_in_a_batch_and_a_recovery_end_in_the_right_output(
    job: Job, folder: Path
) -> None:
    verdict = compared(folder / "orders", folder / "totals")
    assert (verdict.orders, verdict.right) == (6 * ROWS, True)
    assert job.status().timeline == 2, "it went back once"


def test_the_story_was_told_with_the_database_of_production(job: Job, database: str) -> None:
    assert binaries()
    assert database.startswith("postgresql")


def test_an_unknown_job_a_missing_connection_and_an_unreachable_root_are_told_in_a_sentence(
    client: AirflowClient, job: Job, folder: Path
) -> None:
    before = contents(folder / "checkpoints")
    unknown = client.trigger("stateflow_savepoint", {"job": "nonesuch"})
    missing = client.trigger("stateflow_savepoint", {"job": "orders", "conn_id": "nowhere"})
    unreachable = client.trigger("stateflow_stop", {"job": "orders", "conn_id": "unreachable"})
    assert "there is no job 'nonesuch'" in refusal(client, unknown, "savepoint")
    assert "there is no connection 'nowhere': add it with" in refusal(client, missing, "savepoint")
    said = refusal(client, unreachable, "stop")
    assert "s3://bucket/checkpoints" in said
    assert "hush" not in client.log(unreachable, "stop")
    assert contents(folder / "checkpoints") == before


@pytest.mark.parametrize(
    ("dag_id", "conf"),
    [
        ("stateflow_recovery", {"job": "orders", "origin": "yesterday"}),
        ("stateflow_recovery", {"job": "orders", "origin": "latest", "rewind_sinks": "perhaps"}),
        ("stateflow_savepoint", {"job": "../../etc", "kind": "native"}),
        ("stateflow_savepoint", {"job": "orders", "kind": "quick"}),
        ("stateflow_cleanup", {"job": "orders", "retained": -3}),
    ],
)
def test_a_form_with_nonsense_is_refused_before_anything_runs(
    client: AirflowClient, dag_id: str, conf: dict[str, object]
) -> None:
    with pytest.raises(RefusedError) as refused:
        client.trigger(dag_id, conf)
    assert refused.value.code in (400, 422)


def test_who_asked_for_a_recovery_cannot_approve_it(client: AirflowClient, job: Job) -> None:
    """In the story above somebody else has approved one, and it was carried out."""
    before = job.log().decided
    asked = client.trigger("stateflow_recovery", {"job": job.name, "origin": "latest"})
    client.await_question(asked, "approve", PATIENCE)
    client.answer(asked, "approve", "Approve")
    assert "'admin' has asked for this restore and approved it" in refusal(client, asked, "approve")
    assert {client.task(asked, name)["state"] for name in ("stop", "restore", "start")} <= {
        "upstream_failed",
        "skipped",
        None,
    }
    assert job.log().decided == before


@IN_TEST_AIRFLOW
def test_an_approval_that_nobody_gives_ends_with_a_sentence_and_nothing_changes(
    client: AirflowClient, job: Job, unanswered: RunOf
) -> None:
    assert "nobody approved within" in refusal(client, unanswered, "approve")
    states = {task["task_id"]: task["state"] for task in client.tasks(unanswered)}
    assert {states[name] for name in ("stop", "restore", "verify", "start")} <= {
        "upstream_failed",
        "skipped",
        None,
    }
    newest = job.log().decided
    assert newest is not None
    assert newest.at < datetime.fromisoformat(client.task(unanswered, "plan")["start_date"]).timestamp() * 1e6

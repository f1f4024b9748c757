"""Jobs that need somebody are found, told in a sentence each, and sent; well ones make no noise."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import structlog
from airflow.models.callback import CallbackState
from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
from airflow.sdk.execution_time.callback_supervisor import execute_callback
from airflow.triggers.callback import CallbackTrigger

from stateflow.airflow import StaleJobs
from stateflow.airflow.staleness import stale_jobs
from stateflow.errors import NotFoundError, UnavailableError
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.looking import HOUR
from tests.jobs.made import JUST_NOW, made_job
from tests.refusals.refusal import refused

SENT: list[str] = []
SEND = f"{__name__}.remember"


def remember(message: str) -> None:
    """What a DeadlineAlert finds by its name."""
    SENT.append(message)


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


@pytest.fixture
def root(tmp_path: Path, connect: Connect) -> Path:
    """Five jobs: one is well, one was drained, and three need somebody."""
    connect(tmp_path)
    made_job(tmp_path, "orders", ago=JUST_NOW, batches=2)
    made_job(tmp_path, "quiet", ago=5 * HOUR, batches=2).drained()
    made_job(tmp_path, "clicks", ago=5 * HOUR, batches=2)
    made_job(tmp_path, "payments", ended=False, ago=timedelta(minutes=10), batches=2)
    blocked = made_job(tmp_path, "refunds", ago=JUST_NOW, batches=2)
    blocked.batch(carried_out=False)
    blocked.beat(5, ended=True)
    return tmp_path


def notifier_of(**arguments: Any) -> StaleJobs:
    return StaleJobs(**{"older_than": "2 hours", "send": remember, **arguments})


def test_those_that_need_somebody_are_found_with_the_next_step(root: Path) -> None:
    found = {one.job: one for one in stale_jobs(2 * HOUR)}
    assert {job: one.state for job, one in found.items()} == {
        "clicks": "stale",
        "payments": "lost",
        "refunds": "blocked",
    }
    assert "its newest checkpoint is 5 hours old: start its next run" in found["clicks"].reason
    assert "no sign of life for 10 minutes: start the next run" in found["payments"].reason
    assert "see `stateflow abandon refunds 4`" in found["refunds"].reason


def test_the_bound_decides_what_is_old(root: Path) -> None:
    assert "clicks" not in {one.job for one in stale_jobs(6 * HOUR)}


def test_only_the_jobs_that_are_named_are_looked_at(root: Path) -> None:
    assert [one.job for one in stale_jobs(2 * HOUR, ["orders", "clicks"])] == ["clicks"]


def test_a_job_that_is_not_there_is_told(root: Path) -> None:
    (found,) = stale_jobs(2 * HOUR, ["ordres"])
    assert (found.job, found.state) == ("ordres", "missing")
    assert "there is no job 'ordres'" in found.reason
    assert "orders" in found.reason


def test_a_damaged_job_hides_no_other(root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "job").write_text("no record")
    found = {one.job: one for one in stale_jobs(2 * HOUR)}
    assert found["broken"].state == "unreadable"
    assert found["broken"].reason.startswith("job 'broken' cannot be read: broken/job")
    assert found["clicks"].state == "stale"


@pytest.mark.parametrize("end", ["_metadata", "_pending"])
def test_a_damaged_record_is_no_record_that_waits_for_the_next_run(root: Path, end: str) -> None:
    (root / "orders" / "chk-00000003" / end).write_text("no record")
    found = {one.job: one for one in stale_jobs(2 * HOUR)}["orders"]
    assert found.state == "unreadable"
    assert f"orders/chk-00000003/{end} cannot be read" in found.reason
    assert "run `stateflow verify orders`" in found.reason
    assert "abandon" not in found.reason


def test_a_job_that_has_lost_its_identity_is_not_forgotten(root: Path) -> None:
    (root / "orders" / "job").unlink()
    found = {one.job: one for one in stale_jobs(2 * HOUR)}["orders"]
    assert found.state == "unreadable"
    assert "orders/job, which says who job 'orders' is, is missing" in found.reason


def test_a_job_that_has_lost_its_records_is_not_new(root: Path) -> None:
    made_job(root, "empty", ago=JUST_NOW).progress(1)
    for folder in [*(root / "empty").glob("chk-*"), root / "empty" / "epochs"]:
        rmtree(folder)
    assert Job(str(root), "empty").status().status == "IDLE", "not just created"
    found = {one.job: one for one in stale_jobs(2 * HOUR)}["empty"]
    assert found.state == "unreadable"
    assert "it has no record any more, although empty/control/progress-00000001 tells of some" in found.reason


def test_a_root_elsewhere_needs_no_connection(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_STATEFLOW_DEFAULT")
    assert [one.job for one in stale_jobs(2 * HOUR, ["clicks"], checkpoint_dir=str(root))] == ["clicks"]


def test_a_missing_connection_is_an_error_that_says_what_to_do() -> None:
    with refused(NotFoundError, "no connection 'elsewhere'", "add it with"):
        stale_jobs(2 * HOUR, stateflow_conn_id="elsewhere")


# The notifier


def test_as_the_callback_of_a_task_all_go_out_in_one_message(root: Path) -> None:
    notifier_of()({"ti": None})
    (message,) = SENT
    first, *rest = message.splitlines()
    assert first == "3 jobs need somebody:"
    assert [line.split("'")[1] for line in rest] == ["clicks", "payments", "refunds"]


def test_a_single_one_is_its_sentence(root: Path) -> None:
    notifier_of(jobs=["clicks"])({})
    assert [stale_jobs(2 * HOUR, ["clicks"])[0].reason] == SENT


def test_while_all_are_well_nothing_is_sent(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notifier_of(jobs=["orders", "quiet"])({})
    assert SENT == []
    assert "no job is stale" in capsys.readouterr().out


def test_without_a_function_it_is_in_the_log(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notifier_of(jobs=["clicks"], send="")({})
    log = capsys.readouterr().out
    assert "warning" in log
    assert "job 'clicks' is stale" in log


def test_a_root_that_cannot_be_read_is_worth_a_message(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def glance(job: Job) -> Any:
        raise UnavailableError("s3://bucket/root cannot be reached")

    monkeypatch.setattr(Job, "glance", glance)
    notifier_of()({})
    assert SENT == ["whether any job is stale is not known: s3://bucket/root cannot be reached"]


def test_what_it_looks_at_may_be_a_template(root: Path) -> None:
    notifier = notifier_of(jobs="{{ params.jobs }}", older_than="{{ params.bound }}")
    notifier({"params": {"jobs": "orders, clicks", "bound": "2 hours"}})
    assert len(SENT) == 1
    assert "job 'clicks'" in SENT[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"older_than": 7}, "StaleJobs: older_than=7 has to be a timedelta"),
        ({"older_than": "a while"}, "StaleJobs: older_than='a while' 'a while' is not a duration"),
        ({"jobs": 3}, "StaleJobs: jobs=3 has to be names of jobs"),
        ({"send": 3}, "StaleJobs: send=3 has to be a function"),
        ({"stateflow_conn_id": ""}, "StaleJobs: stateflow_conn_id='' names nothing"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        notifier_of(**arguments)


def test_a_function_that_nobody_would_await_is_refused() -> None:
    async def send(message: str) -> None: ...

    with pytest.raises(TypeError, match="has to be a plain function: nobody awaits it"):
        notifier_of(send=send)


# As Airflow calls it for a deadline


def deadline(callback: AsyncCallback | SyncCallback) -> DAG:
    with DAG(
        "orders",
        schedule=None,
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(hours=1), callback=callback
        ),
    ) as dag:
        return dag


KWARGS = {"older_than": "2 hours", "jobs": ["clicks"], "send": SEND}


def test_a_deadline_that_was_missed_calls_it_in_the_triggerer(root: Path) -> None:
    callback = AsyncCallback(StaleJobs, kwargs=KWARGS)
    trigger = CallbackTrigger(callback.path, {**callback.kwargs, "context": {"dag_run": {"run_id": "1"}}})

    async def called() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    payloads = asyncio.run(called())
    assert payloads[-1]["state"] == CallbackState.SUCCESS, payloads
    assert len(SENT) == 1
    assert "job 'clicks' is stale" in SENT[0]


def test_or_on_the_executor(root: Path) -> None:
    callback = SyncCallback(StaleJobs, kwargs=KWARGS)
    kwargs = {**callback.kwargs, "context": {"dag_run": {"run_id": "1"}}}
    done = execute_callback(callback.path, kwargs, Path("orders.py"), None, structlog.get_logger())
    assert done == (True, None)
    assert len(SENT) == 1
    assert "job 'clicks' is stale" in SENT[0]


@pytest.mark.parametrize("kind", [AsyncCallback, SyncCallback])
def test_a_dag_with_such_a_deadline_goes_through_airflows_database(kind: Any) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    document = json.loads(json.dumps(DagSerialization.to_dict(deadline(kind(StaleJobs, kwargs=KWARGS)))))
    assert "stateflow.airflow.staleness.StaleJobs" in json.dumps(document)
    assert DagSerialization.from_dict(document).dag_id == "orders"


@pytest.mark.slow
def test_an_alert_s_module_is_found_in_the_plugins_folder_and_not_beside_dags(tmp_path: Path) -> None:
    """Where the triggerer looks, as docs/airflow.md says."""
    places = ("dags", "plugins", "home/config")
    for number, place in enumerate(places):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / f"alerts_{number}.py").write_text("def page_somebody(message): ...\n")
    code = (
        "import airflow, pkgutil\n"
        "for number in range(3):\n"
        "    try: print(pkgutil.resolve_name(f'alerts_{number}.page_somebody').__name__)\n"
        "    except ModuleNotFoundError as error: print(error)"
    )
    surroundings = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "plugins"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=surroundings, cwd=tmp_path, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert dict(zip(places, done.stdout.splitlines()[-3:], strict=True)) == {
        "dags": "No module named 'alerts_0'",
        "plugins": "page_somebody",
        "home/config": "page_somebody",
    }

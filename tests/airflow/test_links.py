"""The button of a task: where it leads, and that it asks nobody but Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.xcom import XCom

from stateflow.airflow import (
    CheckpointLink,
    StateflowCleanupOperator,
    StateflowRunOperator,
    StateflowVerifyOperator,
)
from stateflow.airflow.operators.links import driver_log, page_of, spark_page
from stateflow.checkpoint.lineage import RunLineage, report_lineage
from stateflow.format.records import Owner
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, ran, task
from tests.airflow.test_run_operator import Method
from tests.jobs.made import ORDERS, MadeJob, made_job


@pytest.mark.parametrize(
    ("said", "page"),
    [
        (
            {"conn_id": "prod", "job": "orders", "checkpoint": 42},
            "/air/stateflow/#/jobs/prod/orders/checkpoints/42",
        ),
        ({"conn_id": "prod", "job": "orders", "checkpoint": None}, "/air/stateflow/#/jobs/prod/orders"),
        ({"conn_id": "a/b", "job": "über"}, "/air/stateflow/#/jobs/a%2Fb/%C3%BCber"),
        ({"conn_id": "prod", "job": ""}, "/air/stateflow/#/jobs"),
        ({"conn_id": "", "job": "orders", "checkpoint": 42}, ""),
        (None, ""),
        ("nonsense", ""),
    ],
)
def test_a_page_for_what_a_task_has_said(said: Any, page: str) -> None:
    assert page_of(said, "https://airflow.example/air/") == page


def test_without_a_base_url_pages_are_at_the_top() -> None:
    assert page_of({"conn_id": "prod", "job": "orders"}, "") == "/stateflow/#/jobs/prod/orders"


def test_the_link_reads_xcom_and_no_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    attempt = Try("it")
    operator = task(StateflowVerifyOperator)
    operator.execute(context_of(attempt))
    connect("s3://a-bucket-that-nobody-can-reach")
    monkeypatch.setattr(XCom, "get_value", lambda *, ti_key, key: ti_key.pushed.get(key))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    [link] = operator.operator_extra_links
    assert isinstance(link, CheckpointLink)
    assert (link.name, link.xcom_key) == ("Checkpoints", "_link_CheckpointLink")
    assert link.get_link(operator, ti_key=attempt) == "/stateflow/#/jobs/stateflow_default/orders"
    assert link.get_link(operator, ti_key=Try("other")) == ""


DRIVER = {"application": "app-1/x", "host": "worker-3", "pages": "http://worker-3:4040"}


def test_spark_s_page_is_the_configured_one_or_else_the_run_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark_page({"driver": DRIVER}) == "http://worker-3:4040"
    assert spark_page({"driver": {**DRIVER, "pages": ""}}) == "", "Spark's pages are off"
    assert spark_page({"driver": {**DRIVER, "pages": "javascript:alert(1)"}}) == ""
    assert spark_page({"job": "orders"}) == spark_page(None) == ""
    monkeypatch.setenv("AIRFLOW__STATEFLOW__SPARK_PAGE", "https://history/{application}/jobs?on={host}")
    assert spark_page({"driver": DRIVER}) == "https://history/app-1%2Fx/jobs?on=worker-3"
    assert spark_page({"job": "orders"}) == "", "no driver was started"


def test_the_driver_s_log_is_where_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver_log({"driver": DRIVER}) == ""
    monkeypatch.setenv("AIRFLOW__STATEFLOW__DRIVER_LOG", "https://logs/?q={application}")
    assert driver_log({"driver": DRIVER}) == "https://logs/?q=app-1%2Fx"


def test_a_run_s_buttons_lead_to_its_driver_while_it_runs_and_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    monkeypatch.setenv("AIRFLOW__STATEFLOW__SPARK_PAGE", "https://history/{application}")

    def work(job: MadeJob) -> None:
        job.batch()
        owner = Owner("r", host="worker-3", dag_run="upkeep/manual__1", task="it")
        run = RunLineage(epoch=job.writer.epoch, owner=owner, application="app-1")
        report_lineage(job.store, job.layout, run)

    attempt = Try("it")
    operator = task(StateflowRunOperator, pipeline=f"{ORDERS}:orders", launcher=Method(tmp_path, work))
    operator.execute(context_of(attempt))
    monkeypatch.setattr(XCom, "get_value", lambda *, ti_key, key: ti_key.pushed.get(key))
    links = {link.name: link for link in operator.operator_extra_links}
    assert list(links) == ["Checkpoints", "Spark", "Driver log"]
    assert attempt.pushed["_link_SparkLink"] == "https://history/app-1", "before the task has ended"
    assert links["Spark"].get_link(operator, ti_key=attempt) == "https://history/app-1"
    assert links["Checkpoints"].get_link(operator, ti_key=attempt).endswith("/orders/checkpoints/2")


def test_a_root_that_no_connection_names_is_on_no_page(tmp_path: Path) -> None:
    made_job(tmp_path)
    attempt = Try("it")
    ran(StateflowVerifyOperator, attempt, checkpoint_dir=str(tmp_path))
    assert page_of(attempt.pushed["stateflow"], "") == ""


def test_a_cleanup_of_all_jobs_leads_to_all_jobs(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    for job in ("", "*"):
        attempt = Try("it")
        assert ran(StateflowCleanupOperator, attempt, job=job)["job"] == ""
        assert page_of(attempt.pushed["stateflow"], "") == "/stateflow/#/jobs"

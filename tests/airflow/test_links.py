"""The button of a task: where it leads, and that it asks nobody but Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.xcom import XCom

from stateflow.airflow import CheckpointLink, StateflowCleanupOperator, StateflowVerifyOperator
from stateflow.airflow.operators.links import page_of
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, ran, task
from tests.jobs.made import made_job


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


def test_a_root_that_no_connection_names_is_on_no_page(tmp_path: Path) -> None:
    made_job(tmp_path)
    attempt = Try("it")
    ran(StateflowVerifyOperator, attempt, checkpoint_dir=str(tmp_path))
    assert page_of(attempt.pushed["stateflow"], "") == ""


def test_a_cleanup_of_all_jobs_leads_to_all_jobs(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    attempt = Try("it")
    ran(StateflowCleanupOperator, attempt, job="")
    assert page_of(attempt.pushed["stateflow"], "") == "/stateflow/#/jobs"

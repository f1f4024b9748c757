"""A real Airflow whose triggerer watches a table: a commit begins a run, nothing else does, and a restart begins none twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from demo.airflow_client import AirflowClient, RunOf
from demo.table import Orders, compared
from tests.airflow.server import EXAMPLE, AirflowServer, server_in
from tests.airflow.stage import PATIENCE, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

INTERVAL = 2
QUIET = 20
"""Seconds in which several looks find nothing."""
DAGS = """
import os
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher

from stateflow.airflow import NewRowsTrigger, SparkSubmit, StateflowRunOperator

FOLDER = os.environ["STORY_FOLDER"]


def watched(dag_id, job):
    new = Asset(f"new-for-{job}", watchers=[AssetWatcher(name=job, trigger=NewRowsTrigger(job=job, interval=INTERVAL))])
    with DAG(dag_id, schedule=[new], catchup=False, max_active_runs=1):
        StateflowRunOperator(
            task_id="run", job=job, pipeline="EXAMPLE:orders", launcher=SparkSubmit(driver_memory="1g"),
            parameters={"input": f"{FOLDER}/orders", "output": f"{FOLDER}/totals"},
        )


watched("watched", "orders")
watched("misspelt", "odrers")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AirflowServer]:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "dags").mkdir()
    dags = DAGS.replace("INTERVAL", str(INTERVAL)).replace("EXAMPLE", str(EXAMPLE))
    (tmp_path / "dags" / "watched.py").write_text(dags)
    with replace(server_in(tmp_path), dags=(tmp_path / "dags",), plugins=None) as running:
        yield running


def runs(client: AirflowClient, dag_id: str = "watched") -> list[dict[str, str]]:
    found: list[dict[str, str]] = client.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
    return sorted(found, key=lambda run: run["run_after"])


def test_a_commit_begins_a_run_and_nothing_else_does(server: AirflowServer, tmp_path: Path) -> None:
    client, orders = server.client(), Orders(tmp_path / "orders")
    client.patience = PATIENCE
    client.await_dags("watched", "misspelt")
    client.unpause("misspelt")
    orders.add(2, 100)
    first = client.trigger("watched")
    assert client.await_run(first) == "success"
    time.sleep(QUIET)
    assert len(runs(client)) == 1, "nothing was new"

    orders.add(1, 100)
    committed = time.time()
    until(lambda: len(runs(client)) == 2, "a run to begin")
    begun = datetime.fromisoformat(runs(client)[1]["queued_at"]).timestamp()
    print(f"the run was called for {begun - committed:.1f} s after the commit")  # noqa: T201
    assert begun - committed < 60
    assert client.await_run(RunOf("watched", runs(client)[1]["dag_run_id"])) == "success"
    assert compared(orders.folder, tmp_path / "totals").right
    time.sleep(QUIET)
    assert len(runs(client)) == 2, "its rows are read"

    server.restart("triggerer", kill=True)
    orders.add(1, 100)
    until(lambda: len(runs(client)) == 3, "a run to begin after the restart")
    assert client.await_run(RunOf("watched", runs(client)[2]["dag_run_id"])) == "success"
    assert compared(orders.folder, tmp_path / "totals").right

    # Rows that were called for and are not read yet, since nobody takes the call.
    client.call("PATCH", "/api/v2/dags/watched", {"is_paused": True}, update_mask="is_paused")
    made = called(server)
    orders.add(1, 100)
    until(lambda: called(server) == made + 1, "the rows to be seen")
    time.sleep(3 * INTERVAL)
    server.restart("triggerer", kill=True)
    client.unpause("watched")
    time.sleep(QUIET)
    assert called(server) == made + 1, "a triggerer that begins anew calls for nothing twice"
    assert len(runs(client)) == 3

    assert runs(client, "misspelt") == []
    said = server.log_tail("triggerer", 100_000)
    assert "there is no job 'odrers' in" in said
    assert "its jobs are: orders: run it once, or correct its name" in said
    assert "will call for this run again" not in said


def called(server: AirflowServer) -> int:
    """How often the watcher has called for a run."""
    return server.log_tail("triggerer", 100_000).count("job 'orders' has rows to read")

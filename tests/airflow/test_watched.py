"""A real Airflow whose triggerer watches a table, a folder and a topic of a real broker: what arrives begins a run, nothing else does, and
a restart begins none twice. The partitions that a run writes begin the runs of another DAG."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from demo.airflow_client import AirflowClient, RunOf
from demo.table import Orders, compared
from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import bundle_of, local_jars
from tests.airflow.server import EXAMPLE, AirflowServer, server_in
from tests.airflow.stage import PATIENCE, until
from tests.connectors.kafka_server import Topics
from tests.hosts.hosting import Host, host
from tests.spark.kafka_broker import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

INTERVAL = 2
QUIET = 10
"""Seconds in which several looks find nothing."""
JOBS = ("orders", "of_files", "of_topic")
"""The first one's rows are in a table."""
PIPELINES = """
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Event:
    id: int
    day: str


@sf.pipeline("of_files")
def of_files(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("events", sf.files(input, "json"), Event).append("out", sf.delta(output, partition_by=["day"]))


@sf.pipeline("of_topic")
def of_topic(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("events", sf.kafka("events", bootstrap=input), Event).append("out", sf.delta(output, partition_by=["day"]))
"""
DAGS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher, PartitionedAssetTimetable

from stateflow.airflow import NewRowsTrigger, StateflowRunOperator, WarmHost


def watched(job, input, pipeline, dag_id="", **more):
    new = Asset(f"new-for-{job}", watchers=[AssetWatcher(name=job, trigger=NewRowsTrigger(job=job, interval=INTERVAL))])
    with DAG(dag_id or job, schedule=[new], catchup=False, max_active_runs=1):
        StateflowRunOperator(
            task_id="run", job=job, pipeline=pipeline, launcher=WarmHost("tests", only=True),
            parameters={"input": input, "output": f"FOLDER/{job}"}, **more,
        )


def partitioned(job, input):
    watched(job, input, f"FOLDER/pipelines.py:{job}", outlets=[Asset(f"file://FOLDER/{job}")], partition_events=True)


watched("orders", "FOLDER/table", "EXAMPLE:orders")
watched("odrers", "FOLDER/table", "EXAMPLE:orders", dag_id="misspelt")
partitioned("of_files", "FOLDER/events")
partitioned("of_topic", "ADDRESS")
with DAG("report", schedule=PartitionedAssetTimetable(assets=Asset("file://FOLDER/of_files")), catchup=False):
    EmptyOperator(task_id="report")
"""


@dataclass
class Arrivals:
    """What arrives in a table, a folder and a topic, and what has arrived in the latter two: events by number."""

    folder: Path
    address: str

    def __post_init__(self) -> None:
        self.orders = Orders(self.folder / "table")
        self.numbers = {job: list[int]() for job in ("of_files", "of_topic")}

    def put(self, job: str, *days: str) -> None:
        if job == "orders":
            self.orders.add(1, 100)
            return
        first = len(self.numbers[job])
        numbers = range(first, first + 50)
        self.numbers[job] += numbers
        lines = [json.dumps({"id": number, "day": days[number % len(days)]}) for number in numbers]
        if job == "of_files":
            # A reader may not see half of a file.
            hidden = self.folder / "events" / f"_{first}.json"
            hidden.write_text("\n".join(lines))
            hidden.rename(self.folder / "events" / f"{first}.json")
            return
        producer = Producer({"bootstrap.servers": self.address})
        for line in lines:
            producer.produce("events", line)
        assert producer.flush(30) == 0

    def read_once(self, *jobs: str) -> bool:
        return all(counted(self.folder / job) == Counter(self.numbers[job]) for job in jobs)

    @property
    def right(self) -> bool:
        """Whether the totals of the table are those of its rows."""
        return compared(self.orders.folder, self.folder / "orders").right


def counted(table: Path) -> Counter[int]:
    """How often each event is in a table that nothing is deleted from."""
    return Counter(
        number for file in table.rglob("*.parquet") for number in pq.read_table(file)["id"].to_pylist()
    )


@pytest.fixture
def arrivals(tmp_path: Path) -> Iterator[Arrivals]:
    (tmp_path / "events").mkdir()
    # Drivers take it along where it is.
    local_jars(cache_folder(), bundle_of("kafka"))
    with broker(tmp_path / "broker") as address:
        Topics(address).make("events")
        yield Arrivals(tmp_path, address)


@pytest.fixture
def team(tmp_path: Path, arrivals: Arrivals) -> Iterator[Host]:
    """It carries all runs out: how their drivers start is not tested here."""
    with host(tmp_path / "team", "--runs", str(len(JOBS)), "--cold") as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, arrivals: Arrivals, team: Host) -> Iterator[AirflowServer]:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "dags").mkdir()
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    words = {
        "INTERVAL": str(INTERVAL),
        "FOLDER": str(tmp_path),
        "ADDRESS": arrivals.address,
        "EXAMPLE": str(EXAMPLE),
    }
    dags = DAGS
    for word, text in words.items():
        dags = dags.replace(word, text)
    (tmp_path / "dags" / "watched.py").write_text(dags)
    made = server_in(tmp_path, environment={"STATEFLOW_CACHE_DIR": str(team.cache)})
    with replace(made, dags=(tmp_path / "dags",), plugins=None) as running:
        yield running


def runs(client: AirflowClient, dag_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
    return sorted(found, key=lambda run: run["run_after"])


def counts(client: AirflowClient) -> dict[str, int]:
    begun = Counter(
        run["dag_id"] for run in client.call("GET", "/api/v2/dags/~/dagRuns", limit=100)["dag_runs"]
    )
    return {job: begun[job] for job in JOBS}


def looks(server: AirflowServer) -> int:
    """Watchers look at the same time. That of a job which is not there says so."""
    return server.log_tail("triggerer", 100_000).count("there is no job 'odrers' in")


def await_looks(server: AirflowServer, since: int = 0) -> None:
    until(lambda: looks(server) > since, "the watchers to look")


def succeeded(client: AirflowClient, *jobs: str) -> None:
    """Each job's newest run does."""
    for job in jobs:
        assert client.await_run(RunOf(job, runs(client, job)[-1]["dag_run_id"])) == "success"


def called(server: AirflowServer) -> int:
    """How often the watcher of the table has called for a run."""
    return server.log_tail("triggerer", 100_000).count("job 'orders' has rows to read")


def remembered(server: AirflowServer) -> list[Any]:
    """What Airflow keeps of the table's last call."""
    with closing(sqlite3.connect(f"file:{server.home / 'airflow.db'}?mode=ro", uri=True)) as database:
        return database.execute(
            "select value from asset_state_store join asset on asset.id = asset_id where asset.name = 'new-for-orders' and key like 'stateflow/%'"
        ).fetchall()


def test_what_arrives_begins_a_run_and_nothing_else_does(server: AirflowServer, arrivals: Arrivals) -> None:
    client = server.client()
    client.patience = PATIENCE
    client.await_dags(*JOBS, "misspelt", "report")
    for dag_id in ("misspelt", "report"):
        client.unpause(dag_id)
    for job in JOBS:
        arrivals.put(job, "2026-01-01")
        client.trigger(job)
    succeeded(client, *JOBS)
    # The watchers of a DAG that was unpaused begin when its file is read again, which is not due for ten minutes.
    client.parse("orders")
    await_looks(server)
    time.sleep(QUIET)
    assert counts(client) == dict.fromkeys(JOBS, 1), "nothing was new"

    committed = time.time()
    for job in JOBS:
        arrivals.put(job, "2026-01-02", "2026-02-02")
    until(lambda: counts(client) == dict.fromkeys(JOBS, 2), "a run of each to begin")
    begun = datetime.fromisoformat(runs(client, "orders")[1]["queued_at"]).timestamp()
    print(f"the run was called for {begun - committed:.1f} s after the commit")  # noqa: T201
    assert begun - committed < 60
    succeeded(client, *JOBS)
    assert arrivals.read_once("of_files", "of_topic")
    assert arrivals.right
    days = ["2026-01-01", "2026-01-02", "2026-02-02"]
    until(lambda: len(runs(client, "report")) >= len(days), "a run of report for each partition")
    time.sleep(QUIET)
    assert counts(client) == dict.fromkeys(JOBS, 2), "its rows are read"
    assert sorted(run["partition_key"] for run in runs(client, "report")) == days

    # Rows that were called for and are not read yet, since nobody takes the call.
    client.call("PATCH", "/api/v2/dags/orders", {"is_paused": True}, update_mask="is_paused")
    made, kept = called(server), remembered(server)
    arrivals.put("orders")
    until(lambda: called(server) == made + 1, "the rows to be seen")
    until(lambda: remembered(server) != kept, "the call to be kept")
    looked = looks(server)
    server.restart("triggerer", kill=True)
    client.unpause("orders")
    arrivals.put("of_files", "2026-03-03")
    begun_anew = {"orders": 2, "of_files": 3, "of_topic": 2}
    until(lambda: counts(client) == begun_anew, "a run to begin after the restart")
    await_looks(server, looked)
    succeeded(client, "of_files")
    assert arrivals.read_once("of_files", "of_topic")
    time.sleep(QUIET)
    assert called(server) == made + 1, "a triggerer that begins anew calls for nothing twice"
    assert counts(client) == begun_anew

    assert runs(client, "misspelt") == []
    said = server.log_tail("triggerer", 100_000)
    assert "job 'of_files' has rows to read: source events: 1 files in" in said
    assert "job 'of_topic' has rows to read: source events: messages up to" in said
    assert "its jobs are: of_files, of_topic, orders: run it once, or correct its name" in said
    assert "will call for this run again" not in said

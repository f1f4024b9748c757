"""A real Airflow whose triggerer watches a folder and a topic of a real broker: what arrives begins a run, and nothing else does. The
partitions that a run writes begin the runs of another DAG."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from demo.airflow_client import AirflowClient, RunOf
from tests.airflow.server import AirflowServer, server_in
from tests.airflow.stage import PATIENCE, until
from tests.connectors.kafka_server import Topics
from tests.spark.kafka_broker import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

INTERVAL = 2
QUIET = 20
"""Seconds in which several looks find nothing."""
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

from stateflow.airflow import NewRowsTrigger, SparkSubmit, StateflowRunOperator


def watched(job, input):
    new = Asset(f"new-for-{job}", watchers=[AssetWatcher(name=job, trigger=NewRowsTrigger(job=job, interval=INTERVAL))])
    with DAG(job, schedule=[new], catchup=False, max_active_runs=1):
        StateflowRunOperator(
            task_id="run", job=job, pipeline=f"FOLDER/pipelines.py:{job}", launcher=SparkSubmit(driver_memory="1g"),
            parameters={"input": input, "output": f"FOLDER/{job}"},
            outlets=[Asset(f"file://FOLDER/{job}")], partition_events=True,
        )


watched("of_files", "FOLDER/events")
watched("of_topic", "ADDRESS")
with DAG("report", schedule=PartitionedAssetTimetable(assets=Asset("file://FOLDER/of_files")), catchup=False):
    EmptyOperator(task_id="report")
"""


@dataclass
class Arrivals:
    """What arrives in a folder and in a topic: events by number."""

    folder: Path
    address: str
    made: int = 0

    def put(self, job: str, count: int, *days: str) -> None:
        numbers = range(self.made, self.made + count)
        self.made += count
        lines = [json.dumps({"id": number, "day": days[number % len(days)]}) for number in numbers]
        if job == "of_files":
            # A reader may not see half of a file.
            hidden = self.folder / f"_{numbers[0]}.json"
            hidden.write_text("\n".join(lines))
            hidden.rename(self.folder / f"{numbers[0]}.json")
            return
        producer = Producer({"bootstrap.servers": self.address})
        for line in lines:
            producer.produce("events", line)
        assert producer.flush(30) == 0


@pytest.fixture
def arrivals(tmp_path: Path) -> Iterator[Arrivals]:
    (tmp_path / "events").mkdir()
    with broker(tmp_path / "broker") as address:
        Topics(address).make("events")
        yield Arrivals(tmp_path / "events", address)


@pytest.fixture
def server(tmp_path: Path, arrivals: Arrivals) -> Iterator[AirflowServer]:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "dags").mkdir()
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    words = {"INTERVAL": str(INTERVAL), "FOLDER": str(tmp_path), "ADDRESS": arrivals.address}
    dags = DAGS
    for word, text in words.items():
        dags = dags.replace(word, text)
    (tmp_path / "dags" / "watched.py").write_text(dags)
    with replace(server_in(tmp_path), dags=(tmp_path / "dags",), plugins=None) as running:
        yield running


def runs(client: AirflowClient, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call("GET", f"/api/v2/dags/{job}/dagRuns")["dag_runs"]
    return sorted(found, key=lambda run: run["run_after"])


def counted(table: Path) -> Counter[int]:
    """How often each event is in a table that nothing is deleted from."""
    return Counter(
        number for file in table.rglob("*.parquet") for number in pq.read_table(file)["id"].to_pylist()
    )


def test_what_arrives_in_a_folder_or_a_topic_begins_a_run_and_nothing_else_does(
    server: AirflowServer, arrivals: Arrivals, tmp_path: Path
) -> None:
    client = server.client()
    client.patience = PATIENCE
    jobs = ("of_files", "of_topic")
    client.await_dags(*jobs, "report")
    client.unpause("report")
    expected: dict[str, Counter[int]] = {job: Counter() for job in jobs}

    def arrive(job: str, *days: str) -> None:
        first = arrivals.made
        arrivals.put(job, 50, *days)
        expected[job].update(range(first, arrivals.made))

    for job in jobs:
        arrive(job, "2026-01-01")
        assert client.await_run(client.trigger(job)) == "success"
    for number in (2, 3):
        time.sleep(QUIET)
        assert {len(runs(client, job)) for job in jobs} == {number - 1}, "nothing was new"
        if number == 3:
            server.restart("triggerer", kill=True)
        for job in jobs:
            arrive(job, f"2026-01-0{number}", f"2026-02-0{number}")
        for job in jobs:
            until(lambda job=job, number=number: len(runs(client, job)) == number, f"a run of {job} to begin")
            begun = RunOf(job, runs(client, job)[-1]["dag_run_id"])
            assert client.await_run(begun) == "success"
    assert {job: counted(tmp_path / job) for job in jobs} == expected
    days = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-02-02", "2026-02-03"]
    until(lambda: len(runs(client, "report")) >= len(days), "a run of report for each partition")
    assert sorted(run["partition_key"] for run in runs(client, "report")) == days
    said = server.log_tail("triggerer", 100_000)
    assert "job 'of_files' has rows to read: source events: 1 files in" in said
    assert "job 'of_topic' has rows to read: source events: messages up to" in said
    time.sleep(QUIET)
    assert {len(runs(client, job)) for job in jobs} == {3}, "its rows are read"

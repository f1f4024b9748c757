"""A partition of a real topic lags: without `per_partition` its rows are late, with it none is, also after a kill and until it is idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import bundle_of, local_jars
from tests.connectors.kafka_server import Topics
from tests.spark.kafka_broker import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, os, signal, sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer

import stateflow as sf
from stateflow.config.options import load
from stateflow.jobs.job import Job
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import running_session

server, folder, steps = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
HOUR = 3600 * 1_000_000
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6)
producer = Producer({"bootstrap.servers": server, "acks": "all"})


@dataclass
class Order:
    hour: int
    ts: datetime


def pipeline(name, watermark):
    @sf.pipeline(name)
    def made(flow):
        source = sf.kafka("returns", "orders", bootstrap=server)
        rows = flow.source("orders", source, Order, event_time="ts", watermark=watermark, late=sf.output("late", Order))
        rows.append("out", sf.delta(str(folder / name)))
        rows.side("late").append("late", sf.delta(str(folder / f"{name}-late")))

    return made


pipelines = {"together": pipeline("together", "30 minutes"), "apart": pipeline("apart", sf.per_partition("30 minutes"))}


def hours(table):
    path = folder / table
    if not (path / "_delta_log").exists():
        return []
    return sorted(row["hour"] for row in running_session().read.format("delta").load(str(path)).collect())


def produce(partition, hours):
    for hour in hours:
        order = {"hour": hour, "ts": f"2026-01-01T{hour:02}:00:00Z"}
        producer.produce("orders", json.dumps(order), partition=int(partition))
    assert producer.flush(30) == 0


def step(name, new=(), kill=False, idle="5 minutes"):
    for partition, times in dict(new).items():
        produce(partition, times)
    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "source_idle_timeout": idle}
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
    reports = []

    def ended(report):
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        reports.append(report.record)

    done = run(RunRequest(pipelines[name], load(code=code, env={}, folder=folder), master="local[2]", conf=conf, listener=ended))
    record = reports[-1]
    marks = {each: (time.event_time - BEGIN) / HOUR for each, time in record.sources["orders"].partitions.items()}
    held = Job(str(folder / "root"), name).status().watermark_held
    mark = None if record.watermark is None else (record.watermark - BEGIN) / HOUR
    return {"rows": done.rows, "late": hours(f"{name}-late"), "marks": marks, "watermark": mark, "held": held.get("partition"),
            "report": done.held.partition if done.held else None}


for each in steps:
    print(json.dumps(step(**each)), flush=True)
"""


class Job:
    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server, self.topics = folder, server, Topics(server)
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT)

    def process(self, *steps: dict[str, Any]) -> list[dict[str, Any]]:
        """What each run said, in one process, which may be killed in the last one. `new` are the hours of a run's messages by their partition."""
        done = subprocess.run(
            [sys.executable, self.script, self.server, self.folder, json.dumps(steps)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if steps[-1].get("kill") else 0), done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_rows_of_a_partition_that_lags_are_not_late(tmp_path: Path) -> None:
    local_jars(cache_folder(), bundle_of("kafka"))
    with broker(tmp_path / "kafka") as server:
        job = Job(tmp_path, server)
        job.topics.make("returns")
        job.topics.make("orders", 3)
        *first, together, apart = job.process(
            {"name": "together", "new": {0: [9, 10], 1: [0, 1]}},
            {"name": "apart"},
            {"name": "together", "new": {0: [11], 1: [2, 3]}},
            {"name": "apart"},
            {"name": "apart", "new": {0: [12]}, "kill": True},
        )
        assert [each["rows"] for each in first] == [4, 4]
        assert first[0]["marks"] == {}
        assert first[1]["marks"] == {"orders/0": 10, "orders/1": 1}
        assert [each["report"] for each in first] == [None, "orders/1"]

        # The partition went on from where it was. The third one had no rows yet, and what it begins with is behind.
        assert together["late"] == [2, 3]
        assert (together["watermark"], together["held"]) == (9.5, None)
        assert apart["late"] == []
        assert (apart["watermark"], apart["held"], apart["report"]) == (0.5, "orders/1", "orders/1")

        # The last run was killed as soon as its record was complete; the next process has the marks from there.
        killed, held, free, late = job.process(
            {"name": "apart", "new": {1: [4], 2: [0]}},
            # From now on two partitions are silent.
            {"name": "apart", "new": {0: [13]}},
            {"name": "apart", "new": {0: [14]}, "idle": "1 ms"},
            {"name": "apart", "new": {1: [5]}},
        )
        assert killed["late"] == [0], (
            "a partition that begins behind the watermark holds it, and does not take it back"
        )
        assert killed["watermark"] == 2.5
        assert killed["marks"] == {"orders/0": 12, "orders/1": 4, "orders/2": 0}
        assert (held["watermark"], held["held"]) == (2.5, "orders/2")
        assert (free["watermark"], free["held"]) == (12.5, None)
        assert late["late"] == [0, 5]

"""Batches of the right size from a real broker: a backlog begins small, each partition moves, nothing is lost or read twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.kafka_broker import broker, connector_jars
from tests.spark.test_kafka import ROOT, SCRIPT

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PIPELINE, _, _ = SCRIPT.partition("make_topic()\nproduce(0")
RUNS = """
from stateflow.spark.inputs import batch_size

batch_size.FIRST = {**batch_size.FIRST, "rows": 20}


def sized(**more):
    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "target_batch_duration": "2 minutes"}
    reports = []
    run(RunRequest(orders, load(code={**code, **more}, folder=folder), listener=reports.append))
    streams = [report.record.statistics["batch_size"]["streams"] for report in reports]
    return [[report.rows, stream[0]["most"], stream[0]["took"]] for report, stream in zip(reports, streams)]


make_topic()
produce(0, 1000)
told = [sized()]
produce(1000, 1200)
told.append(sized())
written = spark.read.format("delta").load(str(folder / "totals"))
print(json.dumps([told, written.groupBy("user").max("orders").agg({"max(orders)": "sum"}).first()[0]]))
spark.stop()
"""


@pytest.mark.parametrize("own", ["", "100"])
def test_a_backlog_of_a_topic_comes_in_batches_that_grow(own: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    limit = f'"maxOffsetsPerTrigger": "{own}"' if own else ""
    script.write_text(PIPELINE.replace('"maxOffsetsPerTrigger": "20"', limit) + RUNS)
    with broker(tmp_path / "kafka") as server:
        done = subprocess.run(
            [sys.executable, script, server, ",".join(connector_jars()), tmp_path],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (backlog, later), orders = json.loads(done.stdout.splitlines()[-1])
    assert orders == 1200
    if own:
        assert [rows for rows, _, _ in backlog] == [20, 40, 80, *[100] * 8, 60]
        assert [rows for rows, _, _ in later] == [100, 100]
    else:
        assert [rows for rows, _, _ in backlog] == [20, 40, 80, 160, 320, 380]
        assert [most for _, most, _ in backlog] == [20, 40, 80, 160, 320, 640]
        assert [rows for rows, _, _ in later] == [200]
    assert all(rows == took for rows, _, took in [*backlog, *later])

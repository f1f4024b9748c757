"""A cluster loses shuffle files in the middle of a batch, and a step that is not deterministic gives other rows the second time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick_java import QUICK_JAVA
from tests.spark.murder import ROOT
from tests.spark.murder_evidence import delta_rows

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PIPELINE = """
import os
import signal
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F

import stateflow as sf


class Moved(sf.KeyedProcess):
    seen = sf.ValueState(int, default=0)

    def process(self, key, rows, ctx):
        here = Path(os.environ["HERE"])
        ids = [row.id for row in rows]
        self.seen.value += len(ids)
        if TaskContext.get().partitionId() == 0:
            (here / "began").touch()
        elif not (here / "killed").exists():
            while not (here / "began").exists():
                time.sleep(0.1)
            time.sleep(8)  # the other subtask is through
            (here / "killed").touch()
            os.kill(java_of(os.getppid()), signal.SIGKILL)
            time.sleep(60)
        for each in ids:
            yield each, key


def java_of(pid):
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@sf.pipeline("moved")
def moved(flow, folder: str):
    def rows(spark):
        return spark.readStream.schema("id int").json(folder + "/input")

    def chance(frame):
        # Spark takes this function for a deterministic one.
        return frame.withColumn("user", F.udf(lambda n: int.from_bytes(os.urandom(2)) % 50, "int")("id"))

    flow.source("input", rows).transform(chance).key_by("user").process("moved", Moved, output="id int, user int").append(
        "out", sf.delta(folder + "/out")
    )
"""
CONF = {
    "spark.executor.memory": "600m",
    "spark.driver.memory": "800m",
    "spark.task.maxFailures": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executor.extraJavaOptions": QUICK_JAVA,
}


def test_a_batch_whose_rows_would_be_mixed_of_two_computations_fails_and_delivers_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "moved.py").write_text(PIPELINE)
    (tmp_path / "input").mkdir()
    for number in range(2):
        rows = "\n".join(json.dumps({"id": n}) for n in range(number * 500, number * 500 + 500))
        (tmp_path / "input" / f"{number}.json").write_text(rows)
    (tmp_path / "stateflow.toml").write_text("shared_filesystem = true\nparallelism = 2\n")
    conf = {**CONF, "spark.executorEnv.HERE": str(tmp_path)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "stateflow", "run", "moved.py", "-p", f"folder={tmp_path}"),
            *("--checkpoint-dir", f"{tmp_path}/root", "--master", "local-cluster[2,1,900]"),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HERE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "killed").exists(), (
        f"no executor was killed: this run has shown nothing: {done.stderr}"
    )
    assert done.returncode != 0, done.stderr
    assert "indeterminate output" in done.stderr
    assert sum(delta_rows(tmp_path / "out").values()) == 0

"""A batch that does not fit into the memory of Spark's JVM: what the run says, and whether that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from stateflow.spark.task import failures

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
from dataclasses import dataclass
import stateflow as sf
from pyspark.sql import functions as F

@dataclass
class Order:
    id: int

@dataclass
class Long:
    id: int
    characters: int

def long(orders):
    text = F.array_join(F.array_repeat(F.repeat(F.col("id").cast("string"), F.lit(20_000_000)), 10), "")
    return orders.select("id", F.length(text).cast("long").alias("characters"))

@sf.pipeline("shop")
def shop(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source("orders", sf.files(input, "json"), Order)
    orders.transform(long, Long).append("out", sf.files(output, "json"))
"""


def run(folder: Path, memory: str) -> subprocess.CompletedProcess[str]:
    words = (
        "run",
        "shop.py:shop",
        "--host",
        "",
        "--checkpoint-dir",
        "root",
        "--param",
        "input=in",
        "--param",
        "output=out",
    )
    command = [sys.executable, "-m", "stateflow", *words, "--conf", f"spark.driver.memory={memory}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_run_without_memory_says_what_it_needs_and_has_enough_with_more(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(json.dumps({"id": 1}))
    small = run(tmp_path, "500m")
    last = small.stderr.splitlines()[-1]
    assert small.returncode == 1, small.stderr
    assert "ran out of memory (exit code 52)" in last
    assert "--conf spark.driver.memory=SIZE" in last
    large = run(tmp_path, "3g")
    assert large.returncode == 0, large.stderr
    rows = [json.loads(line) for file in (tmp_path / "out").glob("part-*") for line in file.open()]
    assert rows == [{"id": 1, "characters": 200_000_000}]


def test_spark_that_ends_while_it_still_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose task has filled the heap of all: Spark is on its way out, and answers with errors of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(52)"]
    ) as jvm:
        monkeypatch.setattr(failures, "process_of_jvm", lambda: jvm)
        said = PySparkException(
            'Cannot invoke "RpcEndpointRef.askSync(Object)" because "BlockManagerMaster.driverEndpoint()" is null'
        )
        assert "ran out of memory" in str(failures.translated(said))


def test_a_task_without_memory_is_told_as_one_while_its_jvm_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM may answer before it ends, and an executor's end is not the driver's."""
    said = PySparkException("Lost task 0.0 in stage 0.0: java.lang.OutOfMemoryError: Java heap space")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(52)"]) as jvm:
        monkeypatch.setattr(failures, "process_of_jvm", lambda: jvm)
        assert "(exit code 52)" in str(failures.translated(said))
    monkeypatch.setattr(failures, "process_of_jvm", lambda: None)
    told = str(failures.translated(said))
    assert "spark.driver.memory=SIZE" in told
    assert "spark.executor.memory=SIZE" in told

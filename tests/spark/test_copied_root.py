"""Checkpoints that were put back from a copy: the output is ahead of them, and no row is left out or doubled without a word."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import DisagreementError
from stateflow.jobs.job import Job
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


@dataclass
class Row:
    id: int


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), Row).append("out", sf.delta(output))


@pytest.mark.slow
def test_a_job_that_is_older_than_its_output_stops_and_a_fork_goes_on_as_the_error_says(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    given = {"input": str(tmp_path / "rows"), "output": str(out)}
    bench.rows("rows", [{"id": 1}])
    bench.run(copied, given)
    shutil.copytree(root, tmp_path / "backup")
    bench.rows("rows", [{"id": 2}])
    bench.run(copied, given)
    shutil.rmtree(root)
    (tmp_path / "backup").rename(root)
    bench.rows("rows", [{"id": 3}])
    for _ in range(2):
        with refused(DisagreementError, "put back from a copy") as caught:
            bench.run(copied, given)
    assert contents(spark, out, "id") == [1, 2]

    found = re.search(
        r"`stateflow restore NEW PIPELINE --from (\w+) --from-job (\w+) --clone-sinks", str(caught.value)
    )
    assert found is not None
    options = load(
        code={"checkpoint_dir": str(root), "cache_dir": str(tmp_path / "cache"), "local_fsync": False},
        env={},
        folder=tmp_path,
    )
    fork, elsewhere = replace(copied, name="goes-on"), {**given, "output": str(tmp_path / "another")}
    job = Job(str(root), "goes-on")
    plan = job.restore(found[1], fork, elsewhere, options=options, from_job=found[2], clone_sinks=True)
    plan.apply()
    bench.run(fork, elsewhere)
    assert contents(spark, elsewhere["output"], "id") == [1, 2, 3]

"""A job that begins on a table of another job is told: the rows of both are in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.sinks.other_writers import other_writers


@pytest.mark.parametrize(
    ("app_ids", "others"),
    [
        ([], []),
        (["somebody's job", "stateflow", "stateflow/alone"], []),
        (["stateflow/b/two", "stateflow/a/one/more"], [("a", "one/more"), ("b", "two")]),
        (["stateflow/me/two", "stateflow/a/one"], []),
    ],
)
def test_other_jobs_are_told_until_this_one_has_written(
    app_ids: list[str], others: list[tuple[str, str]]
) -> None:
    assert other_writers(app_ids, "me") == others


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), "id long").append("rows", sf.delta(output))


def test_a_second_job_on_one_table_is_told_once_and_not_when_the_table_is_empty(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text('{"id": 1}\n', encoding="utf-8")

    def ran(job: str) -> RunReport:
        options = load(
            code={
                "checkpoint_dir": str(tmp_path / "checkpoints"),
                "cache_dir": str(tmp_path / "cache"),
                "local_fsync": False,
            },
            env={},
            folder=tmp_path,
        )
        parameters = {"input": str(tmp_path / "input"), "output": str(tmp_path / "output")}
        return run(RunRequest(copied, options, parameters, job=job, master="local[2]"))

    assert ran("one").warnings == ()
    assert ran("one").warnings == ()
    (told,) = ran("two").warnings
    assert "has rows of another job (sink 'rows' of the job with id " in told
    assert ran("two").warnings == ()
    spark.sql(f"DELETE FROM delta.`{tmp_path / 'output'}`")
    assert ran("three").warnings == ()

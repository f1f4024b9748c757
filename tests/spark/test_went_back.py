"""An output that somebody else restored: the run says so, and its advice brings the rows again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.jobs.job import Job
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.sinks.delta_log import LoggedCommit, logged_commit
from stateflow.spark.sinks.went_back import WentBack, went_back


def own(version: int, slot: int) -> LoggedCommit:
    return LoggedCommit(version, {"stateflow/me/rows": slot}, True, False, "STREAMING UPDATE")


def other(version: int, operation: str = "WRITE", to: int | None = None) -> LoggedCommit:
    return LoggedCommit(version, {}, True, False, operation, to)


@pytest.mark.parametrize(
    ("oldest_first", "verdict"),
    [
        ([], None),
        ([other(0), own(1, 3)], None),
        ([other(0), own(1, 3), own(2, 5)], None),
        ([other(0), own(1, 3), own(2, 5), other(3, "RESTORE", 1)], WentBack(3, 3)),
        ([other(0), own(1, 3), own(2, 5), other(3, "RESTORE", 0)], WentBack(3, None)),
        ([other(0), own(1, 3), other(2), other(3, "RESTORE", 1)], None),
        ([other(0), own(1, 3), other(2, "RESTORE", 0), own(3, 5)], None),
        ([other(0), own(1, 3), own(2, 5), other(3, "RESTORE", 1), other(4)], WentBack(3, 3)),
        ([own(1, 3), own(2, 5), other(3, "RESTORE", None)], WentBack(3, None)),
        # Taken back to 1, and then to the version that had been taken back.
        ([own(1, 3), own(2, 5), other(3, "RESTORE", 1), other(4, "RESTORE", 3)], WentBack(4, 3)),
        # ... and then to where it was before.
        ([own(1, 3), own(2, 5), other(3, "RESTORE", 1), other(4, "RESTORE", 2)], None),
    ],
)
def test_it_is_told_what_a_restore_undid(oldest_first: list[LoggedCommit], verdict: WentBack | None) -> None:
    assert went_back(reversed(oldest_first), "stateflow/me/rows") == verdict


def test_the_log_says_which_version_came_back() -> None:
    def line(**parameters: str | None) -> str:
        return json.dumps({"commitInfo": {"operation": "RESTORE", "operationParameters": parameters}})

    assert logged_commit(3, [line(version="1", timestamp=None)]).restored_to == 1
    assert logged_commit(3, [line(version=None, timestamp="2026-01-01")]).restored_to is None


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), "id long").append("rows", sf.delta(output))


def test_the_run_tells_of_it_and_its_advice_brings_the_rows_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    parameters = {"input": str(tmp_path / "input"), "output": str(tmp_path / "output")}
    root = str(tmp_path / "checkpoints")

    def ran(number: int) -> RunReport:
        (tmp_path / "input" / f"{number}.json").write_text(f'{{"id": {number}}}\n', encoding="utf-8")
        options = load(
            code={
                "checkpoint_dir": root,
                "cache_dir": str(tmp_path / "cache"),
                "local_fsync": False,
                "retained_checkpoints": 20,
            },
            env={},
            folder=tmp_path,
        )
        return run(RunRequest(copied, options, parameters, master="local[2]"))

    def ids() -> list[int]:
        return sorted(row.id for row in spark.read.format("delta").load(parameters["output"]).collect())

    def restore(checkpoint: int | None) -> None:
        Job(root, "copied").restore(f"checkpoint:{checkpoint}", copied, parameters).apply()

    first = ran(1).checkpoint
    table = DeltaTable.forPath(spark, parameters["output"])
    version = table.history(1).collect()[0].version
    assert ran(2).warnings == ()
    table.restoreToVersion(version)
    (told,) = ran(3).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert f"--from checkpoint:{first}`, without --rewind-sinks" in told
    assert ids() == [1, 3]
    assert ran(4).warnings == ()

    table.restoreToVersion(version)
    assert len(ran(5).warnings) == 1
    table.restoreToVersion(version)
    restore(first)  # as advised
    ran(6)
    assert ids() == [1, 2, 3, 4, 5, 6]

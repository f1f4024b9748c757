"""A file that is written again is not read again, and the run says so. A file that is older than all others is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.spark.sources.file_log import ReadFile
from stateflow.spark.sources.rewritten import rewritten
from stateflow.testing import FlowHarness


@pytest.mark.parametrize(
    ("there", "names"),
    [
        ({}, []),
        ({"file:///in/a%20b.json": 7, "file:///in/c.json": 8}, []),
        ({"file:///in/a%20b.json": 9, "file:///in/c.json": 9, "file:///in/new.json": 9}, ["file:///in/a b.json", "file:///in/c.json"]),
    ],
)  # fmt: skip
def test_a_file_with_another_time_was_written_again(there: dict[str, int], names: list[str]) -> None:
    read = [ReadFile("file:///in/a%20b.json", 7, 0), ReadFile("file:///in/c.json", 8, 3)]
    assert rewritten(read, there) == names


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), "id long").append("rows", sf.delta(output))


def test_the_run_tells_of_a_file_that_was_written_again(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(copied, tmp_path)
    harness.add("rows", {"id": 1})
    harness.add("rows", {"id": 2})
    assert harness.run().warnings == ()
    assert harness.run().warnings == ()
    (file,) = (tmp_path / "input").glob("00001*")
    file.write_text('{"id": 1}\n{"id": 3}\n', encoding="utf-8")
    (told,) = harness.run().warnings
    assert "00001.json was written again after the job had read it" in told


def test_a_run_tells_of_subfolders_and_its_advice_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    recursive = False

    @sf.pipeline("copied")
    def nested(flow: sf.Flow, *, input: str, output: str) -> None:
        options = {"recursiveFileLookup": "true"} if recursive else {}
        flow.source("rows", sf.files(input, "json", options=options), "id long").append(
            "rows", sf.delta(output)
        )

    harness = FlowHarness(nested, tmp_path)
    harness.add("rows", {"id": 1})
    (tmp_path / "input" / "2026").mkdir()
    (tmp_path / "input" / "2026" / "2.json").write_text('{"id": 2}\n', encoding="utf-8")
    (told,) = harness.run().warnings
    assert "such as 2026, are not read" in told
    assert [row["id"] for row in harness.table("rows")] == [1]
    recursive = True
    harness.release(nested)
    assert harness.run().warnings == ()
    assert sorted(row["id"] for row in harness.table("rows")) == [1, 2]


def test_a_file_that_is_a_month_older_is_read(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(copied, tmp_path)
    harness.add("rows", {"id": 1})
    harness.run()
    harness.add("rows", {"id": 2})
    (file,) = (tmp_path / "input").glob("00002*")
    month = file.stat().st_mtime - 30 * 24 * 3600
    os.utime(file, (month, month))
    harness.run()
    assert sorted(row["id"] for row in harness.table("rows")) == [1, 2]

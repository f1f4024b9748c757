"""A file that is written again is not read again, and the run says so. A file that is older than all others is read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.spark.internals.scratch_folder import ReadFile, newest_files
from stateflow.spark.sources.rewritten import MOST_COMPARED, local_times, rewritten
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
    read = [ReadFile("file:///in/a%20b.json", 7), ReadFile("file:///in/c.json", 8)]
    assert rewritten(read, there) == names


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), "id long").append("rows", sf.delta(output))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_the_newest_files_are_looked_at_without_spark(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "in put"
    log.mkdir()
    folder.mkdir()
    urls = []
    for number in range(30):
        file = folder / f"{number}.json"
        file.touch()
        os.utime(file, ns=(0, 1_750_000_000_123_000_000))
        urls.append(f"file:///{str(file).lstrip('/')}".replace(" ", "%20"))

    def entry(name: str, numbers: range) -> None:
        lines = [
            json.dumps({"path": urls[n], "timestamp": 1_750_000_000_123, "batchId": n // 10}) for n in numbers
        ]
        (log / name).write_text("\n".join(["v1", *lines]))

    entry("0", range(10))
    entry("1.compact", range(20))
    entry("2", range(20, 30))
    line = '{"logOffset":2}'
    assert [file.path for file in newest_files(log, line, 100)] == urls
    assert [file.path for file in newest_files(log, line, 12)] == urls[18:]
    assert [file.path for file in newest_files(log, line, 10)] == urls[20:]
    assert newest_files(log, "-", 10) == []
    read = newest_files(log, line, 12)
    times = local_times(read)
    assert times is not None
    assert rewritten(read, times) == []
    (folder / "5.json").write_text("{}")
    (folder / "29.json").write_text("{}")
    (folder / "28.json").unlink()
    times = local_times(read)
    assert times is not None
    assert rewritten(read, times) == [f"file://{folder}/29.json"]
    assert local_times([*read, ReadFile("s3a://bucket/a.json", 1)]) is None


def test_looking_at_a_folder_of_100_000_files_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    lines = (
        f'{{"path":"file:///none/{n}.json","timestamp":1,"batchId":{n // 1000}}}' for n in range(100_000)
    )
    (log / "99.compact").write_text("v1\n" + "\n".join(lines))
    began = time.process_time()
    read = newest_files(log, '{"logOffset":99}', MOST_COMPARED)
    assert len(read) == MOST_COMPARED
    assert local_times(read) == {}
    # 0.1 s on a quiet machine; all of them, with a listing by Spark, took ten times as long and more.
    assert time.process_time() - began < 1

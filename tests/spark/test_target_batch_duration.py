"""Batches of the right size: a run chooses how much of a Delta table or of files the next batch reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.jobs.job import Job
from stateflow.spark.inputs import batch_size
from stateflow.spark.inputs.batch_size import size_of
from tests.spark.pipelines import VISIT, Visit, Workbench, at

FILES, ROWS = 24, 40


def streams(report: Any) -> list[dict[str, Any]]:
    noted = report.record.statistics["batch_size"]["streams"]
    assert isinstance(noted, list)
    return noted


def table(spark: SparkSession, path: Path, versions: Sequence[int] = (FILES,)) -> None:
    """With a version for each of these numbers of files."""
    for files in versions:
        frame = spark.range(0, files * ROWS, numPartitions=files).selectExpr(
            "id % 7 as user", "'home' as page", "1.0D as seconds", "timestamp'2026-01-01 00:00:00' as ts"
        )
        frame.write.format("delta").mode("append").save(str(path))


def slowly(rows: DataFrame) -> DataFrame:
    """A row takes 10 ms."""
    wait = "reflect('java.lang.Thread', 'sleep', cast(10 + 0 * seconds as bigint)) is null"
    return rows.where(f"{wait} or true").selectExpr("*", f"{wait} as waited")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST", {"rows": 40, "bytes": 1500, "files": 1})


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["delta", "files"])
def test_batches_grow_to_the_target_and_the_next_run_goes_on_there(
    bench: Workbench, kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    if kind == "delta":
        table(spark, tmp_path / "visits")
    else:
        for _ in range(FILES):
            bench.rows("visits", [Visit(n % 7, "home", 1.0, at(0)) for n in range(ROWS)])

    def source(spark: SparkSession) -> Any:
        if kind == "delta":
            return spark.readStream.format("delta").load(str(tmp_path / "visits"))
        return spark.readStream.schema(VISIT).json(str(tmp_path / "visits"))

    out = sf.memory(f"sized-{kind}")

    @sf.pipeline("sized")
    def sized(flow: sf.Flow) -> None:
        visits = flow.source("visits", source, Visit)
        visits.collect("out", out)

    bench.run(sized, target_batch_duration="20 seconds")
    took = [stream["took"] for report in bench.reports for stream in streams(report)]
    most = [stream["most"] for report in bench.reports for stream in streams(report)]
    rows = [report.rows for report in bench.reports]
    assert sum(rows) == FILES * ROWS
    assert len(out.rows) == FILES * ROWS
    assert rows[0] <= 2 * ROWS  # the first batch is small, though all was there
    assert len(rows) >= 4
    assert all(later <= 2.6 * before for before, later in itertools.pairwise(rows))
    assert max(rows) >= 4 * rows[0]
    assert all(each > 0 for each in took)
    assert most == sorted(most)
    # Whoever is on call sees the newest batch against its target.
    shown, last = Job(str(tmp_path / "root"), "sized").status().batch_size, bench.reports[-1]
    assert (shown["target_ms"], shown["rows"]) == (20_000, last.rows)
    assert shown["streams"] == [{"source": "visits", **streams(last)[0]}]
    assert 0 < shown["duration_ms"] < 20_000

    if kind == "delta":
        table(spark, tmp_path / "visits")
    else:
        for _ in range(FILES):
            bench.rows("visits", [Visit(n % 7, "home", 1.0, at(0)) for n in range(ROWS)])
    bench.run(sized, target_batch_duration="20 seconds")
    assert streams(bench.reports[0])[0]["most"] >= most[-1]
    assert bench.reports[0].rows > rows[0]
    assert sum(report.rows for report in bench.reports) == FILES * ROWS


@pytest.mark.usefixtures("small")
def test_what_the_source_says_stays_the_most(spark: SparkSession, tmp_path: Path) -> None:
    per_batch, bench = 3, Workbench(spark, tmp_path)
    for _ in range(8):
        bench.rows("visits", [Visit(1, "home", 1.0, at(0))])

    @sf.pipeline("bounded")
    def bounded(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT, per_batch), Visit)
        visits.collect("out", sf.memory("bounded"))

    bench.run(bounded, target_batch_duration="1 minute")
    assert streams(bench.reports[0])[0]["unit"] == "files"
    rows = [report.rows for report in bench.reports]
    assert rows[0] == 1
    assert max(rows) == per_batch
    assert sum(rows) == 8


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("option", ["maxFilesPerTrigger", "maxBytesPerTrigger"])
def test_what_a_delta_source_says_stays_the_most(option: str, spark: SparkSession, tmp_path: Path) -> None:
    table(spark, tmp_path / "visits")
    bench = Workbench(spark, tmp_path)

    @sf.pipeline("bounded-delta")
    def bounded(flow: sf.Flow) -> None:
        path = str(tmp_path / "visits")
        visits = flow.source(
            "visits", lambda spark: spark.readStream.format("delta").option(option, "2").load(path), Visit
        )
        visits.collect("out", sf.memory("bounded-delta"))

    bench.run(bounded, target_batch_duration="1 minute", stop_after=5)
    most = {"maxFilesPerTrigger": 2, "maxBytesPerTrigger": 1}[option] * ROWS
    assert max(report.rows for report in bench.reports) == most


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_bounded_run_has_batches_of_the_right_size_and_ends_at_its_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    table(spark, tmp_path / "visits", versions=(5, 5, 14))
    bench = Workbench(spark, tmp_path)

    @sf.pipeline("until")
    def until(flow: sf.Flow) -> None:
        path = str(tmp_path / "visits")
        visits = flow.source("visits", lambda spark: spark.readStream.format("delta").load(path), Visit)
        visits.collect("out", sf.memory("until"))

    from stateflow.spark.runner import RunRequest, run

    reports: list[Any] = []
    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "root"),
            "cache_dir": str(tmp_path / "cache"),
            "local_fsync": False,
            "target_batch_duration": "1 minute",
        },
        env={},
        folder=tmp_path,
    )
    run(RunRequest(until, options, until=1, listener=reports.append))
    assert sum(report.rows for report in reports) == 10 * ROWS
    assert reports[0].rows <= 2 * ROWS
    assert len(reports) >= 3
    assert bench.records("until")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_slow_rows_make_smaller_batches(spark: SparkSession, tmp_path: Path) -> None:
    table(spark, tmp_path / "visits")
    bench = Workbench(spark, tmp_path)

    @sf.pipeline("slow")
    def slow(flow: sf.Flow) -> None:
        path = str(tmp_path / "visits")
        visits = flow.source(
            "visits", lambda spark: slowly(spark.readStream.format("delta").load(path)), Visit
        )
        visits.collect("out", sf.memory("slow"))

    bench.run(slow, target_batch_duration="2 seconds")
    assert sum(report.rows for report in bench.reports) == FILES * ROWS
    # All of it in one batch would take ten seconds.
    assert max(report.duration for report in bench.reports[1:]) < 6


def test_without_a_target_a_record_has_no_word_of_it(bench: Workbench) -> None:
    bench.rows("visits", [Visit(1, "home", 1.0, datetime(2026, 1, 1, tzinfo=UTC))])

    @sf.pipeline("plain")
    def plain(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        visits.collect("out", sf.memory("plain"))

    bench.run(plain)
    assert size_of(bench.reports[0].record.statistics.get("batch_size")) is None


def test_a_source_that_cannot_be_held_back_is_told(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    """What connectors of one's own read is cut by somebody else, as Spark's source of rates is."""

    def ticks(day: int) -> Any:
        options = {"rowsPerBatch": 5, "startTimestamp": day * 86_400_000}
        return lambda spark: spark.readStream.format("rate-micro-batch").options(**options).load()

    @sf.pipeline("unheld")
    def unheld(flow: sf.Flow) -> None:
        for uid, day in (("ahead", 20_000), ("behind", 19_000)):
            source = flow.source(uid, ticks(day), event_time="timestamp", watermark="1 minute")
            source.collect(f"{uid}-out", sf.memory(f"unheld-{uid}"))

    options = {"target_batch_duration": "1 minute", "max_source_drift": "1 day", "trigger": "until-stopped"}
    report = bench.run(unheld, stop_after=2, **options)
    told = [sentence for sentence in report.warnings if "target_batch_duration" in sentence]
    assert len(told) == 2
    assert told[0].startswith(
        "target_batch_duration has no hold on source 'ahead': it bounds Delta tables, files and Kafka"
    )
    assert told[0].endswith("a source of rate-micro-batch keeps to its own options, such as per_batch")
    [unheld_one] = [
        sentence for sentence in report.warnings if sentence.startswith("max_source_drift cannot hold back")
    ]
    assert "source 'ahead', which is ahead of 'behind'" in unheld_one
    assert "batch_size" not in bench.reports[0].record.statistics
    status = Job(str(tmp_path / "root"), "unheld").status()
    assert (status.batch_size, status.waited) == ({}, {})

"""A source's first position is resolved once: a crash before the first record must not move it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.replay import (
    Replay,
    append_file,
    append_version,
    files,
    ids,
    numbers,
    overwrite,
    rows,
    table,
)

MORNING = datetime(2024, 5, 1, 8, tzinfo=UTC)


@pytest.fixture
def replay(spark: SparkSession, tmp_path: Path) -> Replay:
    return Replay(spark, tmp_path)


def test_latest_stays_what_it_was_when_the_job_was_first_started(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    sources = {"events": [table(tmp_path / "events", startingVersion="latest")]}

    genesis = replay.genesis(sources)
    append_version(tmp_path / "events", 10)  # comes in between the first start and the run after the crash
    after_the_crash = replay.genesis(sources, known=genesis)

    assert after_the_crash == {}
    assert rows(replay.run(sources, genesis)) == [{"events": list(numbers(10))}]


def test_a_starting_time_becomes_a_version(spark: SparkSession, replay: Replay, tmp_path: Path) -> None:
    for version in range(3):
        append_version(tmp_path / "events", 10 * version)
        time = MORNING.timestamp() + 60 * version
        os.utime(tmp_path / "events" / "_delta_log" / f"{version:020d}.json", (time, time))
    sources = {"events": [table(tmp_path / "events", startingTimestamp="2024-05-01T08:00:30Z")]}

    genesis = replay.genesis(sources)

    assert json.loads(genesis["events"].lines[0])["reservoirVersion"] == 1
    assert ids(replay.run(sources, genesis), "events") == list(numbers(10, 20))


@pytest.mark.slow
def test_without_a_start_the_snapshot_of_the_first_start_is_read(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 99)
    overwrite(spark, tmp_path / "events", 0)
    append_version(tmp_path / "events", 10)
    sources = {"events": [table(tmp_path / "events")]}

    genesis = replay.genesis(sources)
    append_version(tmp_path / "events", 20)
    batches = replay.run(sources, genesis)

    assert json.loads(genesis["events"].lines[0])["isStartingVersion"] is True
    assert sorted(ids(batches, "events")) == list(numbers(0, 10, 20))
    assert [batch.rows for batch in batches] == rows(replay.run(sources, genesis)), (
        "and again, in the same batches"
    )


def test_a_table_that_was_only_appended_to_begins_with_its_first_commit(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    append_version(tmp_path / "events", 10)
    sources = {"events": [table(tmp_path / "events")]}

    genesis = replay.genesis(sources)
    append_version(tmp_path / "events", 20)
    batches = replay.run(sources, genesis)

    first = json.loads(genesis["events"].lines[0])
    assert (first["reservoirVersion"], first["index"], first["isStartingVersion"]) == (0, -1, False)
    assert sorted(ids(batches, "events")) == list(numbers(0, 10, 20))


@pytest.mark.slow
def test_a_table_that_was_changed_otherwise_begins_with_its_snapshot(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    path = tmp_path / "events"

    def compacted() -> None:
        spark.sql(f"OPTIMIZE delta.`{path}`")

    def deleted_from() -> None:
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 11")

    def described() -> None:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('made.by' = 'us')")

    append_version(path, 0)
    append_version(path, 10)
    for change in (compacted, deleted_from, described):
        change()
        first = json.loads(replay.genesis({"events": [table(path)]})["events"].lines[0])
        assert first["isStartingVersion"] is True, change.__name__

    there = [row.id for row in spark.read.format("delta").load(str(path)).collect()]
    assert sorted(ids(replay.run({"events": [table(path)]}), "events")) == sorted(there)


def test_a_change_feed_begins_with_the_snapshot(spark: SparkSession, replay: Replay, tmp_path: Path) -> None:
    path = tmp_path / "events"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id LONG) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    append_version(path, 0)

    genesis = replay.genesis({"events": [table(path, readChangeFeed="true")]})

    assert json.loads(genesis["events"].lines[0])["isStartingVersion"] is True


def test_only_sources_without_offsets_are_resolved(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_file(spark, tmp_path / "files", 0)
    append_version(tmp_path / "events", 10)
    old = {"files": [files(tmp_path / "files")]}
    state = replay.run(old)[-1].state

    added = replay.genesis({"events": [table(tmp_path / "events")], **old}, known=state)

    assert set(added) == {"events"}
    assert added["events"].kind == "delta"
    batches = replay.run({"events": [table(tmp_path / "events")], **old}, {**state, **added})
    assert rows(batches) == [{"events": list(numbers(10))}]


def test_a_file_source_begins_with_nothing_read(spark: SparkSession, replay: Replay, tmp_path: Path) -> None:
    append_file(spark, tmp_path / "files", 0)
    sources = {"files": [files(tmp_path / "files")]}

    genesis = replay.genesis(sources)

    assert (genesis["files"].lines, genesis["files"].kind) == (("-",), "file")
    assert rows(replay.run(sources, genesis)) == [{"files": list(numbers(0))}]


def test_a_source_of_the_newer_kind_tells_its_own_first_offset(spark: SparkSession, replay: Replay) -> None:
    def ticks(session: SparkSession):  # type: ignore[no-untyped-def]
        source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "4")
        return source.option("startTimestamp", "1000").load().withColumnRenamed("value", "id")

    genesis = replay.genesis({"ticks": [ticks]})
    batches = replay.run({"ticks": [ticks]}, genesis)

    assert json.loads(genesis["ticks"].lines[0]) == {"offset": 0, "timestamp": 1000}
    assert rows(batches) == [{"ticks": [0, 1, 2, 3]}]
    assert rows(replay.run({"ticks": [ticks]}, batches[-1].state)) == [{"ticks": [4, 5, 6, 7]}]

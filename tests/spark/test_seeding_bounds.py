"""Bounded runs end exactly where they were told to, and the next run carries on from there."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.errors import UsageError
from stateflow.format.source_offsets import joined_lines
from stateflow.spark.inputs.seeding import plan_batch, seed
from stateflow.spark.sources.positions import bound_lies_behind, bounded_batches
from tests.spark.replay import Batch, Replay, append_file, append_version, files, ids, numbers, rows, table

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def replay(spark: SparkSession, tmp_path: Path) -> Replay:
    return Replay(spark, tmp_path)


def version_at(path: Path, version: int, when: datetime) -> None:
    """Give a version's commit a time of its own: Delta takes it from the log file."""
    os.utime(path / "_delta_log" / f"{version:020d}.json", (when.timestamp(), when.timestamp()))


def file_at(path: Path, when: datetime) -> None:
    """Give the newest file of a folder a modification time."""
    newest = max((p for p in path.glob("*.parquet")), key=lambda p: p.stat().st_mtime)
    os.utime(newest, (when.timestamp(), when.timestamp()))


@pytest.mark.slow
def test_a_run_up_to_a_version_stops_there_and_the_next_carries_on(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    sources = {"events": [table(tmp_path / "events", max_files=2)]}
    start = replay.run(sources)[-1].state
    for version in range(1, 7):
        append_version(tmp_path / "events", 10 * version)

    def arrive(number: int) -> None:
        append_version(tmp_path / "events", 100 + 10 * number)

    bounded = replay.run(sources, start, until=5, during=arrive)
    assert rows(bounded) == [
        {"events": list(numbers(10, 20))},
        {"events": list(numbers(30, 40))},
        {"events": list(numbers(50))},
    ]
    assert replay.run(sources, bounded[-1].state, until=5) == []

    following = replay.run(sources, bounded[-1].state)
    assert ids(following, "events") == list(numbers(60, 100, 110, 120))


@pytest.mark.slow
@pytest.mark.parametrize(("trigger", "read"), [("once", [10]), ("availableNow", [10, 20])])
def test_a_planned_batch_ends_where_it_was_planned_and_only_the_trigger_once_stops_there(
    spark: SparkSession, replay: Replay, tmp_path: Path, trigger: str, read: list[int]
) -> None:
    for version in range(3):
        append_version(tmp_path / "events", 10 * version, count=1)
    sources = {"events": [table(tmp_path / "events", max_files=10)]}
    frame, layout, leaves = replay.opened(sources)
    state = replay.run(sources, replay.genesis(sources, until=0), until=0)[-1].state
    location, delivered = tmp_path / "planned", list[int]()
    next_batch = seed(
        location, layout, state, replay.fetch, replay.conf, 0, "f3a5b6a0-0000-4000-8000-000000000000"
    )

    (end,) = bounded_batches(spark, location, leaves, joined_lines(layout, state), until=1)
    plan_batch(location, next_batch, end, replay.conf, 0)
    writer = frame.writeStream.foreachBatch(lambda df, _: delivered.extend(row.id for row in df.collect()))
    trigger_arguments: dict[str, Any] = {trigger: True}
    query = writer.trigger(**trigger_arguments).option("checkpointLocation", location.as_uri()).start()
    query.awaitTermination()

    assert delivered == read


@pytest.mark.system
def test_a_bounded_run_resumes_after_any_of_its_batches(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for version in range(4):
        append_version(tmp_path / "events", 10 * version)
    sources = {"events": [table(tmp_path / "events")]}
    genesis = replay.genesis(sources, until=0)

    whole = replay.run(sources, genesis, until=2)

    assert rows(whole) == [{"events": list(numbers(start))} for start in (0, 10, 20)]
    for done in range(len(whole)):
        assert rows(replay.run(sources, whole[done].state, until=2)) == rows(whole[done + 1 :])


def test_a_first_run_up_to_a_version_reads_the_table_as_of_that_version(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for version in range(4):
        append_version(tmp_path / "events", 10 * version)
    sources = {"events": [table(tmp_path / "events", max_files=2)]}

    first = replay.run(sources, replay.genesis(sources, until=2), until=2)
    second = replay.run(sources, first[-1].state)

    assert len(first) == 2, "the snapshot is read in batches, too"
    assert sorted(ids(first, "events")) == list(numbers(0, 10, 20))
    assert ids(second, "events") == list(numbers(30))


def test_a_run_up_to_a_time_ends_with_the_last_commit_at_or_before_it(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for version in range(4):
        append_version(tmp_path / "events", 10 * version)
        version_at(tmp_path / "events", version, NOON + timedelta(minutes=version))
    sources = {"events": [table(tmp_path / "events", max_files=10)]}

    first = replay.run(sources, replay.genesis(sources, until=NOON), until=NOON)
    second = replay.run(sources, first[-1].state, until=NOON + timedelta(minutes=2, seconds=59))

    assert rows(first) == [{"events": list(numbers(0))}]
    assert rows(second) == [{"events": list(numbers(10, 20))}]
    assert replay.run(sources, first[-1].state, until=NOON - timedelta(minutes=1)) == []


@pytest.mark.slow
def test_a_table_that_is_younger_than_the_bound_has_nothing_to_read_yet(
    spark: SparkSession, replay: Replay, hourly: Path, tmp_path: Path
) -> None:
    for version in range(2):
        append_version(tmp_path / "events", 1000 + 10 * version)
        version_at(tmp_path / "events", version, NOON + timedelta(hours=2 + version))
    sources = {"events": [table(tmp_path / "events")], "files": [files(hourly)]}
    before = NOON + timedelta(hours=1)

    genesis = replay.genesis(sources, until=before)
    first = replay.run(sources, genesis, until=before)
    known = {**first[-1].state, **replay.genesis(sources, first[-1].state, NOON + timedelta(hours=2))}
    second = replay.run(sources, known, until=NOON + timedelta(hours=2))
    third = replay.run(sources, second[-1].state)

    assert set(genesis) == {"files"}
    assert (ids(first, "events"), ids(first, "files")) == ([], list(numbers(0, 10)))
    assert (ids(second, "events"), ids(second, "files")) == (list(numbers(1000)), list(numbers(20)))
    assert (ids(third, "events"), ids(third, "files")) == (list(numbers(1010)), list(numbers(30)))


@pytest.mark.slow
def test_a_bound_behind_what_was_read_is_told_from_one_that_is_reached(
    spark: SparkSession, replay: Replay, hourly: Path, tmp_path: Path
) -> None:
    for version in range(3):
        append_version(tmp_path / "events", 10 * version)
        version_at(tmp_path / "events", version, NOON + timedelta(hours=version))
    for stream in (table(tmp_path / "events"), files(hourly)):
        sources = {"events": [stream]}
        _, layout, leaves = replay.opened(sources)
        read = replay.run(sources, replay.genesis(sources, until=NOON), until=NOON + timedelta(hours=2))[-1]
        lines = joined_lines(layout, read.state)
        assert [
            bound_lies_behind(spark, read.location, leaves, lines, NOON + timedelta(hours=hours))
            for hours in (-1, 1, 2, 3)
        ] == [True, True, False, False]


@pytest.mark.slow
def test_what_lies_behind_the_bound_does_not_matter(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    """Delta refuses to stream a delete; a run that ends before it does not meet it."""
    for version in range(3):
        append_version(tmp_path / "events", 10 * version)
    spark.sql(f"delete from delta.`{tmp_path / 'events'}` where id = 21")
    sources = {"events": [table(tmp_path / "events")]}

    bounded = replay.run(sources, replay.genesis(sources, until=0), until=2)

    assert rows(bounded) == [{"events": list(numbers(start))} for start in (0, 10, 20)]


def test_a_delete_within_the_bound_still_stops_the_run(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    sources = {"events": [table(tmp_path / "events")]}
    genesis = replay.genesis(sources)
    spark.sql(f"delete from delta.`{tmp_path / 'events'}` where id = 1")

    with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        replay.run(sources, genesis, until=1)


@pytest.fixture
def hourly(spark: SparkSession, tmp_path: Path) -> Path:
    for hour in range(4):
        append_file(spark, tmp_path / "files", 10 * hour)
        file_at(tmp_path / "files", NOON + timedelta(hours=hour))
    return tmp_path / "files"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["false", "true"], ids=["oldest first", "newest first"])
def test_a_file_source_ends_with_the_files_modified_up_to_the_time(
    spark: SparkSession, replay: Replay, hourly: Path, order: str
) -> None:
    sources = {"files": [files(hourly, max_files=2, latestFirst=order)]}

    first = replay.run(sources, replay.genesis(sources), until=NOON + timedelta(hours=2))
    assert len(first) == 2
    assert sorted(ids(first, "files")) == list(numbers(0, 10, 20))
    for batch in first[:1]:
        assert sorted(ids(replay.run(sources, batch.state), "files")) != []
    append_file(spark, hourly, 5000)
    file_at(hourly, NOON + timedelta(hours=1))

    second = replay.run(sources, first[-1].state)
    assert sorted(ids(second, "files")) == list(numbers(30, 5000)), "a late file is read by the next run"


@pytest.mark.slow
def test_a_bounded_run_over_many_files_is_rewound_across_a_compaction(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for number in range(13):
        append_file(spark, tmp_path / "files", number, count=1)
        file_at(tmp_path / "files", NOON + timedelta(minutes=number))
    sources = {"files": [files(tmp_path / "files")]}
    bound = NOON + timedelta(minutes=11)

    whole = replay.run(sources, replay.genesis(sources), until=bound)

    assert ids(whole, "files") == list(range(12))
    for done in (8, 9, 10):
        assert rows(replay.run(sources, whole[done].state, until=bound)) == rows(whole[done + 1 :])
    assert ids(replay.run(sources, whole[-1].state), "files") == [12]


@pytest.mark.slow
def test_a_bound_holds_for_all_sources_or_for_named_ones(
    spark: SparkSession, replay: Replay, hourly: Path, tmp_path: Path
) -> None:
    for version in range(4):
        append_version(tmp_path / "events", 1000 + 10 * version)
        version_at(tmp_path / "events", version, NOON + timedelta(hours=version))
    sources = {"files": [files(hourly)], "events": [table(tmp_path / "events")]}
    bound = NOON + timedelta(hours=1)
    genesis = replay.genesis(sources, until=bound)

    both = replay.run(sources, genesis, until=bound)
    assert (ids(both, "files"), ids(both, "events")) == (list(numbers(0, 10)), list(numbers(1000, 1010)))

    one = replay.run(sources, both[-1].state, until={"events": 2})
    assert (ids(one, "files"), ids(one, "events")) == ([], list(numbers(1020)))

    rest = replay.run(sources, one[-1].state)
    assert (ids(rest, "files"), ids(rest, "events")) == (list(numbers(20, 30)), list(numbers(1030)))


def test_a_bound_that_a_source_cannot_keep_is_refused(
    spark: SparkSession, replay: Replay, hourly: Path, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    a_file, a_table = {"files": [files(hourly)]}, {"events": [table(tmp_path / "events")]}
    ticks = {
        "ticks": [
            lambda s: (
                s.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", 1)
                .load()
                .withColumnRenamed("value", "id")
            )
        ]
    }

    def refused(sources: dict[str, list], until: int | datetime, match: str) -> list[Batch]:  # type: ignore[type-arg]
        with pytest.raises(UsageError, match=match):
            replay.run(sources, replay.genesis(sources), until=until)
        return []

    refused(a_file, 3, "can only be bounded by a time, the files' modification time")
    refused(a_file, NOON.replace(tzinfo=None), "has no time zone")
    refused(a_table, 9, "has no version 9 yet, its newest is 0")
    refused(a_table, NOON.replace(tzinfo=None), "has no time zone")
    refused(ticks, NOON, "cannot end the rate-micro-batch source")

"""Offsets that a source can no longer serve stop the run before any batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError, IncompatibleError
from stateflow.format.records import LeftTopic, SourceState
from stateflow.spark.sources.availability import Available, check_available, check_rewindable
from stateflow.spark.sources.kafka_topics import not_named
from stateflow.spark.sources.leaves import LeafDescription
from tests.refusals.refusal import refused
from tests.spark.replay import (
    Replay,
    Sources,
    State,
    append_file,
    append_version,
    files,
    numbers,
    rows,
    table,
)
from tests.spark.test_kafka_streams import OnBrokers


@pytest.fixture
def replay(spark: SparkSession, tmp_path: Path) -> Replay:
    return Replay(spark, tmp_path)


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> Path:
    append_version(tmp_path / "events", 0)
    return tmp_path / "events"


def check(replay: Replay, sources: Sources, state: State) -> None:
    _, _, leaves = replay.opened(sources)
    check_available(replay.spark, leaves, state, replay.work / "scratch")


def test_a_table_that_still_has_everything_is_fine(spark: SparkSession, replay: Replay, events: Path) -> None:
    sources = {"events": [table(events)]}
    genesis, done = replay.genesis(sources), replay.run(sources)[-1].state
    append_version(events, 10)

    check(replay, sources, genesis)
    check(replay, sources, done)
    check(replay, sources, {})


def test_a_recreated_table_is_named(spark: SparkSession, replay: Replay, events: Path) -> None:
    sources = {"events": [table(events)]}
    state = replay.run(sources)[-1].state
    shutil.rmtree(events)
    append_version(events, 0)

    with refused(
        DisagreementError, "'events'", "(version 0 read completely)", "it was recreated", "bring"
    ) as error:
        check(replay, sources, state)
    assert error.value.exit_code == 7


def test_another_table_in_the_place_of_the_one_that_was_read_is_named(
    spark: SparkSession, replay: Replay, events: Path, tmp_path: Path
) -> None:
    begun = replay.genesis({"events": [table(events)]})
    state = replay.run({"events": [table(events)]}, begun)[-1].state
    append_version(tmp_path / "others", 0)

    others = {"events": [table(tmp_path / "others")]}
    for read, position in ((begun, "before version 0"), (state, "version 0 read completely")):
        said = f"{tmp_path / 'others'} is table "
        with refused(DisagreementError, f"({position})", said, "another table's place", "its place again"):
            check(replay, others, read)
    check(replay, {"events": [table(events)]}, state)


@pytest.mark.slow
def test_an_older_copy_of_the_table_is_named(
    spark: SparkSession, replay: Replay, events: Path, tmp_path: Path
) -> None:
    sources = {"events": [table(events)]}
    shutil.copytree(events, tmp_path / "copy")
    append_version(events, 10)
    append_version(events, 20)
    state = replay.run(sources)[-1].state
    shutil.rmtree(events)
    shutil.copytree(tmp_path / "copy", events)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    with refused(DisagreementError, "version 2", "its newest version is 0"):
        check(replay, sources, state)


@pytest.mark.slow
@pytest.mark.parametrize("inside_snapshot", [False, True])
def test_a_table_whose_log_was_cleaned_is_named(
    spark: SparkSession, replay: Replay, events: Path, inside_snapshot: bool
) -> None:
    sources = {"events": [table(events)]}
    state = replay.genesis(sources) if inside_snapshot else replay.run(sources)[-1].state
    for number in range(1, 5):
        append_version(events, 10 * number)
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    logs.clearCache()  # it has not heard of these versions
    logs.forTable(spark._jsparkSession, str(events)).checkpoint()
    for version in range(4):
        (events / "_delta_log" / f"{version:020d}.json").unlink()

    with refused(DisagreementError, "has to go on at version", "now starts at version 4"):
        check(replay, sources, state)


@pytest.mark.slow
def test_files_that_were_compacted_and_vacuumed_are_named(
    spark: SparkSession, replay: Replay, events: Path, hasty_vacuum: None
) -> None:
    sources = {"events": [table(events)]}
    state = replay.run(sources)[-1].state
    append_version(events, 10)
    append_version(events, 20)
    spark.sql(f"optimize delta.`{events}`")
    check(replay, sources, state)
    spark.sql(f"vacuum delta.`{events}` retain 0 hours")

    with refused(DisagreementError, "version 1 of the Delta table", "was vacuumed"):
        check(replay, sources, state)


def test_another_kind_of_source_under_the_same_uid_is_refused(
    spark: SparkSession, replay: Replay, events: Path, tmp_path: Path
) -> None:
    state = replay.run({"events": [table(events)]})[-1].state
    append_file(spark, tmp_path / "files", 0)

    with refused(IncompatibleError, "a file source", "a delta offset"):
        check(replay, {"events": [files(tmp_path / "files")]}, state)


def test_a_rewind_over_deleted_input_files_is_refused(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for number in range(3):
        append_file(spark, tmp_path / "files", 10 * number)
    sources = {"files": [files(tmp_path / "files")]}
    first, second, third = replay.run(sources)
    assert rows([third]) == [{"files": list(numbers(20))}]
    check_rewindable(spark, first.state, third.state, replay.fetch)
    newest = max((tmp_path / "files").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    newest.unlink()

    with refused(DisagreementError, "log offset 0", "of 2 input files", "1 are gone"):
        check_rewindable(spark, first.state, third.state, replay.fetch)
    check_rewindable(spark, third.state, third.state, replay.fetch)
    check_rewindable(spark, first.state, second.state, replay.fetch)
    with pytest.raises(DisagreementError, match="cannot go back to log offset -1: of 3"):
        check_rewindable(spark, {}, third.state, replay.fetch)


def test_a_topic_that_a_pattern_matches_no_more_is_left_and_one_that_it_matches_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    recorded = SourceState(lines=('{"orders":{"0":2},"returns":{"0":3}}',))
    on_brokers = cast(Any, OnBrokers({("returns", 0): 3}))

    def found(pattern: str) -> Available:
        options = {"subscribepattern": pattern}
        leaf = LeafDescription("kafka", "kafka", pattern, options, on_brokers, uid="events")
        return check_available(spark, [leaf], {"events": recorded}, tmp_path)

    left = found(r"\p{Lower}eturns")
    assert left.moved["events"].lines == ('{"returns":{"0":3}}',)
    assert left.moved["events"].left == {"0/orders": LeftTopic({"0": 2})}
    assert "'orders'" in left.left[0]
    with refused(DisagreementError, "'events'", "topic 'orders' partition 0", "gone"):
        found("orders|returns")
    assert not_named(spark, {"subscribepattern": "ret.*"}, {("orders", 0): 1}) == "topic 'orders'"
    assert not_named(spark, {"subscribepattern": "ord.*"}, {("orders", 0): 1}) == ""

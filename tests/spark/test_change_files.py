"""Upserts into tables with a change feed: Delta's own reader of the feed tells what each batch has changed, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.spark.sinks import change_files, delta_rewrite, delta_upsert
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.testing.sink_log import SinkLog
from tests.spark.sink_places import contents, versions
from tests.spark.test_sinks_delta_rewrite import AFTER, FIRST, SECOND, made_by, opened, rows

FED = {"delta.enableChangeDataFeed": "true"}
INSERTED = Counter(("insert", *row) for row in FIRST)
CHANGED = Counter(
    [
        ("update_preimage", 1, 1, "a"),
        ("update_postimage", 1, 3, "newest"),
        ("delete", 2, 1, "b"),
        ("insert", 5, 2, "new"),
    ]
)


@pytest.fixture(autouse=True)
def no_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(*_: Any) -> None:
        raise AssertionError("Delta was asked to merge")

    monkeypatch.setattr(delta_upsert, "_merge", merged)


def feed(spark: SparkSession, path: Path, version: int) -> Counter[tuple[Any, ...]]:
    """One version's feed, as Delta reads it."""
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changed = reader.option("startingVersion", version).option("endingVersion", version).load(str(path))
    return Counter(tuple(row) for row in changed.select("_change_type", "id", "at", "v").collect())


@pytest.mark.parametrize("key", ["id", "_sf_replaced"])
def test_a_feed_is_told_whatever_its_columns_are_called(spark: SparkSession, key: str) -> None:
    there = spark.sql("SELECT 1 AS id, 5 AS _sf_replaced")
    batch = spark.sql("SELECT 1 AS id, 5 AS _sf_replaced, 'delete' AS op UNION ALL SELECT 2, 6, 'upsert'")
    fed = change_files.changes(there, batch, there.columns, [key], "op")
    assert sorted(map(tuple, fed.collect())) == [(1, 5, "delete"), (2, 6, "insert")]


def newest(path: Path) -> int:
    return versions(path) - 1


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [[], ["v"]])
def test_the_feed_has_each_row_as_it_was_and_as_it_is(
    spark: SparkSession, path: Path, log: SinkLog, partition_by: list[str]
) -> None:
    sink = opened(spark, path, options=FED, partition_by=partition_by)
    log.deliver(sink, rows(spark, FIRST))
    assert feed(spark, path, newest(path)) == INSERTED
    log.deliver(sink, rows(spark, SECOND))
    assert contents(spark, path) == AFTER
    assert feed(spark, path, newest(path)) == CHANGED
    told = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").first()
    assert told is not None
    assert int(told["operationMetrics"]["numTargetChangeFilesAdded"]) > 0


@pytest.mark.slow
def test_a_feed_in_capitals_and_columns_under_other_names(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    properties = "'Delta.EnableChangeDataFeed' = 'TRUE', 'delta.columnMapping.mode' = 'name'"
    made_by(spark, path, "Key long, AT long, v string", f"TBLPROPERTIES ({properties})")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN Key TO ID")
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, FIRST))
    log.deliver(sink, rows(spark, SECOND))
    assert contents(spark, path) == AFTER
    assert feed(spark, path, newest(path)) == CHANGED


@pytest.mark.slow
def test_rows_of_one_key_twice_in_the_table_go_both_and_one_comes(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, options=FED)
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 1, 'a'), (1, 0, 'other')")
    log.deliver(sink, rows(spark, [(1, 2, "b")]))
    assert contents(spark, path) == [(1, 2, "b")]
    assert feed(spark, path, newest(path)) == Counter(
        [
            ("update_preimage", 1, 1, "a"),
            ("update_preimage", 1, 0, "other"),
            ("update_postimage", 1, 2, "b"),
        ]
    )


@pytest.mark.slow
def test_an_upsert_that_deletes_nothing_needs_no_column_for_it(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    opened(spark, path, options=FED)
    sink = DeltaUpsert(opened(spark, path).target, {"keys": ["id"]})
    sink.open(spark, rows(spark, []).schema)
    log.deliver(sink, rows(spark, FIRST[:2]))
    log.deliver(sink, rows(spark, [(2, 2, "new"), (3, 1, "c")]))
    assert feed(spark, path, newest(path)) == Counter(
        [("update_preimage", 2, 1, "b"), ("update_postimage", 2, 2, "new"), ("insert", 3, 1, "c")]
    )


@pytest.mark.slow
def test_small_files_that_are_put_together_are_no_change(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(spark, path, options=FED)
    log.deliver(sink, rows(spark, FIRST[:2]))
    log.deliver(sink, rows(spark, FIRST[2:]))
    # Two files, neither of which may hold key 9; both are written again, with nothing.
    monkeypatch.setattr(delta_rewrite, "MOST_SMALL", 1)
    log.deliver(sink, rows(spark, [(9, 1, "gone")]))
    assert contents(spark, path) == FIRST
    assert len(spark.read.format("delta").load(str(path)).inputFiles()) == 1
    assert feed(spark, path, newest(path)) == Counter()


@pytest.mark.slow
def test_small_files_that_are_put_together_with_new_rows_are_the_new_rows(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(spark, path, options=FED)
    log.deliver(sink, rows(spark, FIRST[:2]))
    log.deliver(sink, rows(spark, FIRST[2:]))
    monkeypatch.setattr(delta_rewrite, "MOST_SMALL", 1)
    log.deliver(sink, rows(spark, [(9, 1, "new")]))
    assert contents(spark, path) == [*FIRST, (9, 1, "new")]
    assert feed(spark, path, newest(path)) == Counter([("insert", 9, 1, "new")])


@pytest.mark.slow
def test_rows_that_stay_get_files_of_their_own_and_are_not_in_the_feed(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_rewrite, "APART", 1)
    sink = opened(spark, path, options=FED)
    log.deliver(sink, rows(spark, [(key, 1, "old") for key in range(100)]))
    log.deliver(sink, rows(spark, [(key, 2, "new") for key in range(95, 105)]))
    kinds = Counter(row[0] for row in feed(spark, path, newest(path)).elements())
    assert kinds == Counter(update_preimage=5, update_postimage=5, insert=5)


def test_only_files_are_marked_as_no_change() -> None:
    assert (
        change_files.as_no_change('{"add": {"path": "a", "dataChange": true}}')
        == '{"add": {"path": "a", "dataChange": false}}'
    )
    assert change_files.as_no_change('{"txn": {"appId": "a"}}') == '{"txn": {"appId": "a"}}'

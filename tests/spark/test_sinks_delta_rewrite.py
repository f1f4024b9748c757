"""Upserts that write files of a small table anew: the rows of Delta's MERGE, and nothing of another writer is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow import internals
from stateflow.errors import DisagreementError
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import DeltaLog, LoggedFile, TableShape, Transaction
from stateflow.spark.sinks import delta_rewrite, delta_upsert
from stateflow.spark.sinks.base import CommitRequest
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.testing.sink_log import SinkLog
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.sink_places import contents, versions, while_writing

SCHEMA = "id long, at long, v string"
FIRST: list[tuple[Any, ...]] = [(1, 1, "a"), (2, 1, "b"), (3, 1, "c"), (4, 1, "d")]
SECOND: list[tuple[Any, ...]] = [
    (1, 3, "newest"),
    (1, 2, "older"),
    (2, 2, "gone"),
    (5, 2, "new"),
    (9, 1, "gone"),
]
AFTER = [(1, 3, "newest"), (3, 1, "c"), (4, 1, "d"), (5, 2, "new")]


@pytest.fixture
def no_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(*_: Any) -> None:
        raise AssertionError("Delta was asked to merge")

    monkeypatch.setattr(delta_upsert, "_merge", merged)


def rows(spark: SparkSession, values: list[tuple[Any, ...]], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(by_hand.arrow(values, by_hand.columns(schema)))


def opened(spark: SparkSession, path: Path, schema: str = SCHEMA, **given: Any) -> DeltaUpsert:
    table = delta(str(path), partition_by=given.pop("partition_by", []), options=given.pop("options", {}))
    options = {"keys": ["id"], "order_by": "at", "delete_when": "v = 'gone'", **given}
    sink = DeltaUpsert(table, options, options.pop("delivery", "exactly_once"))
    sink.open(spark, rows(spark, [], schema).schema)
    return sink


def made_by(spark: SparkSession, path: Path, definition: str, more: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` ({definition}) USING delta {more}")


@pytest.mark.parametrize(
    ("sizes", "staged", "anew"),
    [
        ([], 0, True), ([8 << 20], 0, True), ([5 << 20, 4 << 20], 0, False), ([5 << 20, 4 << 20], 1 << 16, True),
        ([64 << 20], 1 << 20, False), ([64 << 20], 4 << 20, True), ([65 << 20], 1 << 30, False),
    ],
)  # fmt: skip
def test_what_is_written_anew_follows_the_batch(sizes: list[int], staged: int, anew: bool) -> None:
    files = [LoggedFile({"path": str(k), "size": size}, None) for k, size in enumerate(sizes)]
    assert delta_rewrite.files_to_rewrite(files, staged) == (files if anew else None)


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [[], ["v"]])
def test_a_small_table_has_its_files_written_anew_in_one_version(
    spark: SparkSession, path: Path, log: SinkLog, no_merge: None, partition_by: list[str]
) -> None:
    sink = opened(spark, path, partition_by=partition_by)
    log.deliver(sink, rows(spark, FIRST))
    before = versions(path)
    assert log.deliver(sink, rows(spark, SECOND)) == "committed"
    assert versions(path) == before + 1
    assert contents(spark, path) == AFTER
    told = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").first()
    assert told is not None
    assert told["operation"] == "MERGE"
    numbers = {name: told["operationMetrics"][name] for name in ("numSourceRows", "numOutputRows")}
    assert numbers == {"numSourceRows": "5", "numOutputRows": "4"}


def test_rows_that_nobody_has_counted_are_no_zero_in_the_tables_history() -> None:
    counted, uncounted = (
        json.dumps({"add": {"size": 9, **stats}}) for stats in ({"stats": '{"numRecords": 4}'}, {})
    )
    assert delta_rewrite.metrics([], [counted, counted], 5)["numOutputRows"] == 8
    assert "numOutputRows" not in delta_rewrite.metrics([], [counted, uncounted], 5)


def test_a_key_that_partitions_hold_as_null_is_not_written_beside_itself(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, "id string, at long, v string", partition_by=["id"])
    with pytest.raises(Exception, match="is partitioned by 'id' and would hold the value '' of a row"):
        log.prepare(sink, rows(spark, [("", 1, "a")], "id string, at long, v string"))
    log.slot -= 1
    log.deliver(sink, rows(spark, [("a", 1, "b"), ("", 1, "gone")], "id string, at long, v string"))
    assert contents(spark, path) == [("a", 1, "b")]


def test_names_in_other_letters_and_keys_without_a_value_in_the_table(
    spark: SparkSession, path: Path, log: SinkLog, no_merge: None
) -> None:
    made_by(spark, path, "At long, ID long, V string")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (7, NULL, 'kept'), (1, 1, 'a')")
    log.deliver(opened(spark, path), rows(spark, [(1, 2, "b")]))
    assert sorted(contents(spark, path), key=str) == [(2, 1, "b"), (7, None, "kept")]


@pytest.mark.slow
def test_a_renamed_column_is_read_and_written_under_its_physical_name(
    spark: SparkSession, path: Path, log: SinkLog, no_merge: None
) -> None:
    made_by(spark, path, "key long, at long, v string", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 1, 'a')")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN key TO id")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (2, 1, 'b')")
    log.deliver(opened(spark, path), rows(spark, [(2, 2, "new")]))
    assert contents(spark, path) == [(1, 1, "a"), (2, 2, "new")]


@pytest.mark.slow
def test_a_record_of_before_an_update_of_delta_comes_in_by_delta_s_own_merge(
    spark: SparkSession,
    path: Path,
    log: SinkLog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The update renames what only the merge by files rests on."""
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, FIRST))
    prepared = log.prepare(sink, rows(spark, SECOND))
    monkeypatch.setattr(internals, "ENTRIES", {})
    name = "org.apache.spark.sql.delta.OptimisticTransaction.readWholeTabel()"
    renamed = internals.internal(name)(lambda txn: txn._txn.readWholeTabel())
    monkeypatch.setattr(Transaction, "rests_on_all", renamed)
    assert [log.commit(prepared), log.commit(prepared)] == ["committed", "already"]
    assert contents(spark, path) == AFTER
    assert name in caplog.text


GENERATED = f"{SCHEMA}, twice long GENERATED ALWAYS AS (at * 2)"
DEFAULT = f"{SCHEMA}, note string DEFAULT 'none'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("definition", "properties", "merges"),
    [
        (SCHEMA, "'delta.enableDeletionVectors' = 'true'", False),
        (SCHEMA, "'delta.enableRowTracking' = 'true'", False),
        (GENERATED, "'a' = 'b'", True),
        (DEFAULT, "'delta.feature.allowColumnDefaults' = 'supported'", True),
    ],
    ids=["deletion vectors", "row tracking", "generated", "default"],
)
def test_what_only_delta_can_merge_is_left_to_it(
    spark: SparkSession,
    path: Path,
    log: SinkLog,
    monkeypatch: pytest.MonkeyPatch,
    definition: str,
    properties: str,
    merges: bool,
) -> None:
    """Where we say what becomes of its columns, Delta's merge is played; and of another column in the tests of upserts."""
    made_by(spark, path, definition, f"TBLPROPERTIES ({properties})")
    # Not by a delivery: two merges of each table take half a minute.
    spark.sql(f"INSERT INTO delta.`{path}` (id, at, v) VALUES {', '.join(map(str, FIRST))}")
    asked = left_to_delta(monkeypatch, merges=merges)
    log.deliver(opened(spark, path), rows(spark, SECOND))
    assert asked == [1]
    assert not merges or contents(spark, path, "id", "at", "v") == AFTER


def left_to_delta(monkeypatch: pytest.MonkeyPatch, *, merges: bool) -> list[int]:
    """The slots that Delta was asked to merge, which it does if `merges`."""
    monkeypatch.setattr(delta_upsert, "rewritten", lambda *_: pytest.fail("the files were written anew"))
    merge, asked = delta_upsert._merge, []

    def asks(request: CommitRequest, shape: TableShape) -> None:
        asked.append(request.at.slot)
        if merges:
            merge(request, shape)

    monkeypatch.setattr(delta_upsert, "_merge", asks)
    return asked


@pytest.mark.slow
def test_files_that_have_a_deletion_vector_are_left_to_delta(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by(spark, path, SCHEMA, "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.createDataFrame(FIRST, SCHEMA).coalesce(1).write.format("delta").mode("append").save(str(path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 4")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    monkeypatch.setattr(delta_upsert, "rewritten", lambda *_: pytest.fail("the files were written anew"))
    log.deliver(opened(spark, path), rows(spark, SECOND))
    assert contents(spark, path) == [row for row in AFTER if row[0] != 4]


def test_a_table_with_much_to_write_is_left_to_delta(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, FIRST))
    monkeypatch.setattr(delta_rewrite, "MOST_BYTES", 1)
    asked = left_to_delta(monkeypatch, merges=False)
    log.deliver(sink, rows(spark, SECOND))
    assert asked == [2]


@pytest.mark.slow
def test_what_another_writer_deletes_meanwhile_stays_deleted(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch, no_merge: None
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, FIRST))
    while_writing(monkeypatch, lambda: spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 4"))
    assert log.deliver(sink, rows(spark, SECOND)) == "committed"
    assert contents(spark, path) == [row for row in AFTER if row[0] != 4]


@pytest.mark.slow
def test_what_another_writer_puts_there_meanwhile_is_replaced_like_what_was_there(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch, no_merge: None
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, FIRST))
    theirs = "(5, 1, 'theirs'), (6, 1, 'theirs')"
    while_writing(monkeypatch, lambda: spark.sql(f"INSERT INTO delta.`{path}` VALUES {theirs}"))
    assert log.deliver(sink, rows(spark, SECOND)) == "committed"
    assert contents(spark, path) == [*AFTER, (6, 1, "theirs")]


@pytest.mark.slow
def test_two_jobs_that_put_a_key_into_an_empty_table_leave_one_row_of_it(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch, no_merge: None
) -> None:
    sink = opened(spark, path)
    other = SinkLog(spark, log.root, job="00000000-1111-4a6e-9d3f-0123456789ab", name="other")
    theirs = other.prepare(sink, rows(spark, [(1, 1, "theirs")]))
    mine = log.prepare(sink, rows(spark, [(1, 1, "mine"), (2, 1, "mine")]))
    while_writing(monkeypatch, lambda: other.commit(theirs))
    assert log.commit(mine) == "committed"
    assert contents(spark, path) == [(1, 1, "mine"), (2, 1, "mine")]


@pytest.mark.slow
def test_a_constraint_that_the_table_has_got_since_stops_a_decided_record(
    spark: SparkSession, path: Path, log: SinkLog, no_merge: None
) -> None:
    prepared = log.prepare(opened(spark, path), rows(spark, FIRST))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT few CHECK (id < 3)")
    with refused(DisagreementError, "break a constraint", "has got since", "stateflow abandon"):
        log.commit(prepared)
    assert contents(spark, path) == []


def test_a_list_of_files_that_does_not_add_up_is_not_believed(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    log.deliver(opened(spark, path), rows(spark, FIRST))
    table = DeltaLog(spark, str(path))
    assert [file.size for file in table.begin().files() or []] == [
        json.loads(line)["add"]["size"]
        for line in sorted((path / "_delta_log").glob("*.json"))[-1].read_text().splitlines()
        if "add" in json.loads(line)
    ]
    checksum = max((path / "_delta_log").glob("*.crc"))
    told = json.loads(checksum.read_text())
    checksum.write_text(json.dumps({**told, "allFiles": []}))
    (checksum.parent / f".{checksum.name}.crc").unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert DeltaLog(spark, str(path)).begin().files() is None

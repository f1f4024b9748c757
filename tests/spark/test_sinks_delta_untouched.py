"""Upserts leave files alone that can hold no key of the batch, and the table has the rows that a table of all keys would have."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import DeltaLog, LoggedFile
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.sinks import delta_rewrite, delta_upsert
from stateflow.spark.sinks.delta_rewrite import MANY_FILES, MOST_SMALL, SMALL, files_to_rewrite
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.key_ranges import (
    Bound,
    KeyRange,
    bounds_of,
    key_ranges,
    keys_to_come_again,
    may_hold,
    ranges_of,
)
from stateflow.testing.sink_log import SinkLog
from tests.spark import by_hand
from tests.spark.sink_places import contents, while_writing

SCHEMA = "id long, at long, v string"


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches get files of their own, as large ones do, and Delta is not asked to merge."""
    monkeypatch.setattr(delta_rewrite, "APART", 0)
    monkeypatch.setattr(delta_upsert, "_merge", lambda *_: pytest.fail("Delta was asked to merge"))


def rows(spark: SparkSession, values: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(by_hand.arrow(values, by_hand.columns(SCHEMA))).coalesce(1)


def opened(spark: SparkSession, path: Path, keys: tuple[str, ...] = ("id",), **given: Any) -> DeltaUpsert:
    table = delta(str(path), partition_by=given.pop("partition_by", []))
    options = {"keys": keys, "order_by": "at", "delete_when": "v = 'gone'", **given}
    sink = DeltaUpsert(table, options, options.pop("delivery", "exactly_once"))
    sink.open(spark, rows(spark, []).schema)
    return sink


def files(spark: SparkSession, path: Path) -> dict[str, LoggedFile]:
    present = DeltaLog(spark, str(path)).begin().files()
    assert present is not None
    return {str(file.add["path"]): file for file in present}


def between(first: int, last: int, at: int = 1, v: str = "v") -> list[tuple[Any, ...]]:
    return [(key, at, v) for key in range(first, last)]


def file(size: int, least: int, **partition: str) -> LoggedFile:
    """One that has a single key."""
    stats = msgspec.json.encode(
        {"numRecords": 1, "minValues": {"id": least}, "maxValues": {"id": least}}
    ).decode()
    return LoggedFile({"path": f"{least}", "size": size, "stats": stats, "partitionValues": partition}, None)


def keys(least: int, greatest: int) -> list[KeyRange]:
    return [KeyRange("id", "bigint", False, least, greatest)]


def test_only_bytes_that_a_batch_touches_count() -> None:
    table = [file(20 << 20, key) for key in range(40)]
    assert files_to_rewrite(table, 1 << 20, keys(40, 50)) == []
    assert files_to_rewrite(table, 1 << 20, keys(39, 50)) == table[39:]
    assert files_to_rewrite(table, 1 << 20, keys(38, 50)) is None
    assert files_to_rewrite(table, 1 << 20) is None


def test_small_files_are_written_together_before_there_are_many() -> None:
    table = [file(100, key) for key in range(MOST_SMALL)]
    large = [file(SMALL, 50), file(SMALL, 51)]
    assert files_to_rewrite([*table, *large], 1, keys(99, 99)) == []
    assert files_to_rewrite([*table, *large, file(100, 60)], 1, keys(99, 99)) == [*table, file(100, 60)]
    # Where the batch touches one of them, as many stay.
    assert files_to_rewrite([*table, *large, file(100, 60)], 1, keys(60, 60)) == [file(100, 60)]


def test_files_of_different_partitions_are_no_pile() -> None:
    table = [file(100, key, day=str(key)) for key in range(30)]
    assert files_to_rewrite(table, 1, keys(99, 99)) == []
    pile = [file(100, key, day="7") for key in range(30, 30 + MOST_SMALL)]
    assert files_to_rewrite([*table, *pile], 1, keys(99, 99)) == [table[7], *pile]


def test_a_table_of_many_files_has_its_smallest_made_large() -> None:
    table = [file(SMALL + key, key) for key in range(MANY_FILES + 1)]
    assert files_to_rewrite(table[:-1], 1, keys(99, 99)) == []
    taken = files_to_rewrite(table, 1, keys(99, 99))
    assert taken == table[: len(taken or [])]
    assert MOST_SMALL <= len(taken or []) <= 64 << 20 // SMALL
    assert delta_rewrite.bytes_per_file(table) > delta_rewrite.bytes_per_file(table[:-1])
    # Few that are large already are not worth it.
    assert files_to_rewrite([file(30 << 20, key) for key in range(45)], 1, keys(99, 99)) == []


@pytest.mark.parametrize("of_batch", [1 << 10, 100 << 10, 1 << 20, 3 << 20])
def test_a_table_whose_keys_grow_stays_listed_and_costs_little_more_than_its_rows(of_batch: int) -> None:
    table: list[LoggedFile] = []
    written, most, size = 0, 0, 0
    for batch in range(400):
        if size + of_batch > 800 << 20:
            break
        size += of_batch
        taken = files_to_rewrite(table, of_batch, keys(batch, batch))
        assert taken is not None
        target = delta_rewrite.bytes_per_file(table)
        stays = sum(each.size for each in taken)
        gone = {id(each) for each in taken}
        table = [each for each in table if id(each) not in gone]
        parts = -(-stays // target)
        table += [file(stays // parts, -1) for _ in range(parts)] + [file(of_batch, -1)]
        written += stays + of_batch
        most = max(most, len(table))
    assert most <= 50
    assert written < 4 * size + 400 * SMALL / 4


@pytest.mark.slow
def test_a_batch_of_growing_keys_rewrites_the_batch_before_it_and_nothing_else(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    sink = opened(spark, path)
    model: dict[int, tuple[Any, ...]] = {}
    before: dict[str, LoggedFile] = {}
    for k in range(3):
        batch = between(100 * k - 10, 100 * k + 100, k)
        assert log.deliver(sink, rows(spark, batch)) == "committed"
        model.update((row[0], row) for row in batch)
        now = files(spark, path)
        assert len(before.keys() - now.keys()) == min(k, 1)
        before = now
    assert len(before) == 3
    assert contents(spark, path) == sorted(model.values())
    metrics = by_hand.told(path)["operationMetrics"]
    names = ["numSourceRows", "numTargetFilesRemoved", "numTargetFilesAdded", "numOutputRows"]
    assert [metrics[name] for name in names] == ["110", "1", "2", "210"]


@pytest.mark.slow
def test_a_small_file_is_extended_until_it_is_worth_its_own(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path)
    for k in range(4):
        log.deliver(sink, rows(spark, between(100 * k - 10, 100 * k + 100, k)))
    assert len(files(spark, path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "partition_by"), [(0, []), (2, ["v"])])
def test_random_batches_leave_what_a_table_of_all_keys_has(
    spark: SparkSession, path: Path, log: SinkLog, apart: None, seed: int, partition_by: list[str]
) -> None:
    chance = random.Random(seed)
    sink = opened(spark, path, partition_by=partition_by)
    model: dict[int, tuple[Any, ...]] = {}
    untouched, newest = 0, 0
    before: dict[str, LoggedFile] = {}
    for _ in range(6):
        first = newest - 3 if chance.random() < 0.6 else chance.randrange(-20, max(newest, 1))
        spread = chance.choice([5, 10, 40])
        batch = [
            (chance.randrange(first, first + spread), chance.randrange(3), chance.choice(["a", "b", "gone"]))
            for _ in range(chance.randrange(1, 12))
        ]
        newest = max(newest, *(row[0] + 1 for row in batch))
        best: dict[int, tuple[Any, ...]] = {}
        for row in batch:
            here = best.get(row[0])
            # Of rows that are equal in `at` the greater content wins; a delete says so in its content.
            if here is None or (row[1], row[2]) > (here[1], here[2]):
                best[row[0]] = row
        batch = list(best.values()) if chance.random() < 0.5 else list({*batch, *best.values()})
        tied = {(row[0], row[1]) for row in batch if sum(r[:2] == row[:2] for r in batch) > 1}
        batch = [row for row in batch if (row[0], row[1]) not in tied or row == best[row[0]]]
        log.deliver(sink, rows(spark, batch))
        for key, row in best.items():
            model.pop(key, None)
            if row[2] != "gone":
                model[key] = row
        assert contents(spark, path) == sorted(model.values())
        now = files(spark, path)
        ranges = keys(min(row[0] for row in batch), max(row[0] for row in batch))
        left = {name for name, each in before.items() if not may_hold(each.add, ranges)}
        assert left <= now.keys() or len(left) > MOST_SMALL
        untouched += len(left & now.keys())
        before = now
    assert untouched > 0


@pytest.mark.slow
def test_small_batches_keep_a_table_of_few_files(
    spark: SparkSession, path: Path, log: SinkLog, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2
    monkeypatch.setattr(delta_rewrite, "MOST_SMALL", most)
    sink = opened(spark, path)
    counts = []
    for k in range(2 * most + 3):
        log.deliver(sink, rows(spark, [(k, 1, "v")]))
        counts.append(len(files(spark, path)))
    assert contents(spark, path, "id") == list(range(len(counts)))
    assert max(counts) == most + 1
    assert min(counts[most + 1 :]) == 2


def test_a_record_of_an_earlier_release_touches_every_file(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, between(0, 10)))
    prepared = log.prepare(sink, rows(spark, between(20, 30)))
    assert prepared.payload["bounds"] == {"id": [20, 29]}
    old: Prepared = msgspec.structs.replace(
        prepared, payload={name: value for name, value in prepared.payload.items() if name != "bounds"}
    )
    before = files(spark, path)
    log.commit(old)
    assert not before.keys() & files(spark, path).keys()
    assert contents(spark, path, "id") == [*range(10), *range(20, 30)]


@pytest.mark.slow
def test_a_key_of_two_columns_is_apart_in_either(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    sink = opened(spark, path, ("V", "ID"))
    log.deliver(sink, rows(spark, [(1, 1, "a"), (9, 1, "a")]))
    before = files(spark, path)
    log.deliver(sink, rows(spark, [(5, 1, "b")]))
    assert before.keys() < files(spark, path).keys()
    log.deliver(sink, rows(spark, [(9, 2, "a")]))
    assert not before.keys() & files(spark, path).keys()
    assert contents(spark, path) == [(1, 1, "a"), (5, 1, "b"), (9, 2, "a")]


@pytest.mark.slow
def test_a_row_that_another_writer_puts_elsewhere_meanwhile_stays_and_one_of_a_key_is_replaced(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch, apart: None
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, between(0, 5)))
    before = files(spark, path)
    theirs = "(3, 9, 'far'), (21, 9, 'theirs')"
    while_writing(monkeypatch, lambda: spark.sql(f"INSERT INTO delta.`{path}` VALUES {theirs}"))
    assert log.deliver(sink, rows(spark, between(20, 23, 2))) == "committed"
    assert before.keys() < files(spark, path).keys()
    assert contents(spark, path) == sorted([*between(0, 5), (3, 9, "far"), *between(20, 23, 2)])


@pytest.mark.slow
def test_a_batch_that_deletes_all_of_a_file_leaves_no_empty_one(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, between(0, 5)))
    log.deliver(sink, rows(spark, between(10, 15)))
    kept = files(spark, path)
    log.deliver(sink, rows(spark, between(0, 5, 2, "gone")))
    assert len(files(spark, path).keys() & kept.keys()) == 1
    assert len(files(spark, path)) == 1
    assert contents(spark, path) == between(10, 15)


@pytest.mark.slow
def test_a_table_that_had_many_files_is_listed_again_once_it_is_optimized(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, between(0, 5)))
    many = spark.range(5, 65, 1, 60).selectExpr("id", "1L AS at", "'v' AS v")
    many.write.format("delta").mode("append").save(str(path))
    assert DeltaLog(spark, str(path)).begin().files() is None
    log.deliver(sink, rows(spark, between(100, 105)))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    log.deliver(sink, rows(spark, between(105, 110)))
    assert len(files(spark, path)) <= 50
    monkeypatch.setattr(delta_upsert, "_merge", lambda *_: pytest.fail("Delta was asked to merge"))
    log.deliver(sink, rows(spark, between(110, 115)))
    assert contents(spark, path) == [*between(0, 65), *between(100, 115)]


@pytest.mark.slow
def test_rows_that_stay_and_that_the_next_batch_cannot_have_are_written_once(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    """Keys come for longer than a batch lasts: each batch has some of those that the three before it had."""
    sink = opened(spark, path)
    model: dict[int, tuple[Any, ...]] = {}
    for k in range(7):
        batch = [(key, k, "v") for key in range(max(100 * k - 300, 0), 100 * k + 100, 3)]
        log.deliver(sink, rows(spark, batch))
        model.update((row[0], row) for row in batch)
    # A batch reaches over 400 keys, and what it leaves of the file before it over 100 more.
    assert int(by_hand.told(path)["operationMetrics"]["numOutputRows"]) <= 500 < len(model)
    assert contents(spark, path) == sorted(model.values())


@pytest.mark.parametrize(
    ("least", "greatest", "from_"),
    [
        (90, 199, 180), (99, 199, 198), (88, 199, 176),  # as the batch reached into 0 to 99
        (80, 199, None),  # it shares too much with what was there
        (100, 199, None), (0, 199, None), (-5, 199, None), (90, 99, None), (90, 95, None),  # its keys do not grow
        ("90", "99", None),
    ],
)  # fmt: skip
def test_the_keys_that_come_again_are_twice_as_many_as_came_again(
    least: Bound, greatest: Bound, from_: int | None
) -> None:
    before = keys(0, 99) if isinstance(least, int) else [KeyRange("id", "string", False, "0", "95")]
    batch = KeyRange("id", before[0].type, False, least, greatest)
    again = keys_to_come_again([batch], before)
    assert (again and (again.least, again.greatest)) == (from_ and (from_, greatest))


def test_of_several_key_columns_the_one_that_grows_fastest_tells_what_comes_again() -> None:
    batch = [KeyRange(name, "bigint", False, least, 1000) for name, least in [("a", 90), ("b", 99), ("c", 1)]]
    before = [
        KeyRange(name, "bigint", False, 0, greatest)
        for name, greatest in [("a", 100), ("b", 100), ("c", 1000)]
    ]
    again = keys_to_come_again(batch, before)
    assert again is not None
    assert (again.column, again.least) == ("b", 997)
    assert keys_to_come_again([replace(each, partitions=True) for each in batch], before) is None
    assert keys_to_come_again(batch, []) is None


def test_files_of_which_one_does_not_tell_its_keys_have_no_range() -> None:
    known, unknown = file(1, 5).add, {**file(1, 7).add, "stats": "{}"}
    assert [(key.least, key.greatest) for key in ranges_of([known, file(1, 9).add], keys(0, 1))] == [(5, 9)]
    assert ranges_of([known, unknown], keys(0, 1)) == ranges_of([], keys(0, 1)) == ()


@pytest.mark.slow
def test_a_large_batch_of_growing_keys_writes_again_little_more_than_what_it_shares_with_the_batch_before(
    spark: SparkSession, path: Path, log: SinkLog, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_rewrite, "FROM_BYTES", 0)
    sink = opened(spark, path)
    batches = 4
    for k in range(batches):
        log.deliver(sink, rows(spark, between(100 * k - 10, 100 * k + 100, k)))
        # A batch has 110 rows. The file for those that come again has 20.
        assert k < 2 or int(by_hand.told(path)["operationMetrics"]["numOutputRows"]) == 120
    expected = {row[0]: row for k in range(batches) for row in between(100 * k - 10, 100 * k + 100, k)}
    assert contents(spark, path) == sorted(expected.values())


@pytest.mark.slow
def test_keys_that_come_again_later_than_expected_are_replaced_too(
    spark: SparkSession, path: Path, log: SinkLog, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_rewrite, "FROM_BYTES", 0)
    chance = random.Random(0)
    sink = opened(spark, path)
    model: dict[int, tuple[Any, ...]] = {}
    for k in range(8):
        back = chance.choice([3, 10, 10, 60, 150])
        batch = between(
            100 * k - back, 100 * k + chance.choice([0, 100]), k, chance.choice(["v", "v", "gone"])
        )
        log.deliver(sink, rows(spark, batch))
        for row in batch:
            model.pop(row[0], None)
        model.update((row[0], row) for row in batch if row[2] != "gone")
    assert contents(spark, path) == sorted(model.values())


def test_rows_without_a_key_stay_beside_those_that_a_batch_replaces(
    spark: SparkSession, path: Path, log: SinkLog, apart: None
) -> None:
    sink = opened(spark, path)
    theirs = spark.createDataFrame([(None, 1, "theirs"), (1, 1, "a"), (5, 1, "b"), (9, 1, "c")], SCHEMA)
    theirs.coalesce(1).write.format("delta").mode("append").save(str(path))
    log.deliver(sink, rows(spark, [(4, 2, "new"), (5, 2, "new")]))
    assert len(files(spark, path)) == 2
    expected = [(1, 1, "a"), (4, 2, "new"), (5, 2, "new"), (9, 1, "c"), (None, 1, "theirs")]
    assert sorted(by_hand.rows(path) or [], key=str) == expected


LONG = [
    "x" * 40,
    "x" * 32 + "\U0010ffff" * 40,
    "é" * 33,
    "\U0001f600" * 40,
    "x" * 32,
    "x" * 31 + "\x7f\x7f",
    "",
]
TYPES: Mapping[str, list[Any]] = {
    "long": [-(2**63), -7, -1, 0, 5, 2**63 - 1],
    "int": [-(2**31), -1, 0, 2**31 - 1],
    "short": [-32768, 0, 32767],
    "string": LONG,
    "date": [date(1500, 3, 1), date(1582, 10, 15), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [
        datetime(1900, 1, 1, 0, 0, 0, 999_999, UTC), datetime(1965, 5, 5, 5, 5, 5, 1, UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 3, 31, 1, 30, 0, 123_456, UTC), datetime(9999, 1, 1, tzinfo=UTC),
    ],
    "timestamp_ntz": [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 3, 31, 2, 30, 0, 999), datetime(9999, 1, 1)],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Africa/Monrovia", "Asia/Kolkata"])
def test_what_delta_says_of_its_files_leaves_none_out_that_has_a_key(
    spark: SparkSession, path: Path, zone: str
) -> None:
    """Each value in a file of its own, and in one with a null, by the statistics that Delta wrote."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({', '.join(f'former_{name} {name}' for name in TYPES)}, of string, part int, day date) "
        "USING delta PARTITIONED BY (of, part, day) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    for name in TYPES:
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN former_{name} TO k_{name}")
    schema = DeltaLog(spark, str(path)).begin().shape().schema
    most = max(map(len, TYPES.values()))
    days = [date(1970, 1, 1) + timedelta(days=k - 1) for k in range(most)]
    values = [
        (
            *(of[k] if k < len(of) else None for of in TYPES.values()),
            LONG[k % len(LONG)] or "none",
            k - 3,
            days[k],
        )
        for k in range(most)
    ]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        spark.createDataFrame(values, schema).write.format("delta").mode("append").save(str(path))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    shape = DeltaLog(spark, str(path)).begin().shape()
    by_part = {
        int(each.add["partitionValues"][physical(shape.schema, "part")]): each.add
        for each in files(spark, path).values()
    }
    assert len(by_part) == most
    ruled_out = 0
    for k, row in enumerate(values):
        batch = spark.createDataFrame([row], shape.schema)
        (piece,) = batch.toArrow().cast(arrow_schema(shape.schema)).to_batches()
        bounds = bounds_of(piece, {name: place for place, name in enumerate(shape.schema.names)})
        for name in shape.schema.names:
            ranges = key_ranges(shape.schema.fields, shape.partition_by, {name: bounds.get(name)})
            if row[shape.schema.names.index(name)] is None:
                assert not ranges
                continue
            assert ranges, name
            for j, add in by_part.items():
                same = values[j + 3][shape.schema.names.index(name)] == row[shape.schema.names.index(name)]
                assert may_hold(add, ranges) or not same, (name, k)
                ruled_out += not may_hold(add, ranges)
    everything = most * most * len(shape.schema.names)
    assert ruled_out > everything // 2


def physical(schema: StructType, name: str) -> str:
    return str(schema[name].metadata["delta.columnMapping.physicalName"])

"""Canonical savepoints: typed Parquet that any program opens, and from which a key's rows are found by an index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stateflow.checkpoint.rescale import rescaled
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import OperatorListState, Record, Savepoint, SourceState
from stateflow.savepoints.format import read_savepoint, verify_savepoint
from stateflow.savepoints.publish import SavepointFacts
from stateflow.spark.state_tables import table_files
from stateflow.spark.state_tables.canonical import BYTES, GROUPS, create_canonical
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.snapshots import checkpoint_of, savepoint_at
from stateflow.spark.state_tables.source import register
from stateflow.spark.state_tables.table_files import TableFileWriter, empty_file
from stateflow.state.tabular import StateTable, tables_of
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.files import upload_file
from stateflow.storage.roots import open_store
from tests.jobs.builder import T0
from tests.jobs.state import Held
from tests.refusals.refusal import refused
from tests.spark.holding import Holding, plain
from tests.spark.test_state_tables import START, USER, Profile, bulky, count

WEEK = 7 * 86_400 * 1_000_000
KINDS = {
    "count": Held("value", int, {n: n * 10 for n in range(100)}),
    "ratio": Held("value", float, {1: 0.5, 2: float("nan")}),
    "known": Held("value", bool, {1: True}),
    "text": Held("value", str, {1: "é\0", 2: ""}),
    "raw": Held("value", bytes, {1: b"\0\xff"}),
    "day": Held("value", date, {1: date(1969, 12, 31)}),
    "seen": Held("value", datetime, {1: START, 2: START}, ttl=WEEK, expires={1: T0 + WEEK}),
    "money": Held("value", Decimal, {1: Decimal("0.1"), 2: Decimal("1.50"), 3: Decimal("1e30")}),
    "profile": Held("value", Profile, {1: Profile("é", ["a", "b"], START), 2: Profile("", [])}),
    "waits": Held("value", timedelta, {1: timedelta(hours=1, microseconds=5)}),
    "either": Held("value", int | str, {1: 5, 2: "five"}),  # type: ignore[arg-type]
    "weights": Held("value", dict[str, float], {1: {"x": 0.5}, 2: {}}),
    "pages": Held("list", str, {1: ["x", "y", "x"], 2: ["z"]}),
    "per_day": Held("map", Profile, {1: {date(2026, 1, 1): Profile("p", [])}}, map_key="date"),
    "none": Held("value", int, {}),
    "idle": Held("timer", "event", {1: START, 2: START + timedelta(hours=1)}),
    "soon": Held("timer", "processing", {1: START}),
}


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def holding(tmp_path: Path) -> Holding:
    return Holding(tmp_path)


def canonical(spark: SparkSession, holding: Holding, record: Record, **changes: Any) -> tuple[str, Savepoint]:
    url = changes.pop("target_url", str(holding.folder / "savepoint"))
    facts = {each.name: changes.pop(each.name) for each in fields(SavepointFacts) if each.name in changes}
    made = create_canonical(
        spark, SavepointFacts(name="s", owner=holding.owner(), note="a note", **facts),
        root_url=holding.root, job=holding.name, record=record, target_url=url,
        storage_options=holding.storage_options, ids=holding.ids, clock=holding.clock, options=holding.options(), **changes,
    )  # fmt: skip
    return url, made


def files(folder: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def same_rows(spark: SparkSession, one: Any, other: Any, state: str) -> None:
    """Two snapshots show the same table, row by row in order of their keys."""
    left, right = (table_frame(spark, s, "totals", state).toArrow() for s in (one, other))
    assert left.schema == right.schema
    assert sorted(map(repr, left.to_pylist())) == sorted(map(repr, right.to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_canonical_savepoint_holds_what_the_checkpoint_holds(
    spark: SparkSession, holding: Holding, backend: str
) -> None:
    text = serializer_for(str)
    elements = {"log": OperatorListState("list", text.schema, ((text.dumps("a"),), (text.dumps("b"),)))}
    path = holding.layout.shared_file(1, 2, "log", ".bin")
    local = holding.folder / "log"
    local.write_bytes(b"a source's own log")
    log = upload_file(holding.store, path, local, "0/5")
    operator = holding.operator(USER, KINDS, backend=backend, elements=elements)
    record = holding.checkpoint(
        {"in": SourceState(lines=("{}",), files=(log,), kind="file")}, totals=operator
    )
    url, made = canonical(spark, holding, record, offsets={"in": [{"logOffset": 5}]}, expires=77)
    store = open_store(url)
    assert read_savepoint(store) == made
    assert verify_savepoint(store, deep=True) == []
    assert (made.kind, made.job, made.note, made.expires) == ("canonical", "orders", "a note", 77)
    assert made.offsets == {"in": [{"logOffset": 5}]}
    bare = made.record.operators["totals"]
    assert bare == msgspec.structs.replace(operator, shards=())
    (moved,) = made.record.sources["in"].files
    assert (moved.base, moved.xxh3, moved.sha256) == ("", log.xxh3, log.sha256)
    for files in made.tables["totals"].values():
        assert all(hashlib.sha256(store.read(file.path)).digest() == file.sha256 for file in files)
    assert store.read(moved.path) == b"a source's own log"
    assert sorted(made.tables["totals"]) == sorted([*(set(KINDS) - {"idle", "soon"}), "_timers"])
    here, there = checkpoint_of("orders", "latest", holding.options()), savepoint_at(url, holding.options())
    for state in [*made.tables["totals"], "log"]:
        same_rows(spark, here, there, state)


@pytest.mark.slow
def test_it_is_read_from_wherever_it_lies_and_a_key_reads_one_file(
    spark: SparkSession, holding: Holding
) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(300)), parallelism=3))
    url, made = canonical(spark, holding, record, split_bytes=1, max_tasks=6)
    moved = holding.folder / "elsewhere"
    Path(url).rename(moved)
    given = {**holding.given, "path": str(moved), "operator": "totals", "state": "bulk"}
    before = set(holding.cached())
    one = spark.read.format("stateflow").options(**given, key="42").load()
    assert one.rdd.getNumPartitions() == 1
    assert plain(one.collect(), "user") == [(42,)]
    assert len(set(holding.cached()) - before) == 1
    assert spark.read.format("stateflow").options(**given).load().count() == 300
    assert len(made.tables["totals"]["bulk"]) == 6


def test_pieces_of_one_shard_are_written_once(spark: SparkSession, holding: Holding) -> None:
    # Halved and joined again without a batch between: several shards list the same file.
    operator = holding.operator(USER, count(range(200)), parallelism=1)
    pieces = rescaled(rescaled(rescaled(operator, 4, "x"), 3, "x"), 5, "x")
    record = holding.checkpoint(totals=pieces)
    url, _ = canonical(spark, holding, record, split_bytes=1, max_tasks=7)
    frame = spark.read.parquet(f"{url}/tables/totals/count")
    assert plain(frame.collect(), "user", "value") == [(n, n * 10) for n in range(200)]


@pytest.mark.parametrize(
    ("split", "most", "expected"), [(1 << 40, 8, 1), (1, 8, 8), (1, 1000, 16), (1, 0, 1)]
)
def test_tasks_have_ranges_of_key_groups_by_size(
    spark: SparkSession, holding: Holding, split: int, most: int, expected: int
) -> None:
    from stateflow.spark.state_tables.canonical import _parts

    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100))))
    parts = list(_parts(record, split, most))
    assert len(parts) == expected
    assert [group for part in parts for group in range(part.first, part.last + 1)] == list(range(16))
    size = sum(s.bytes for task in record.operators["totals"].shards for s in task)
    assert sum(part.bytes for part in parts) == pytest.approx(size, rel=0.01)
    half = list(_parts(record, size // 2 + 1, 8))
    assert [(part.first, part.last) for part in half] == [(0, 7), (8, 15)]


def test_the_index_leads_from_a_key_group_to_its_row_groups(
    spark: SparkSession, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, count(range(2_000))))
    url, made = canonical(spark, holding, record, split_bytes=1, max_tasks=3)
    seen: list[int] = []
    for file in made.tables["totals"]["count"]:
        with pq.ParquetFile(Path(url) / file.path) as parquet:
            assert parquet.metadata.num_rows == file.rows
            assert parquet.num_row_groups == len(file.groups)
            for number, (low, high) in enumerate(file.groups):
                groups = parquet.read_row_group(number)["key_group"].to_pylist()
                assert (groups[0], groups[-1]) == (low, high)
                assert groups == sorted(groups)
                seen += sorted(set(groups))
                column = parquet.metadata.row_group(number).column(1)
                assert column.statistics.has_min_max  # so that other programs can pass over row groups, too
            facts = parquet.schema_arrow.metadata
            assert (facts[b"stateflow.operator"], facts[b"stateflow.type"]) == (b"totals", b"int")
    assert seen == sorted({xxhash64(n) % 16 for n in range(2_000)})


def test_a_table_without_rows_has_its_columns(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, {"none": KINDS["none"], "idle": KINDS["idle"]}))
    url, made = canonical(spark, holding, record)
    (file,) = made.tables["totals"]["none"]
    assert (file.rows, file.groups) == (0, ())
    frame = spark.read.parquet(f"{url}/tables/totals/none")
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        ("key_group", "int"), ("user", "bigint"), ("value", "bigint"),
    ]  # fmt: skip
    assert frame.count() == 0


def test_a_job_without_keyed_state_has_a_savepoint_too(spark: SparkSession, holding: Holding) -> None:
    url, made = canonical(spark, holding, holding.checkpoint())
    assert made.tables == {}
    assert files(url) == ["_metadata"]


def test_a_folder_that_is_taken_stays_as_it_is(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, count(range(10))))
    url, _ = canonical(spark, holding, record)
    before = {name: (Path(url) / name).read_bytes() for name in files(url)}
    with refused(UsageError, "there is a savepoint in", "already"):
        canonical(spark, holding, record)
    assert {name: (Path(url) / name).read_bytes() for name in files(url)} == before


def test_after_a_failure_there_is_nothing(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100)), parallelism=4))
    broken = record.operators["totals"].shards[3][0].files
    path = next(f.path for f in broken if f.path)
    holding.store.delete([path])
    foreign = holding.folder / "savepoint" / "tables" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(CorruptError, match=r"is missing; run `stateflow verify`"):
        canonical(spark, holding, record, split_bytes=1, max_tasks=4)
    assert files(str(holding.folder / "savepoint")) == ["tables/notes.txt"]


def test_another_savepoint_that_was_quicker_stands(
    spark: SparkSession, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, count(range(10))))
    url = str(holding.folder / "savepoint")
    from stateflow.spark.state_tables import canonical as module

    publish = module.publish

    def late(*given: Any, **facts: Any) -> Savepoint:
        monkeypatch.undo()
        canonical(spark, holding, record)
        return publish(*given, **facts)

    monkeypatch.setattr(module, "publish", late)
    with pytest.raises(UsageError):
        canonical(spark, holding, record)
    stands = read_savepoint(open_store(url))
    named = [f.path for states in stands.tables.values() for fs in states.values() for f in fs]
    assert files(url) == sorted(["_metadata", *named])


def test_what_a_task_wrote_that_nobody_heard_of_is_removed(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, count(range(10))))
    ticks = iter(["attempt1", "savepoint1"])
    stray = holding.folder / "savepoint/tables/totals/count/g00000-attempt1-0-99.parquet"
    other = stray.with_name("g00000-attempt0-0-1.parquet")
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half")
    other.write_bytes(b"of another attempt, which may still be under way")
    holding.ids = lambda: next(ticks)  # type: ignore[method-assign]
    _, made = canonical(spark, holding, record)
    assert made.id == "savepoint1"
    assert not stray.exists()
    assert other.exists()


def test_progress_is_told_in_key_groups_and_bytes(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100))))
    told: list[tuple[str, int, int]] = []
    canonical(spark, holding, record, split_bytes=1, max_tasks=4, progress=lambda *facts: told.append(facts))
    groups = [(done, total) for what, done, total in told if what == GROUPS]
    sizes = [(done, total) for what, done, total in told if what == BYTES]
    assert groups[0] == (0, 16)
    assert groups[-1] == (16, 16)
    assert groups == sorted(groups)
    assert sizes[0][0] == 0
    assert sizes[-1][0] == sizes[-1][1] > 100_000


def test_an_older_reader_of_another_kind_is_told_what_is_missing(
    spark: SparkSession, holding: Holding
) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100))))
    url, made = canonical(spark, holding, record)
    snapshot = savepoint_at(url, holding.options())
    table, parts = snapshot.table("totals", "bulk")
    open_store(url).delete([made.tables["totals"]["bulk"][0].path])
    from stateflow.spark.state_tables.source import rows_of

    with refused(CorruptError, "is missing"):
        list(rows_of(table, parts[0], table.schema, snapshot.origin))
    open_store(url).delete(["_metadata"])
    with pytest.raises(NotFoundError, match="was disposed of while it was read"):
        list(rows_of(table, parts[0], table.schema, snapshot.origin))


# ---- the files, without Spark ----


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TableFileWriter]:
    made = TableFileWriter(table(), tmp_path / "t.parquet", {"job": "orders"})
    yield made
    made.discard()


def table() -> StateTable:
    schema = msgspec.structs.replace(KINDS["count"].schema, id=1)
    return StateTable(USER, 16, "count", schema)


def entries(group: int, rows: int) -> Iterator[tuple[bytes, bytes]]:
    from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
    from stateflow.state.keys.codec import KeyCodec

    encode, dumps = KeyCodec(["int"]).encode, serializer_for(int).dumps
    return ((prefix(group, 1) + encode(n) + EMPTY_NAMESPACE, dumps(n)) for n in range(rows))


def read_back(file: Path) -> pa.Table:
    return pq.read_table(file)


def test_small_key_groups_share_a_row_group_and_are_never_split(
    writer: TableFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "GROUP_ROWS", 100)
    for group, rows in enumerate((40, 40, 40, 0, 10, 200, 0, 5)):
        writer.write(group, entries(group, rows))
    made = writer.close()
    assert made is not None
    assert made.groups == ((0, 2), (4, 5), (7, 7))
    assert made.rows == 335
    back = read_back(writer.local)
    assert back["key_group"].to_pylist() == [0] * 40 + [1] * 40 + [2] * 40 + [4] * 10 + [5] * 200 + [7] * 5
    assert (made.size, writer.first) == (writer.local.stat().st_size, 0)


def test_a_key_group_too_large_for_a_row_group_is_in_several(
    writer: TableFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 50)
    monkeypatch.setattr(table_files, "GROUP_ROWS", 80)
    monkeypatch.setattr(table_files, "MOST_ROWS", 100)
    monkeypatch.setattr(table_files, "_AHEAD", 50)
    writer.write(3, entries(3, 20))
    writer.write(5, entries(5, 270))
    writer.write(6, entries(6, 10))
    made = writer.close()
    assert made is not None
    assert made.groups[0] == (3, 5)
    assert set(made.groups[1:-1]) == {(5, 5)}
    assert made.groups[-1] == (6, 6)
    with pq.ParquetFile(writer.local) as parquet:
        sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    assert max(sizes) <= 150
    assert sum(sizes) == made.rows == 300
    assert read_back(writer.local)["user"].to_pylist() == [*range(20), *range(270), *range(10)]


def test_large_values_end_a_row_group_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "GROUP_BYTES", 50_000)
    monkeypatch.setattr(table_files, "CHUNK_BYTES", 20_000)
    schema = msgspec.structs.replace(KINDS["text"].schema, id=1)
    made = TableFileWriter(StateTable(USER, 16, "text", schema), tmp_path / "t.parquet", {})
    dumps = serializer_for(str).dumps
    for group in range(6):
        made.write(group, ((key, dumps("x" * 1_000)) for key, _ in entries(group, 30)))
    file = made.close()
    assert file is not None
    assert file.groups == ((0, 1), (2, 3), (4, 5))


def test_nothing_written_is_no_file(writer: TableFileWriter) -> None:
    writer.write(0, entries(0, 0))
    assert writer.close() is None
    assert not writer.local.exists()


def test_an_empty_file_says_what_it_would_hold(tmp_path: Path) -> None:
    made = empty_file(table(), tmp_path / "t.parquet", {"job": "orders"})
    assert (made.rows, made.groups) == (0, ())
    schema = pq.read_schema(tmp_path / "t.parquet")
    assert schema.names == ["key_group", "user", "value"]
    assert schema.metadata[b"stateflow.job"] == b"orders"


# ---- other programs ----


@pytest.fixture
def tables(spark: SparkSession, holding: Holding) -> str:
    record = holding.checkpoint(totals=holding.operator(USER, KINDS))
    url, _ = canonical(spark, holding, record, split_bytes=1, max_tasks=3)
    return f"{url}/tables/totals"


MICROS = round(START.timestamp() * 1_000_000)


@pytest.mark.slow
def test_plain_spark_opens_every_table(spark: SparkSession, tables: str) -> None:
    types = {
        "count": "bigint", "ratio": "double", "known": "boolean", "text": "string", "raw": "binary", "day": "date",
        "seen": "timestamp", "money": "decimal(38,18)", "weights": "map<string,double>",
        "profile": "struct<name:string,tags:array<string>,last:timestamp>",
    }  # fmt: skip
    for state, type_ in types.items():
        frame = spark.read.parquet(f"{tables}/{state}")
        assert frame.schema["value"].dataType.simpleString() == type_
        assert frame.count() == len(KINDS[state].content)
    profile = spark.read.parquet(f"{tables}/profile").where("user = 1").collect()[0]["value"]
    assert (profile["name"], profile["tags"]) == ("é", ["a", "b"])
    timers = spark.read.parquet(f"{tables}/_timers").selectExpr("timer", "user", "unix_micros(at)").collect()
    assert ("soon", 1, MICROS) in [tuple(row) for row in timers]
    for state in tables_of_kinds():
        spark.read.parquet(f"{tables}/{state}").collect()


def test_pandas_opens_every_table(tables: str) -> None:
    import pandas as pd

    count = pd.read_parquet(f"{tables}/count")
    assert str(count["value"].dtype) == "int64"
    assert dict(zip(count["user"], count["value"], strict=True)) == KINDS["count"].content
    seen = pd.read_parquet(f"{tables}/seen")
    assert str(seen["value"].dtype) == "datetime64[us, UTC]"
    assert seen["value"][0] == pd.Timestamp(START)
    profile = pd.read_parquet(f"{tables}/profile").set_index("user")["value"]
    assert profile[1]["name"] == "é"
    assert profile[1]["tags"].tolist() == ["a", "b"]
    for state in tables_of_kinds():
        pd.read_parquet(f"{tables}/{state}")


def test_duckdb_opens_every_table(tables: str) -> None:
    connection = duckdb.connect()

    def rows(state: str, what: str) -> Any:
        return connection.sql(
            f"select {what} from read_parquet('{tables}/{state}/*.parquet') order by user"
        ).fetchall()

    assert rows("count", "user, value") == sorted(KINDS["count"].content.items())
    types = {"count": "BIGINT", "day": "DATE", "seen": "TIMESTAMP WITH TIME ZONE", "money": "DECIMAL(38,18)",
             "raw": "BLOB", "weights": "MAP(VARCHAR, DOUBLE)"}  # fmt: skip
    for state, type_ in types.items():
        assert set(rows(state, "typeof(value)")) == {(type_,)}
    assert rows("profile", "value['name'], value['tags'], epoch_us(value['last'])")[0] == (
        "é",
        ["a", "b"],
        MICROS,
    )

    for state in tables_of_kinds():
        rows(state, "*")


def test_polars_opens_every_table(tables: str) -> None:
    count = polars.read_parquet(f"{tables}/count/*.parquet")
    assert count.schema["value"] == polars.Int64
    assert dict(count.select("user", "value").iter_rows()) == KINDS["count"].content
    seen = polars.read_parquet(f"{tables}/seen/*.parquet")
    assert seen.schema["value"] == polars.Datetime("us", "UTC")
    profile = polars.read_parquet(f"{tables}/profile/*.parquet").filter(polars.col("user") == 1)
    assert profile["value"][0] == {"name": "é", "tags": ["a", "b"], "last": START}
    for state in tables_of_kinds():
        polars.read_parquet(f"{tables}/{state}/*.parquet")


def tables_of_kinds() -> list[str]:
    return [*(state for state, held in KINDS.items() if held.kind != "timer"), "_timers"]


def test_every_kind_above_is_a_table_of_its_own(holding: Holding) -> None:
    assert sorted(tables_of(holding.operator(USER, KINDS))) == sorted(tables_of_kinds())
    assert START.tzinfo is UTC

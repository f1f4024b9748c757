"""Upserts into Iceberg: one row per key whatever the order, files without a key of the batch stay, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyspark.sql import SparkSession

import stateflow as sf
import stateflow.connectors.tries as pauses_module
from stateflow.connectors import Sink
from stateflow.connectors.iceberg.catalog import OneTry
from stateflow.errors import DisagreementError, IncompatibleError, UsageError
from stateflow.spark.sinks.kinds import prepare_rewind
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.iceberg_catalog import NAME, rows_of, sql_catalog
from tests.refusals.refusal import refused

COLUMNS = "id long, at double, item string"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    monkeypatch.setattr(pauses_module, "PAUSES", (0.0,) * 3)
    with sql_catalog(tmp_path / "lake") as made:
        yield made


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> SinkLog:
    return SinkLog(spark, tmp_path / "checkpoints")


def sink_of(
    log: SinkLog, columns: str = COLUMNS, table: dict[str, Any] | None = None, **options: Any
) -> Sink:
    target = sf.iceberg("shop.orders", **{"catalog": NAME, "create": True, **(table or {})})
    sink = make_sink("totals", "upsert", target, {"keys": ("id",), **options})
    sink.open(log.spark, log.spark.createDataFrame([], columns).schema)
    return sink


def frame(log: SinkLog, *rows: tuple[Any, ...], columns: str = COLUMNS) -> Any:
    return log.spark.createDataFrame(list(rows), columns).coalesce(1)


def items(catalog: Catalog) -> dict[Any, Any]:
    rows = rows_of(catalog, "shop.orders")
    found = {row["id"]: row["item"] for row in rows}
    assert len(found) == len(rows), f"a key is there twice: {rows}"
    return found


def files(catalog: Catalog) -> set[str]:
    return {task.file.file_path for task in catalog.load_table("shop.orders").scan().plan_files()}


def others(*ids: int) -> pa.Table:
    """Rows of another writer."""
    schema = pa.schema([pa.field("id", pa.int64(), False), ("at", pa.float64()), ("item", pa.string())])
    return pa.table({"id": ids, "at": [0.0] * len(ids), "item": ["other"] * len(ids)}, schema)


def test_of_several_rows_the_highest_counts_and_null_is_lowest_and_nan_highest(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log, order_by="at")
    rows = [
        (1, 1.0, "low"), (1, 2.0, "high"), (1, None, "null"),
        (2, None, "null"), (2, None, "second null"),
        (3, math.inf, "infinite"), (3, math.nan, "nan"), (3, None, "null"),
        (4, -0.5, "only"),
    ]  # fmt: skip
    log.deliver(sink, frame(log, *rows))
    assert items(catalog) == {1: "high", 2: "null", 3: "nan", 4: "only"}


def test_several_columns_order_one_after_the_other(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log, order_by=("at", "item"))
    log.deliver(sink, frame(log, (1, 1.0, "b"), (1, 1.0, "c"), (1, 0.0, "d"), (1, 1.0, None)))
    assert items(catalog) == {1: "c"}


def test_deletes_delete_and_leave_a_slot_even_where_there_is_nothing(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log, delete_when="item = 'gone'")
    log.deliver(sink, frame(log, (1, 1.0, "gone")))
    assert items(catalog) == {}
    log.deliver(sink, frame(log, (1, 1.0, "a"), (2, 1.0, "b")))
    log.deliver(sink, frame(log, (1, 2.0, "gone"), (3, 1.0, "c")))
    assert items(catalog) == {2: "b", 3: "c"}
    log.deliver(sink, frame(log, (2, 2.0, "gone"), (3, 1.0, "gone")))
    assert items(catalog) == {}


def test_files_without_a_key_of_the_batch_stay_as_they_are(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    log.deliver(sink, frame(log, *((id, 0.0, "a") for id in range(10))))
    low = files(catalog)
    log.deliver(sink, frame(log, *((id, 0.0, "b") for id in range(100, 110))))
    high = files(catalog) - low
    log.deliver(sink, frame(log, (5, 1.0, "c"), (50, 1.0, "c")))
    assert high <= files(catalog)
    assert not low & files(catalog)
    assert items(catalog) == {
        **dict.fromkeys(range(10), "a"), **dict.fromkeys(range(100, 110), "b"), 5: "c", 50: "c"
    }  # fmt: skip


def test_a_table_of_version_1_is_merged_into(catalog: Catalog, log: SinkLog) -> None:
    fields = [
        NestedField(1, "id", LongType()),
        NestedField(2, "at", DoubleType()),
        NestedField(3, "item", StringType()),
    ]
    catalog.create_table("shop.orders", Schema(*fields), properties={"format-version": "1"})
    sink = sink_of(log)
    log.deliver(sink, frame(log, (1, 0.0, "a"), (2, 0.0, "a")))
    log.deliver(sink, frame(log, (2, 1.0, "b"), (3, 1.0, "b")))
    assert items(catalog) == {1: "a", 2: "b", 3: "b"}


def test_a_batch_that_replaces_nothing_appends_for_readers_of_new_rows(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    log.deliver(sink, frame(log, (1, 0.0, "a")))
    log.deliver(sink, frame(log, (2, 0.0, "a")))
    log.deliver(sink, frame(log, (2, 0.0, "b")))
    operations = [
        s.summary.operation.value for s in catalog.load_table("shop.orders").snapshots() if s.summary
    ]
    assert operations == ["append", "append", "overwrite"]


@pytest.mark.parametrize("gone", [False, True], ids=["upsert", "delete"])
def test_a_way_back_never_takes_an_upsert_of_all_files_for_the_first_snapshot_of_a_table(
    catalog: Catalog, log: SinkLog, gone: bool
) -> None:
    """PyIceberg takes the parent away from a snapshot whose parent has expired."""
    sink = sink_of(log, delete_when="item = 'gone'")
    table = catalog.load_table("shop.orders")
    table.append(others(1, 2))
    rows = [(1, 1.0, "gone" if gone else "job"), *([(2, 1.0, "gone")] if gone else [])]
    newest = log.prepare(sink, frame(log, *rows))
    log.commit(newest)
    left = items(catalog)

    def back() -> None:
        log.slot += 1
        log.commit(log.stored(prepare_rewind(log.spark, newest, log.at(), None)))

    table.refresh().maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    with refused(IncompatibleError, "has expired", "without --rewind-sinks"):
        back()
    assert items(catalog) == left == ({} if gone else {1: "job", 2: "other"})


def test_a_rollback_is_seen_where_older_snapshots_have_expired(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    table = catalog.load_table("shop.orders")
    table.append(others(1))
    log.deliver(sink, frame(log, (1, 1.0, "a")))
    log.deliver(sink, frame(log, (1, 2.0, "b")))
    oldest, first, second = (snapshot.snapshot_id for snapshot in table.refresh().snapshots())
    table.maintenance.expire_snapshots().by_id(oldest).commit()
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with refused(DisagreementError, "behind slot 2", f"set_current_snapshot({second})"):
        log.prepare(sink, frame(log, (1, 3.0, "c")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["string", "date", "timestamp", "timestamp_ntz", "decimal(12,3)", "binary", "int"]
)
def test_keys_of_every_type_find_their_rows(catalog: Catalog, log: SinkLog, kind: str) -> None:
    """Few are looked for one by one, many by their range."""

    def key(number: int) -> Any:
        return {
            "string": f"k'{number}", "date": date.fromordinal(730000 + number), "int": number - 100,
            "timestamp": datetime(1969, 12, 31, 23, 59, number % 60, number, UTC),
            "timestamp_ntz": datetime(1969, 12, 31, 23, 59, number % 60, number),
            "decimal(12,3)": Decimal(number) / 1000, "binary": number.to_bytes(3, "big"),
        }[kind]  # fmt: skip

    columns = f"id {kind}, item string"
    sink = sink_of(log, columns)
    batches = {"old": range(300), "few": range(5, 55), "many": range(50, 300)}
    for text, numbers in batches.items():
        log.deliver(sink, frame(log, *((key(number), text) for number in numbers), columns=columns))
    newest = {number: text for text, numbers in batches.items() for number in numbers}
    assert items(catalog) == {key(number): text for number, text in newest.items()}


def test_keys_of_several_columns_in_a_partitioned_table_of_another_order(
    catalog: Catalog, log: SinkLog
) -> None:
    columns = "item string, day string, id long"
    sink = sink_of(log, "day string, id long, item string", {"partition_by": "day"}, keys=("id", "day"))
    sink = sink_of(log, columns, {"create": False}, keys=("ID", "day"))
    rows = [(f"{day} {id}", day, id) for day in ("a", "b") for id in range(5)]
    log.deliver(sink, frame(log, *rows, columns=columns))
    log.deliver(sink, frame(log, ("new", "b", 3), ("new", "c", 3), columns=columns))
    found = {(row["day"], row["id"]): row["item"] for row in rows_of(catalog, "shop.orders")}
    assert found == {**{(d, i): text for text, d, i in rows}, ("b", 3): "new", ("c", 3): "new"}


def test_rows_of_others_keep_fields_with_odd_names(catalog: Catalog, log: SinkLog) -> None:
    """The commit copies them into a file that spells such names in another way."""
    columns = "id long, item struct<`unit-price`: double, `a b`: array<struct<`c.d`: long>>>"
    sink = sink_of(log, columns)
    there = catalog.load_table("shop.orders")
    others = [{"id": id, "item": {"unit-price": 1.5, "a b": [{"c.d": id}]}} for id in (1, 2)]
    there.append(pa.Table.from_pylist(others, schema=there.schema().as_arrow()))
    log.deliver(sink, frame(log, (1, (9.5, [(7,)])), columns=columns))
    assert items(catalog) == {
        1: {"unit-price": 9.5, "a b": [{"c.d": 7}]}, 2: {"unit-price": 1.5, "a b": [{"c.d": 2}]}
    }  # fmt: skip


def test_rows_of_others_keep_nulls_where_structs_are_in_lists(catalog: Catalog, log: SinkLog) -> None:
    """PyIceberg alone reads an empty list or map for them."""
    columns = "id long, item struct<many: array<struct<a: int>>, by: map<string, struct<x: long>>, deep: array<struct<more: array<struct<a: int>>>>>"
    others = {
        1: {"many": None, "by": None, "deep": None},
        2: {"many": [], "by": [], "deep": [{"more": None}, None, {"more": []}, {"more": [{"a": 1}]}]},
        3: {"many": [{"a": None}, None], "by": [("k", None)], "deep": []},
        4: None,
    }
    sink = sink_of(log, columns)
    rows = [
        (id, row and (row["many"], None if row["by"] is None else dict(row["by"]), row["deep"]))
        for id, row in others.items()
    ]
    log.deliver(sink, frame(log, *rows, (5, None), columns=columns))
    log.deliver(sink, frame(log, (5, ([(7,)], {}, [])), columns=columns))
    (path,) = files(catalog)
    found = pq.ParquetFile(path.removeprefix("file://")).read().to_pylist()
    new = {5: {"many": [{"a": 7}], "by": [], "deep": []}}
    assert {row["id"]: row["item"] for row in found} == others | new


def test_rows_that_another_engine_deleted_by_position_stay_deleted(catalog: Catalog, log: SinkLog) -> None:
    """A file with deletes is read with them before its rows are written anew."""
    sink = sink_of(log)
    log.deliver(sink, frame(log, *((id, 0.0, "a") for id in range(4))))
    with_position_delete(catalog.load_table("shop.orders"), 2)
    assert set(items(catalog)) == {0, 1, 3}
    log.deliver(sink, frame(log, (3, 1.0, "b")))
    assert items(catalog) == {0: "a", 1: "a", 3: "b"}


def with_position_delete(table: Table, position: int) -> None:
    """What Spark and Flink write for a deleted row, as PyIceberg cannot."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    (task,) = table.scan().plan_files()
    path = f"{table.location()}/data/deletes.parquet"
    rows = pa.table(
        {"file_path": [task.file.file_path], "pos": [position]},
        pa.schema(
            [
                pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
                pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
            ]
        ),
    )
    written = pa.BufferOutputStream()
    pa.parquet.write_table(rows, written)
    with table.io.new_output(path).create() as out:
        out.write(written.getvalue().to_pybytes())
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=1, file_size_in_bytes=len(written.getvalue()),
    )  # fmt: skip
    deletes.spec_id = 0

    class DeleteManifest(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Deleting(_FastAppendFiles):
        def _existing_manifests(self) -> list[Any]:
            output = self.new_manifest_output()
            with DeleteManifest(table.spec(), table.schema(), output, self.snapshot_id, "deflate") as writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, sequence_number=None,
                    file_sequence_number=None, data_file=deletes,
                )  # fmt: skip
                writer.add(entry)
            return [*super()._existing_manifests(), writer.to_manifest_file()]

    from pyiceberg.table.snapshots import Operation

    transaction = table.transaction()
    with Deleting(Operation.DELETE, transaction, table.io):
        pass
    transaction.commit_transaction()


def test_others_who_write_the_same_keys_meanwhile_are_replaced_too(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict lets the merge begin anew, on the table as it is by then."""
    sink = sink_of(log)
    log.deliver(sink, frame(log, (1, 0.0, "a")))
    prepared = log.prepare(sink, frame(log, (1, 1.0, "b"), (2, 1.0, "b")))
    own, others = OneTry.commit_table, iter([True])

    def overtaken(self: OneTry, table: Table, requirements: Any, updates: Any) -> Any:
        if next(others, False):
            there = catalog.load_table("shop.orders")
            there.append(pa.table({"id": [2], "at": [9.0], "item": ["x"]}, there.schema().as_arrow()))
        return own(self, table, requirements, updates)

    monkeypatch.setattr(OneTry, "commit_table", overtaken)
    assert log.commit(prepared) == "committed"
    assert items(catalog) == {1: "b", 2: "b"}


# --- what is refused before a row is written


@pytest.mark.parametrize(
    ("schema", "columns", "options", "expected"),
    [
        ([("id", LongType()), ("more", StringType())], "id long", {}, "has the column 'more', which the output of the upsert lacks"),
        ([("id", DoubleType())], "id double", {}, "has the key 'id', which is double"),
        ([("id", LongType())], "id long", {"order_by": "at"}, "names 'at', which is not among the columns"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_merged_into_is_refused(
    catalog: Catalog, log: SinkLog, schema: Any, columns: str, options: dict[str, Any], expected: str
) -> None:
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(schema, 1)]
    catalog.create_table("shop.orders", Schema(*fields))
    with pytest.raises((IncompatibleError, UsageError), match=expected):
        sink_of(log, columns, **options)


def test_a_null_in_a_required_column_is_refused_unless_the_row_deletes(
    catalog: Catalog, log: SinkLog
) -> None:
    columns = [NestedField(1, "id", LongType(), True), NestedField(2, "item", StringType(), True)]
    catalog.create_table("shop.orders", Schema(*columns, NestedField(3, "gone", LongType())))
    rows = "id long, item string, gone long"
    sink = sink_of(log, rows, delete_when="gone = 1")
    log.deliver(sink, frame(log, (1, "a", 0), columns=rows))
    with refused(IncompatibleError, "null in column 'item'", "no row was written"):
        log.prepare(sink, frame(log, (2, None, 0), columns=rows))
    log.slot -= 1
    log.deliver(sink, frame(log, (1, None, 1), columns=rows))
    assert rows_of(catalog, "shop.orders") == []


@pytest.mark.parametrize("far", ["id", "at"])
@pytest.mark.parametrize("day", ["date'+10000-01-01'", "timestamp'9999-12-31 23:59:59 America/New_York'"])
def test_a_time_that_python_has_not_is_refused_unless_the_row_deletes(
    catalog: Catalog, log: SinkLog, day: str, far: str
) -> None:
    kind = day.partition("'")[0]
    near = {"id": f"cast('2026-01-01' as {kind})", "at": f"cast('2026-01-01' as {kind})", "item": "'a'"}

    def rows(count: int = 1, **given: str) -> Any:
        selected = (f"{value} {name}" for name, value in (near | given).items())
        return log.spark.range(count).selectExpr(*selected).coalesce(1)

    sink = sink_of(log, rows().schema.simpleString(), delete_when="item = 'gone'")
    log.deliver(sink, rows())
    with refused(IncompatibleError, "years 1 to 9999", f"column {far!r}", "no row was written"):
        log.prepare(sink, rows(**{far: day}))
    log.slot -= 1
    log.deliver(sink, rows(**{far: day}, item="'gone'"))
    assert len(rows_of(catalog, "shop.orders")) == (1 if far == "id" else 0)
    # More keys are looked for by their bounds.
    many = f"{day} + make_dt_interval(cast(id as int))" if kind == "timestamp" else f"{day} + cast(id as int)"
    log.deliver(sink, rows(150, id=many, item="'gone'"))
    assert len(rows_of(catalog, "shop.orders")) == (1 if far == "id" else 0)


def test_a_column_that_comes_between_decision_and_commit_stops_with_the_reason(
    catalog: Catalog, log: SinkLog
) -> None:
    prepared = log.prepare(sink_of(log), frame(log, (1, 0.0, "a")))
    with catalog.load_table("shop.orders").update_schema() as update:
        update.add_column("more", StringType())
    with refused(DisagreementError, "is decided, and", "lacks", "`stateflow abandon orders 1`"):
        log.commit(prepared)
    with catalog.load_table("shop.orders").update_schema() as update:
        update.delete_column("more")
    log.commit(prepared)  # what the sentence advises
    assert items(catalog) == {1: "a"}


@pytest.mark.parametrize("kind", ["array<long>", "map<string,long>", "struct<at:double>"])
def test_an_order_that_arrow_does_not_sort_as_spark_is_refused_at_the_start(
    catalog: Catalog, log: SinkLog, kind: str
) -> None:
    columns = f"id long, version {kind}"
    with refused(UsageError, "order_by='VERSION'", "which is ", kind[:4], "transform()"):
        sink_of(log, columns, order_by="VERSION")
    sink_of(log, f"{columns}, major long", order_by="major")  # what the sentence advises


def test_a_decided_record_that_cannot_be_merged_stops_with_the_reason(catalog: Catalog, log: SinkLog) -> None:
    """An earlier release let lists decide which row is the newest."""
    columns = "id long, version array<long>, at long"
    prepared = log.prepare(sink_of(log, columns, order_by="at"), frame(log, (1, [1], 1), columns=columns))
    older = structs.replace(prepared, payload={**prepared.payload, "order_by": ["version"]})
    with refused(
        DisagreementError, "is decided, and", "cannot be merged", "list", "`stateflow abandon orders 1`"
    ):
        log.commit(older)
    log.commit(prepared)


def test_a_null_of_others_in_what_is_now_required_stops_with_the_reason(
    catalog: Catalog, log: SinkLog
) -> None:
    columns = [NestedField(1, "id", LongType(), True), NestedField(2, "item", StringType())]
    table = catalog.create_table("shop.orders", Schema(*columns))
    rows = "id long, item string"
    prepared = log.prepare(sink_of(log, rows), frame(log, (1, "a"), columns=rows))
    table.append(pa.table({"id": [1, 2], "item": ["x", None]}, table.schema().as_arrow()))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("item", required=True)
    with refused(DisagreementError, "is decided, and", "null", "'item'", "`stateflow abandon orders 1`"):
        log.commit(prepared)
    with table.update_schema() as update:
        update.make_column_optional("item")
    log.commit(prepared)  # what the sentence advises
    assert items(catalog) == {1: "a", 2: None}

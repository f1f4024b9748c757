"""Appends to Iceberg: no slot twice whatever two runs believe, columns of all types, partitions, a way back, and what is refused."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType, TimestamptzType
from pyspark.sql import SparkSession

import stateflow as sf
import stateflow.connectors.iceberg.sink as sink_module
import stateflow.connectors.tries as pauses_module
from stateflow.connectors import Sink
from stateflow.connectors.iceberg.catalog import OneTry, configuration
from stateflow.connectors.iceberg.slots import SINK, SLOT
from stateflow.connectors.iceberg.writer import DataFileWriter
from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError, UnavailableError, UsageError
from stateflow.pipelines.sink_kinds import kind_of
from stateflow.pipelines.sinks import check_sink
from stateflow.spark.sinks.kinds import prepare_rewind
from stateflow.spark.task.failures import translated
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.iceberg_catalog import NAME, glue_catalog, rows_of, sql_catalog
from tests.refusals.refusal import refused

COLUMNS = "id long, item string"
AT = datetime(2025, 3, 1, 12, 30, 5, 123456, UTC)


@pytest.fixture
def catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Catalog]:
    monkeypatch.setattr(pauses_module, "PAUSES", (0.0,) * 3)
    with getattr(request, "param", sql_catalog)(tmp_path / "lake") as made:
        yield made


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> SinkLog:
    return SinkLog(spark, tmp_path / "checkpoints")


def sink_of(log: SinkLog, columns: str = COLUMNS, **options: Any) -> Sink:
    """A sink that is open for such rows."""
    target = sf.iceberg("shop.orders", **{"catalog": NAME, "create": True, **options})
    sink = make_sink("totals", "append", target, {})
    sink.open(log.spark, log.spark.createDataFrame([], columns).schema)
    return sink


def deliver(log: SinkLog, sink: Sink, *ids: int) -> Any:
    prepared = log.prepare(sink, frame(log, *ids))
    log.commit(prepared)
    return prepared


def frame(log: SinkLog, *ids: int) -> Any:
    return log.spark.createDataFrame([(id, f"item {id}") for id in ids], COLUMNS).coalesce(1)


def ids(catalog: Catalog) -> list[int]:
    return sorted(row["id"] for row in rows_of(catalog, "shop.orders"))


def rolled_back(catalog: Catalog) -> tuple[Table, int]:
    """The table, back behind the second of its two snapshots, and that one."""
    table = catalog.load_table("shop.orders")
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    return table.refresh(), second


# --- two runs that both believe to be the newest


@pytest.mark.slow
def test_a_zombie_that_has_read_the_slot_before_commits_it_no_second_time(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg alone tries again after the conflict, and the rows would be there twice."""
    prepared = log.prepare(sink_of(log), frame(log, 1, 2))
    own, others = SqlCatalog.commit_table, iter([True])

    def overtaken(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        if next(others, False):
            assert log.commit(prepared) == "committed"
        return own(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    assert log.commit(prepared) == "already"
    assert ids(catalog) == [1, 2]


def test_a_commit_whose_answer_is_lost_as_a_conflict_is_in_once_and_whole(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy sends a commit twice: the first is carried out, and the answer is the conflict of the second. Nobody may delete its manifests."""
    prepared = log.prepare(sink_of(log), frame(log, 1, 2))
    monkeypatch.setattr(SqlCatalog, "commit_table", twice(SqlCatalog.commit_table))
    assert log.commit(prepared) == "already"
    assert ids(catalog) == [1, 2]


def twice(own: Callable[..., Any]) -> Callable[..., Any]:
    def sent_twice(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        own(self, table, requirements, updates)
        return own(self, table, requirements, updates)

    return sent_twice


@pytest.mark.slow
@pytest.mark.parametrize("catalog", [sql_catalog, glue_catalog], indirect=True)
def test_runs_that_commit_side_by_side_with_other_writers_lose_and_double_nothing(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    stop = threading.Event()

    def write() -> None:
        number = 1000
        while not stop.is_set():
            number += 1
            with suppress(Exception):
                rows = pa.table({"id": [number], "item": ["other"]})
                catalog.load_table("shop.orders").append(rows)

    def try_to_commit(prepared: Any) -> None:
        with suppress(UnavailableError):
            log.commit(prepared)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for slot in range(1, 6):
            prepared = log.prepare(sink, frame(log, slot))
            runs = [threading.Thread(target=try_to_commit, args=(prepared,)) for _ in range(3)]
            for run in runs:
                run.start()
            for run in runs:
                run.join(60)
            log.commit(prepared)
    finally:
        stop.set()
        writer.join(60)
    assert [id for id in ids(catalog) if id < 1000] == [1, 2, 3, 4, 5]


def test_a_way_back_lets_no_older_commit_in_that_was_under_way(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of slot 2 are taken back while another run still commits slot 2, on the snapshot to which the table goes back."""
    sink = sink_of(log)
    deliver(log, sink, 1)
    second = log.prepare(sink, frame(log, 2))
    own, others = SqlCatalog.commit_table, iter([True])

    def overtaken(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        if next(others, False):
            log.commit(second)
            log.slot += 1
            log.commit(log.stored(prepare_rewind(log.spark, second, log.at(), 1)))
        return own(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    with pytest.raises(DisagreementError):
        log.commit(second, 2)
    assert ids(catalog) == [1]


# --- what a commit leaves


def test_the_summary_of_a_snapshot_says_the_sink_and_the_slot(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    deliver(log, sink, 2)
    found = [snapshot.summary for snapshot in catalog.load_table("shop.orders").snapshots()]
    assert [(s[SINK], s[SLOT], s["stateflow.job"]) for s in found if s] == [
        (log.at().app_id, "1", "orders"),
        (log.at().app_id, "2", "orders"),
    ]


def test_the_rows_of_a_record_are_read_from_its_data_files_under_their_names_of_then(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    deliver(log, sink, 9)
    prepared = deliver(log, sink, 1, 2)
    table = catalog.load_table("shop.orders")
    with table.update_schema() as columns:
        columns.rename_column("item", "what")
        columns.add_column("new", LongType())
    found = sink.delivered(prepared)
    assert found is not None
    assert found.to_pylist() == [{"id": id, "item": f"item {id}"} for id in (1, 2)]
    catalog.purge_table("shop.orders")
    sink_of(log)
    with refused(DisagreementError, "shop.orders", "made anew"):
        sink.delivered(prepared)


def test_a_slot_is_known_after_its_snapshot_has_expired(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    table = catalog.load_table("shop.orders")
    own = table.current_snapshot()
    table.append(pa.table({"id": [100], "item": ["other"]}))
    assert own is not None
    table.maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
    deliver(log, sink, 2)
    assert ids(catalog) == [1, 2, 100]


def test_the_manifests_of_many_commits_are_merged(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    catalog.load_table("shop.orders").transaction().set_properties(
        {"commit.manifest.min-count-to-merge": "4"}
    ).commit_transaction()
    for slot in range(1, 8):
        deliver(log, sink, slot)
    table = catalog.load_table("shop.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 4
    assert ids(catalog) == list(range(1, 8))


def test_old_files_of_metadata_go_behind_as_many_as_the_table_keeps(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    table = catalog.load_table("shop.orders")
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    table.transaction().set_properties({"write.metadata.previous-versions-max": "2"}).commit_transaction()
    for slot in range(1, 7):
        deliver(log, sink, slot)
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) <= 4
    assert ids(catalog) == list(range(1, 7))


# --- a way back


def rewound(log: SinkLog, prepared: Any, to: int | None) -> None:
    log.slot += 1
    log.commit(log.stored(prepare_rewind(log.spark, prepared, log.at(), to)))


def test_the_way_back_goes_over_a_compaction_and_to_a_table_that_others_filled_before(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    catalog.load_table("shop.orders").append(pa.table({"id": [100], "item": ["other"]}))
    deliver(log, sink, 1)
    newest = deliver(log, sink, 2)
    rewound(log, newest, 1)
    assert ids(catalog) == [1, 100]
    newest = deliver(log, sink, 3)
    rewound(log, newest, 2)  # slot 2 was taken back, and comes again
    assert ids(catalog) == [1, 2, 100]
    rewound(log, newest, None)
    assert ids(catalog) == [100]


def test_a_table_of_version_1_is_written_and_goes_back(catalog: Catalog, log: SinkLog) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "item", StringType()))
    catalog.create_table("shop.orders", schema, properties={"format-version": "1"})
    sink = sink_of(log)
    deliver(log, sink, 1)
    newest = deliver(log, sink, 2)
    rewound(log, newest, 1)
    assert ids(catalog) == [1]
    newest = deliver(log, sink, 3)
    rewound(log, newest, None)
    assert ids(catalog) == []
    deliver(log, sink, 4)
    table = catalog.load_table("shop.orders")
    assert (table.format_version, ids(catalog)) == (1, [4])


def test_what_others_wrote_since_refuses_the_way_back(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    newest = deliver(log, sink, 2)
    catalog.load_table("shop.orders").append(pa.table({"id": [100], "item": ["other"]}))
    with refused(IncompatibleError, "others have written since", "snapshot ", "without --rewind-sinks"):
        rewound(log, newest, 1)
    assert ids(catalog) == [1, 2, 100]


@pytest.mark.parametrize("to", [1, None])
def test_an_expired_snapshot_refuses_the_way_back(catalog: Catalog, log: SinkLog, to: int | None) -> None:
    sink = sink_of(log)
    catalog.load_table("shop.orders").append(pa.table({"id": [100], "item": ["other"]}))
    deliver(log, sink, 1)
    newest = deliver(log, sink, 2)
    table = catalog.load_table("shop.orders")
    current = table.current_snapshot()
    gone = [
        each.snapshot_id for each in table.snapshots() if current and each.snapshot_id != current.snapshot_id
    ]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    with refused(IncompatibleError, "has expired"):
        rewound(log, newest, to)
    assert ids(catalog) == [1, 2, 100]


def test_others_who_write_between_decision_and_commit_stop_the_way_back(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    newest = deliver(log, sink, 1)
    log.slot += 1
    prepared = log.stored(prepare_rewind(log.spark, newest, log.at(), None))
    catalog.load_table("shop.orders").append(pa.table({"id": [100], "item": ["other"]}))
    with refused(DisagreementError, "cannot go back any more", "others", "`stateflow abandon orders 2`"):
        log.commit(prepared)
    assert ids(catalog) == [1, 100]


def test_a_table_that_somebody_rolled_back_is_refused_until_it_is_brought_forward(
    catalog: Catalog, log: SinkLog
) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    deliver(log, sink, 2)
    table, second = rolled_back(catalog)
    with refused(DisagreementError, "rolled", "back behind slot 2", f"set_current_snapshot({second})"):
        log.prepare(sink, frame(log, 3))
    log.slot -= 1
    table.refresh().manage_snapshots().set_current_snapshot(second).commit()
    deliver(log, sink, 3)
    assert ids(catalog) == [1, 2, 3]


def test_what_others_wrote_after_a_rollback_is_named_before_it_goes(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    deliver(log, sink, 2)
    table, second = rolled_back(catalog)
    table.refresh().append(pa.table({"id": [100], "item": ["other"]}))
    others = table.refresh().current_snapshot()
    assert others is not None
    with refused(
        DisagreementError,
        f"set_current_snapshot({second})",
        f"others have written since (snapshot {others.snapshot_id})",
    ):
        log.prepare(sink, frame(log, 3))
    table.manage_snapshots().set_current_snapshot(second).commit()
    log.slot -= 1
    deliver(log, sink, 3)
    assert ids(catalog) == [1, 2, 3], "as the sentence says"


@pytest.mark.parametrize("value", ["hello", "[1]", None])
def test_a_slot_that_somebody_has_damaged_is_named(catalog: Catalog, log: SinkLog, value: str | None) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    table = catalog.load_table("shop.orders")
    name = log.at().app_id
    was = table.properties[name]
    with table.transaction() as changed:
        if value is None:
            changed.remove_properties(name)
        else:
            changed.set_properties({name: value})
    with refused(DisagreementError, repr(name), "the value that it had"):
        log.prepare(sink, frame(log, 2))
    log.slot -= 1
    with table.refresh().transaction() as changed:
        changed.set_properties({name: was})
    deliver(log, sink, 2)
    assert ids(catalog) == [1, 2]


# --- a table that changes between decision and commit


def test_a_rollback_between_decision_and_commit_is_not_written_over(catalog: Catalog, log: SinkLog) -> None:
    sink = sink_of(log)
    deliver(log, sink, 1)
    deliver(log, sink, 2)
    prepared = log.prepare(sink, frame(log, 3))
    table, second = rolled_back(catalog)
    with refused(DisagreementError, "behind slot 2", f"set_current_snapshot({second})", "abandon orders 3"):
        log.commit(prepared)
    table.refresh().manage_snapshots().set_current_snapshot(second).commit()
    log.commit(prepared)
    assert ids(catalog) == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("made anew", ("dropped or made anew",)),
        ("partitions", ("other partitions",)),
        ("column gone", ("lost its column 'item'",)),
        ("file gone", ("its data file", "is gone")),
    ],
)
def test_a_table_that_changed_since_the_decision_stops_with_the_reason(
    catalog: Catalog, log: SinkLog, change: str, expected: tuple[str, ...]
) -> None:
    sink = sink_of(log)
    prepared = log.prepare(sink, frame(log, 1))
    table = catalog.load_table("shop.orders")
    if change == "made anew":
        catalog.drop_table("shop.orders")
        catalog.create_table("shop.orders", table.schema())
    elif change == "partitions":
        table.update_spec().add_identity("id").commit()
    elif change == "column gone":
        table.update_schema().delete_column("item").commit()
    else:
        table.io.delete(prepared.payload["files"][0]["path"])
    with refused(DisagreementError, "record 1 of", "is decided", *expected, "stateflow abandon orders 1"):
        log.commit(prepared)
    assert ids(catalog) == []


def test_columns_that_are_renamed_added_or_widened_since_the_decision_do_no_harm(
    catalog: Catalog, log: SinkLog
) -> None:
    prepared = log.prepare(sink_of(log), frame(log, 1))
    with catalog.load_table("shop.orders").update_schema() as update:
        update.rename_column("item", "what")
        update.add_column("more", StringType())
    log.commit(prepared)
    assert rows_of(catalog, "shop.orders") == [{"id": 1, "what": "item 1", "more": None}]


# --- names that a data file spells in another way


ODD = "id long, `top-level` long, item struct<`unit-price`: double, `a.b`: struct<`$ c`: string>>, many array<struct<`a b`: int>>, by map<string, struct<`x-y`: long>>"


def test_fields_keep_their_values_whatever_their_names(catalog: Catalog, log: SinkLog) -> None:
    """A data file spells them in another way, at every depth."""
    rows = [
        (1, 7, (9.5, ("text",)), [(1,), None, (None,)], {"k": (5,)}),
        (2, None, None, [], {}),
        (3, None, (None, None), [], {}),
    ]
    log.deliver(sink_of(log, ODD), log.spark.createDataFrame(rows, ODD).coalesce(1))
    assert sorted(rows_of(catalog, "shop.orders"), key=lambda row: row["id"]) == [
        {
            "id": 1, "top-level": 7, "item": {"unit-price": 9.5, "a.b": {"$ c": "text"}},
            "many": [{"a b": 1}, None, {"a b": None}], "by": [("k", {"x-y": 5})],
        },
        {"id": 2, "top-level": None, "item": None, "many": [], "by": []},
        {"id": 3, "top-level": None, "item": {"unit-price": None, "a.b": None}, "many": [], "by": []},
    ]  # fmt: skip


def test_a_field_that_the_rows_have_under_another_name_is_refused_and_never_null(catalog: Catalog) -> None:
    inner = StructType(NestedField(3, "a", LongType()), NestedField(4, "b", LongType()))
    table = catalog.create_table(
        "shop.orders", Schema(NestedField(1, "id", LongType()), NestedField(2, "item", inner))
    )
    for other in ({"a": 1, "c": 2}, {"b": 2, "a": 1}, {"a": 1}):
        batch = pa.RecordBatch.from_pylist([{"id": 1, "item": other}])
        with refused(
            IncompatibleError, "column 'item'", str(list(other)), "['a', 'b']", "no row was written"
        ):
            DataFileWriter(table.io, table.metadata, table.schema(), "one").write(batch)
    writer = DataFileWriter(table.io, table.metadata, table.schema(), "two")
    writer.write(
        pa.RecordBatch.from_pylist([{"id": 1, "item": {"a": 1, "b": 2}}])
    )  # what the sentence advises
    (file,) = writer.close()
    assert file.record_count == 1


# --- partitions


@pytest.mark.slow
def test_rows_go_to_the_partitions_of_the_table(catalog: Catalog, log: SinkLog) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "day", StringType()),
        NestedField(3, "at", TimestamptzType()),
    )
    spec = PartitionSpec(
        PartitionField(2, 1000, TruncateTransform(2), "day_start"),
        PartitionField(3, 1001, DayTransform(), "at_day"),
        PartitionField(1, 1002, BucketTransform(4), "id_bucket"),
    )
    catalog.create_table("shop.orders", schema, partition_spec=spec)
    columns = "id long, day string, at timestamp"
    sink = sink_of(log, columns, create=False)
    rows = [(id, None if id % 3 == 0 else f"d{id % 3}x", None if id % 5 == 0 else AT) for id in range(40)]
    log.deliver(sink, log.spark.createDataFrame(rows, columns).coalesce(2))
    table = catalog.load_table("shop.orders")
    found = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in found] == rows
    days = {
        (p["partition"]["day_start"], p["partition"]["at_day"])
        for p in table.inspect.partitions().to_pylist()
    }
    assert days == {(d, a) for d in (None, "d1", "d2") for a in (None, AT.date())}
    for id in range(40):
        assert [row["id"] for row in table.scan(row_filter=f"id = {id}").to_arrow().to_pylist()] == [id]
    pruned = table.scan(row_filter="day = 'd1x'").plan_files()
    assert {task.file.partition[0] for task in pruned} == {"d1"}


def test_a_table_is_made_with_partitions(catalog: Catalog, log: SinkLog) -> None:
    columns = "id long, day string, at timestamp"
    sink_of(log, columns, partition_by=["day", "days(at)", "bucket(8, id)"])
    spec = catalog.load_table("shop.orders").spec()
    assert [(field.name, field.transform) for field in spec.fields] == [
        ("day", IdentityTransform()),
        ("at_day", DayTransform()),
        ("id_bucket", BucketTransform(8)),
    ]


def test_partitions_with_the_name_of_a_column_are_refused_before_the_table_is_made(
    catalog: Catalog, log: SinkLog
) -> None:
    columns = "id long, at timestamp, at_day string"
    with refused(UsageError, "'at_day' of 'at'", "another name", "partition by 'at_day' itself"):
        sink_of(log, columns, partition_by="day(AT)")
    assert not catalog.table_exists("shop.orders")
    sink_of(log, columns, partition_by=["at_day", "hour(at)"])  # what the sentence advises


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["date", "decimal(12,3)", "binary", "int", "boolean", "timestamp_ntz", "double"]
)
def test_a_partition_holds_the_values_of_a_column(catalog: Catalog, log: SinkLog, kind: str) -> None:
    values = {
        "date": date(2025, 3, 1), "decimal(12,3)": Decimal("-1.005"), "binary": b"\x00\xff", "int": -7, "boolean": True,
        "timestamp_ntz": datetime(1969, 12, 31, 23, 59, 59, 999999), "double": 1.5,
    }  # fmt: skip
    columns = f"id long, v {kind}"
    sink = sink_of(log, columns, partition_by="v")
    log.deliver(sink, log.spark.createDataFrame([(1, values[kind]), (2, None)], columns))
    assert sorted((row["id"], row["v"]) for row in rows_of(catalog, "shop.orders")) == [
        (1, values[kind]),
        (2, None),
    ]


# --- what is refused before a row is written


def test_a_column_that_does_not_fit_is_refused_with_all_others(catalog: Catalog, log: SinkLog) -> None:
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "must", LongType(), required=True),
        NestedField(3, "at", StringType()),
    )
    catalog.create_table("shop.orders", schema)
    with refused(
        IncompatibleError,
        "shop.orders of catalog 'lake'",
        "its column 'id' is int",
        "every bigint",
        "its column 'at' is string",
        "no column 'more'",
        "ALTER TABLE ... ADD COLUMN more double",
        "its column 'must' is required",
    ):
        sink_of(log, "id long, at timestamp, more double")


def test_a_null_in_a_required_column_fails_the_batch_before_its_record(
    catalog: Catalog, log: SinkLog
) -> None:
    catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType(), required=True)))
    sink = sink_of(log, "id long")
    with pytest.raises(Exception, match=r"null") as caught:
        log.prepare(sink, log.spark.createDataFrame([(1,), (None,)], "id long").coalesce(1))
    assert "null in column 'id', which is required: no row was written" in str(translated(caught.value))
    assert not list((Path(catalog.properties["warehouse"].removeprefix("file://"))).rglob("*.parquet"))


@pytest.mark.parametrize("partition_by", [None, "day(at)"], ids=str)
@pytest.mark.parametrize(
    "value", ["timestamp'+10000-01-01 00:00:00'", "date'+10000-01-01'", "date'-0001-01-01'"]
)
def test_a_time_that_python_has_not_fails_the_batch_before_its_record(
    catalog: Catalog, log: SinkLog, value: str, partition_by: str | None
) -> None:
    rows = log.spark.range(1).selectExpr(f"{value} at").coalesce(1)
    sink = sink_of(log, rows.schema.simpleString(), partition_by=partition_by)
    with pytest.raises(Exception, match=r"years 1 to 9999") as caught:
        log.prepare(sink, rows)
    assert "in column 'at', which PyIceberg does not write: no row was written" in str(
        translated(caught.value)
    )
    log.slot -= 1
    last = log.spark.range(1).selectExpr("timestamp'9999-12-31 23:59:59.999999' at").coalesce(1)
    log.deliver(sink, last.selectExpr(f"cast(at as {dict(rows.dtypes)['at']}) at"))
    assert len(rows_of(catalog, "shop.orders")) == 1


@pytest.mark.parametrize(
    "kind", ["interval day to second", "variant", "void", "struct<at: interval day to second>"]
)
def test_a_type_that_iceberg_has_not_is_refused_at_the_start(
    catalog: Catalog, log: SinkLog, kind: str
) -> None:
    with refused(IncompatibleError, "column 'v'", "Iceberg has no type for it"):
        sink_of(log, f"id long, v {kind}")
    assert not catalog.table_exists("shop.orders")


def test_a_table_or_a_namespace_that_is_not_there_is_refused(catalog: Catalog, log: SinkLog) -> None:
    with refused(NotFoundError, "shop.orders of catalog 'lake'", "is not there", "create=True"):
        sink_of(log, create=False)
    target = sf.iceberg("nowhere.orders", catalog=NAME, create=True)
    with refused(NotFoundError, "no namespace nowhere", "create_namespace('nowhere')"):
        make_sink("totals", "append", target, {}).open(log.spark, frame(log).schema)
    catalog.create_namespace("nowhere")  # what the sentence advises
    make_sink("totals", "append", target, {}).open(log.spark, frame(log).schema)


def test_a_catalog_that_is_not_configured_is_refused_with_the_variable(log: SinkLog) -> None:
    target = sf.iceberg("shop.orders", catalog="nowhere")
    with refused(UsageError, "no such catalog (it has", "set PYICEBERG_CATALOG__NOWHERE__URI"):
        kind_of("append", target).require(target)


@pytest.mark.parametrize(
    ("called", "then"),
    [("nowhere", "nowhere"), ("No-Where", "No-Where"), ("no_where", "no-where"), ("_no__where-", "no-where")],
)
def test_the_variable_of_a_catalog_that_is_not_configured_works(
    monkeypatch: pytest.MonkeyPatch, called: str, then: str
) -> None:
    with pytest.raises(UsageError) as caught:
        configuration(sf.iceberg("shop.orders", catalog=called))
    assert (f"say catalog={then!r}" in str(caught.value)) is (called != then)
    (variable,) = re.findall(r"set (PYICEBERG_CATALOG__\w+__URI)", str(caught.value))
    monkeypatch.setenv(variable, "sqlite://")
    assert configuration(sf.iceberg("shop.orders", catalog=then)) == {"uri": "sqlite://"}


def test_a_catalog_of_any_name_may_stand_in_the_file_that_the_sentence_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    table = sf.iceberg("shop.orders", catalog="no_where")
    with refused(UsageError, ".pyiceberg.yaml", "PYICEBERG_HOME"):
        configuration(table)
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  no_where:\n    uri: sqlite://\n")
    assert configuration(table) == {"uri": "sqlite://"}


def test_a_folder_that_nobody_may_write_is_refused(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/lake/orders")

    monkeypatch.setattr(type(catalog), "create_table", denied)
    with refused(UsageError, "may not be used", "Permission denied", "give the user", "the right"):
        sink_of(log)


def test_an_error_of_the_catalog_is_told_without_its_password(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "geheim")

    def away(*args: Any) -> Any:
        raise ConnectionError("https://lake.example?token=geheim does not answer")

    monkeypatch.setattr(type(catalog), "load_table", away)
    with refused(UnavailableError, "cannot be reached", "https://lake.example?token=***"):
        sink_of(log, create=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "orders"}, r"write iceberg\('shop.orders', catalog='lake'\)"),
        ({"name": "shop.orders", "catalog": "postgresql://etl:geheim@db/lake"}, "catalog= is no name"),
        ({"name": "shop.orders", "partition_by": "week(at)"}, "is nothing that Iceberg partitions by"),
        ({"name": "shop.orders", "partition_by": "bucket(0, id)"}, "let the number be 1 or more"),
        ({"name": "shop.orders", "partition_by": "truncate(00, id)"}, "let the number be 1 or more"),
        ({"name": "shop.orders", "partition_by": ["id", "ID"]}, "'id' twice"),
        ({"name": "shop.orders", "partition_by": ["bucket(2, id)", "bucket(3, id)"]}, "'id_bucket' twice"),
        ({"name": "shop.orders", "partition_by": ["day(at)", "days(at)"]}, "'at_day' twice"),
        ({"name": "shop.orders", "per_batch": 0}, "not 0: say 1 or more"),
        ({"name": "shop.orders", "per_batch": True}, "not True: say 1 or more"),
        ({"name": "shop.orders", "per_batch": 1.5}, "not 1.5: say 1 or more"),
        ({"name": "shop.orders", "per_batch": "100"}, "not '100': say 1 or more"),
    ],
)
def test_a_target_that_is_none_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        sf.iceberg(**given)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"per_batch": 5}, "per_batch of Iceberg table"),
        ({"partition_by": "id"}, "say create=True, or leave it out"),
    ],
)
def test_what_a_sink_does_not_heed_is_refused(options: dict[str, Any], expected: str) -> None:
    target = sf.iceberg("shop.orders", **options)
    with pytest.raises(UsageError, match=expected):
        check_sink("out", kind_of("append", target), target, {})


def test_a_table_that_wants_other_files_is_refused(catalog: Catalog, log: SinkLog) -> None:
    schema = Schema(NestedField(1, "id", LongType()))
    table = catalog.create_table("shop.orders", schema, properties={"write.format.default": "orc"})
    with refused(IncompatibleError, "wants files of orc", "set it to parquet"):
        sink_of(log, "id long")
    table.transaction().set_properties({"write.format.default": "parquet"}).commit_transaction()
    sink_of(log, "id long")


def test_a_table_of_version_3_is_refused(catalog: Catalog, log: SinkLog) -> None:
    table = catalog.create_table("shop.other", Schema(NestedField(1, "id", LongType())))
    file = Path(table.metadata_location.removeprefix("file://"))
    newer = file.with_name("00009-newer.metadata.json")
    newer.write_text(json.dumps({**json.loads(file.read_text()), "format-version": 3, "next-row-id": 0}))
    catalog.register_table("shop.orders", f"file://{newer}")
    with refused(IncompatibleError, "version 3 of Iceberg's format", "a table of version 2"):
        sink_of(log, "id long")


def test_a_commit_gives_up_when_others_are_always_faster(
    catalog: Catalog, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log.prepare(sink_of(log), frame(log, 1))

    def conflict(self: OneTry, *args: Any) -> Any:
        raise sink_module.ConflictError("always")

    with monkeypatch.context() as patched:
        patched.setattr(OneTry, "commit_table", conflict)
        with refused(UnavailableError, "100 others wrote to", "run again"):
            log.commit(prepared)
    log.commit(prepared)
    assert ids(catalog) == [1]

"""A table of Iceberg as a source: rows that were appended, each once, and a refusal for what no reader of new rows sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType

import stateflow as sf
from stateflow.connectors import Position, Source
from stateflow.connectors.iceberg.source import IcebergRows
from stateflow.connectors.iceberg.writer import DataFileWriter
from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError, UsageError
from stateflow.pipelines.rows.row_type import row_type
from stateflow.testing import SourceConformance
from tests.connectors.iceberg_catalog import NAME, sql_catalog
from tests.refusals.refusal import refused


@dataclass
class Order:
    id: int
    item: str


SCHEMA = pa.schema([("id", pa.int64()), ("item", pa.string())])


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with sql_catalog(tmp_path / "lake") as made:
        yield made


def source_of(table: Any = None, row: Any = Order) -> IcebergRows:
    return IcebergRows(table or sf.iceberg("shop.orders", catalog=NAME), row_type(row))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "item": [f"item {id}" for id in ids]}, SCHEMA)


class TestIceberg(SourceConformance):
    rows = Order

    @pytest.fixture(autouse=True)
    def _catalog(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.ids = count()
        catalog.create_table("shop.orders", SCHEMA)

    def source(self, folder: Path) -> Source:
        return source_of(sf.iceberg("shop.orders", catalog=NAME, per_batch=2))

    def add(self, folder: Path, number: int) -> Sequence[dict[str, Any]]:
        added = []
        table = self.catalog.load_table("shop.orders")
        for _ in range(number):
            row = rows(next(self.ids))
            table.append(row)
            added += row.to_pylist()
        return added


def read(source: IcebergRows, start: Position, end: Position) -> list[int]:
    return [
        row["id"]
        for part in source.plan(start, end)
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def table(catalog: Catalog) -> Any:
    made = catalog.create_table("shop.orders", SCHEMA)
    made.append(rows(1, 2))
    return made


def beginning(source: IcebergRows) -> tuple[Position, Position]:
    start = source.position(None)
    return start, source.position(start)


def test_a_table_that_was_changed_before_is_read_as_it_is(table: Any) -> None:
    table.delete("id = 1")
    table.append(rows(3))
    source = source_of()
    assert sorted(read(source, *beginning(source))) == [2, 3]


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_rows_that_are_changed_or_deleted_are_refused_with_the_snapshot(table: Any, change: str) -> None:
    source = source_of()
    _, end = beginning(source)
    table.append(rows(3))
    if change == "delete":
        table.delete("id = 1")
    else:
        table.overwrite(rows(1), overwrite_filter="id = 1")
    with refused(DisagreementError, "snapshot ", "changed or deleted rows", "new uid"):
        source.position(end)
    start, now = beginning(source_of())  # what the sentence advises
    assert sorted(read(source, start, now)) == ([2, 3] if change == "delete" else [1, 2, 3])


def test_a_table_that_was_rolled_back_behind_the_position_is_refused(table: Any) -> None:
    source, first = source_of(), table.current_snapshot().snapshot_id
    table.append(rows(3))
    _, end = beginning(source)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(DisagreementError, match="the table was rolled back behind it"):
        source.position(end)


def test_an_expired_snapshot_behind_the_position_is_refused(table: Any) -> None:
    source = source_of()
    _, end = beginning(source)
    table.append(rows(3))
    gone = table.current_snapshot().snapshot_id
    table.append(rows(4))
    table.maintenance.expire_snapshots().by_id(gone).commit()
    with refused(DisagreementError, "have expired", "a new uid"):
        source.position(end)
    assert sorted(read(source, *beginning(source))) == [1, 2, 3, 4]


def test_a_table_that_was_made_anew_is_refused(catalog: Catalog, table: Any) -> None:
    source = source_of()
    _, end = beginning(source)
    catalog.drop_table("shop.orders")
    catalog.create_table("shop.orders", SCHEMA)
    with refused(DisagreementError, "dropped and made anew"):
        source.position(end)


def test_a_column_that_the_table_was_once_partitioned_by_may_be_gone(catalog: Catalog, table: Any) -> None:
    @dataclass
    class Bare:
        id: int

    with table.update_spec() as update:
        update.add_identity("item")
    table.append(rows(3))
    with table.update_spec() as update:
        update.remove_field("item")
    table.append(rows(4))
    before = source_of(row=Bare)
    start, end = beginning(before)
    recorded = list(before.plan(start, end))
    with table.update_schema() as change:
        change.delete_column("item")
    after = source_of(row=Bare)
    assert sorted(read(after, start, end)) == [1, 2, 3, 4]
    # So are parts that were planned when the column was there.
    again = [row["id"] for part in recorded for batch in after.read(part) for row in batch.to_pylist()]
    assert sorted(again) == [1, 2, 3, 4]


def test_columns_are_found_by_their_ids_after_the_table_was_changed(table: Any) -> None:
    source = source_of()
    start, end = beginning(source)
    with table.update_schema() as update:
        update.rename_column("item", "what")
        update.add_column("amount", LongType())
    with refused(IncompatibleError, "no column 'item'", "it has id, what, amount"):
        source.position(end)

    @dataclass
    class Renamed:
        id: int
        what: str
        amount: int | None

    after = source_of(row=Renamed)
    (part,) = after.plan(start, end)
    assert [row for batch in after.read(part) for row in batch.to_pylist()] == [
        {"id": 1, "what": "item 1", "amount": None},
        {"id": 2, "what": "item 2", "amount": None},
    ]


@dataclass
class Piece:
    a: int | None


@dataclass
class Bundle:
    id: int
    many: list[Piece] | None
    by: dict[str, Piece | None] | None


def test_a_null_list_or_map_of_structs_is_no_empty_one(catalog: Catalog) -> None:
    """PyIceberg alone gives an empty one, and writes one, too."""
    piece = pa.struct([("a", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("many", pa.list_(piece)), ("by", pa.map_(pa.string(), piece))])
    bundles = [
        {"id": 1, "many": None, "by": None},
        {"id": 2, "many": [], "by": []},
        {"id": 3, "many": [{"a": 1}, {"a": None}], "by": [("k", {"a": 2})]},
        {"id": 4, "many": None, "by": [("k", None)]},
    ]
    made = catalog.create_table("shop.orders", schema)
    writer = DataFileWriter(made.io, made.metadata, made.schema(), "one")
    writer.write(pa.RecordBatch.from_pylist(bundles, schema))
    with made.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        for file in writer.close():
            snapshot.append_data_file(file)
    source = source_of(row=Bundle)
    (part,) = source.plan(*beginning(source))
    assert [row for batch in source.read(part) for row in batch.to_pylist()] == bundles


@dataclass
class MayLack:
    id: int
    item: str | None = None


@dataclass
class ReadsWhat:
    id: int
    what: str | None = None


def test_a_renamed_column_is_refused_where_its_field_may_be_missing_too(table: Any) -> None:
    source = source_of(row=MayLack)
    start, end = beginning(source)
    parts = source.plan(start, end)
    with table.update_schema() as update:
        update.rename_column("item", "what")
    said = ("renamed the column 'item'", "to 'what'", "or the column back")
    with refused(IncompatibleError, *said):
        source.position(end)
    with refused(IncompatibleError, *said):
        source.plan(start, end)
    with refused(IncompatibleError, *said):
        list(source.read(parts[0]))
    # What the sentence advises: the field is renamed, too.
    table.append(pa.table({"id": [3], "what": ["item 3"]}, table.schema().as_arrow()))
    after = source_of(row=ReadsWhat)
    newest = after.position(end)
    assert read(after, end, newest) == [3]
    with table.update_schema() as update:
        update.rename_column("what", "item")
    with refused(IncompatibleError, "renamed the column 'what'", "to 'item'"):
        after.position(newest)
    assert source.position(end)["snapshot"] == newest["snapshot"], "or the column is renamed back"


def test_a_column_that_is_dropped_or_was_never_there_may_be_missing(table: Any) -> None:
    source = source_of(row=MayLack)
    start, end = beginning(source)
    (part, *_) = source.plan(start, end)
    assert list(source.columns(part)) == table.schema().column_names, "a run finds a misspelt field by them"
    with table.update_schema() as update:
        update.delete_column("item")
    table.append(pa.table({"id": [3]}, table.schema().as_arrow()))
    assert read(source, end, source.position(end)) == [3]


def test_a_position_of_an_earlier_release_is_read_on_and_gets_the_columns(table: Any) -> None:
    source = source_of(row=MayLack)
    start, end = beginning(source)
    older = {"table": end["table"], "snapshot": end["snapshot"]}
    assert source.position(older) == older, "there is nothing to read"
    assert read(source, start, older) == [1, 2]
    table.append(rows(3))
    newest = source.position(older)
    assert read(source, older, newest) == [3]
    assert newest["columns"] == end["columns"]


def test_a_row_class_that_does_not_fit_and_a_missing_table_are_refused_at_the_start(table: Any) -> None:
    @dataclass
    class Wrong:
        id: str
        more: int

    with refused(IncompatibleError, "'id' is long", "no string", "no column 'more'", "it has id, item"):
        source_of(row=Wrong).position(None)
    with refused(NotFoundError, "shop.nothing of catalog 'lake'", "is not there"):
        source_of(sf.iceberg("shop.nothing", catalog=NAME)).position(None)
    with pytest.raises(NotFoundError):
        source_of(sf.iceberg("nowhere.at", catalog=NAME)).position(None)


def test_what_only_a_sink_heeds_is_refused() -> None:
    with refused(UsageError, "source 'orders'", "create of Iceberg table", "would do nothing"):
        sf.iceberg("shop.orders", create=True).declared("orders", row_type(Order))


def test_small_files_are_read_together_and_large_ones_apart(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of()
    for id in (3, 4, 5):
        table.append(rows(id))
    start, end = beginning(source)
    assert len(source.plan(start, end)) == 1
    monkeypatch.setattr("stateflow.connectors.iceberg.source._PART", 1)
    assert len(source.plan(start, end)) == 4
    assert replace(source) == source

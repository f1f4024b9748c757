"""What a source reads of an Iceberg table: the whole of one snapshot first, then what each later snapshot appended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.connectors import (
    DisagreementError,
    IncompatibleError,
    Position,
    RowType,
    Source,
    UsageError,
    arrow_type,
)
from stateflow.connectors.iceberg.catalog import configuration, identity_of, loaded, told, trying_again
from stateflow.connectors.iceberg.data_files import data_file, described
from stateflow.connectors.iceberg.reading import scan_of
from stateflow.connectors.iceberg.slots import lineage
from stateflow.connectors.iceberg.table import IcebergTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

_PART = 64 << 20
"""Bytes of files that one task reads."""


@dataclass(frozen=True, slots=True)
class IcebergRows(Source):
    """A table as the source of a flow. A position names the table, by its UUID, the snapshot up to which it was read, and by their ids the
    columns that were read: a record of an earlier release lacks those."""

    table: IcebergTable
    rows: RowType | None = None
    """The columns that are read; None until a flow says them."""

    offset_kind = "iceberg"

    @property
    def place(self) -> str:  # type: ignore[override]
        return self.table.place

    @property
    def identity(self) -> str:  # type: ignore[override]
        return identity_of(trying_again(self.table, lambda: loaded(self.table)))

    def __str__(self) -> str:
        return str(self.table)

    def require(self) -> None:
        configuration(self.table)

    def position(self, start: Position | None) -> Position:
        table = trying_again(self.table, lambda: loaded(self.table))
        self._columns(table)
        uuid = str(table.metadata.table_uuid)
        if start is None:
            return {"table": uuid, "snapshot": ""}
        if start["table"] != uuid:
            raise DisagreementError(
                f"{self} was dropped and made anew since it was read: give the source a new uid, which reads it from its beginning, and the operators behind it and all their other sources, too, and run once with --allow-non-restored-state"
            )
        self._refuse_renamed(table, start)
        current = table.current_snapshot()
        if current is None:
            if start["snapshot"]:
                raise self._no_way(start, "it has no snapshot any more")
            return start
        if start["snapshot"] == str(current.snapshot_id):
            return start  # also where the columns are others than they were: there is nothing to read
        self._appends(table, start, current.snapshot_id)
        own = set(self._fields())
        read = {str(field.field_id): field.name for field in table.schema().fields if field.name in own}
        columns = {**start.get("columns", {}), **read}
        return {"table": uuid, "snapshot": str(current.snapshot_id), "columns": columns}

    def cut(self, start: Position, end: Position) -> Position:
        if self.table.per_batch is None:
            return end
        table = loaded(self.table)
        snapshots = (
            self._appends(table, start, int(end["snapshot"]))
            if start["snapshot"]
            else _from_the_first(table, int(end["snapshot"]))
        )
        rows = 0
        for snapshot in snapshots:
            rows += _added(snapshot)
            if rows >= self.table.per_batch:
                return {**end, "snapshot": str(snapshot.snapshot_id)}
        return end

    def plan(self, start: Position, end: Position) -> Sequence[Any]:
        table, last = trying_again(self.table, lambda: loaded(self.table)), int(end["snapshot"])
        self._refuse_renamed(table, end)
        if start["snapshot"]:
            self._appends(table, start, last)
            scan = table.incremental_append_scan(
                from_snapshot_id_exclusive=int(start["snapshot"]), to_snapshot_id_inclusive=last
            )
        else:
            if table.metadata.snapshot_by_id(last) is None:
                raise self._no_way(start, f"its snapshot {last} has expired")
            scan = table.scan(snapshot_id=last)
        with told(self.table):
            tasks = sorted(scan.plan_files(), key=lambda task: task.file.file_path)
        parts = list(_parts(table, tasks))
        for part in parts:
            part[0]["columns"] = end.get("columns", {})
        return parts

    def read(self, part: Any) -> Iterable[pa.RecordBatch]:
        from pyiceberg.table import FileScanTask

        table = trying_again(self.table, lambda: loaded(self.table))
        wanted, schema = self._columns(table), table.schema()
        self._refuse_renamed(table, part[0])
        present = [name for name in wanted if name in schema.column_names]
        scan = scan_of(table, schema.select(*present))
        for described_file in part:
            files = [_file(table, each) for each in (described_file["file"], *described_file["deletes"])]
            with told(self.table):
                for batch in scan.to_record_batches([FileScanTask(files[0], set(files[1:]))]):
                    yield _selected(batch, wanted)

    def columns(self, part: Any) -> Iterable[str]:
        return [field.name for field in trying_again(self.table, lambda: loaded(self.table)).schema().fields]

    def _columns(self, table: Table) -> dict[str, pa.DataType]:
        """Types of the columns that are read. Refuses a table that cannot be read, or lacks them."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        if table.metadata.format_version > 2:
            raise IncompatibleError(
                f"{self} has version {table.metadata.format_version} of Iceberg's format, and versions 1 and 2 are read"
            )
        snapshot = table.current_snapshot()
        if snapshot is not None and snapshot.summary is not None:
            deletes = snapshot.summary["total-equality-deletes"]
            if deletes not in (None, "0"):
                raise IncompatibleError(
                    f"{self} has equality deletes, which PyIceberg does not read: have them rewritten (rewrite_data_files) first"
                )
        assert self.rows is not None, "a flow has said the columns"
        there = {field.name: field.type for field in schema_to_pyarrow(table.schema())}
        wanted, problems = {}, []
        for field in self.rows.fields:
            wanted[field.name] = arrow_type(field.type)
            if field.name not in there:
                if not (field.nullable or field.default):
                    problems.append(f"it has no column {field.name!r}")
            elif not _holds(wanted[field.name], there[field.name]):
                kind = table.schema().find_field(field.name).field_type
                problems.append(f"its column {field.name!r} is {kind}, which is no {field.type}")
        if problems:
            raise IncompatibleError(
                f"{self} does not fit the row class {self.rows.name}: {'; '.join(problems)}; it has {', '.join(there)}"
            )
        return wanted

    def _refuse_renamed(self, table: Table, read: Mapping[str, Any]) -> None:
        """IncompatibleError for a column that was read and has another name by now, where its field may be missing: it would be None without
        a word. `read` has the names of columns by their ids, if it is of this release."""
        there = {str(field.field_id): field.name for field in table.schema().fields}
        lacking = set(self._fields()) - set(there.values())
        for id, name in read.get("columns", {}).items():
            if name in lacking and id in there:
                raise IncompatibleError(
                    f"{self}: somebody has renamed the column {name!r}, which was read, to {there[id]!r}, so that field {name!r} of the row class would "
                    f"be empty in each row: rename the field to {there[id]!r}, or the column back"
                )

    def _fields(self) -> tuple[str, ...]:
        assert self.rows is not None, "a flow has said the columns"
        return self.rows.names

    def _appends(self, table: Table, start: Position, last: int) -> list[Snapshot]:
        """The snapshots behind the start, the oldest first. Refuses those that do more than append."""
        if not start["snapshot"] or int(start["snapshot"]) == last:
            return []
        first, reached, whole = int(start["snapshot"]), False, True
        snapshots: list[Snapshot] = []
        for snapshot in lineage(table.metadata):
            if snapshot is None:
                whole = False
                break
            if snapshot.snapshot_id == first:
                reached = True
                break
            snapshots.append(snapshot)
            if snapshot.parent_snapshot_id == first:
                reached = True  # it may have expired
                break
        if not reached:
            raise self._no_way(
                start, "the table was rolled back behind it" if whole else "snapshots behind it have expired"
            )
        snapshots.reverse()
        ids = [snapshot.snapshot_id for snapshot in snapshots]
        if last not in ids:
            raise self._no_way(start, f"snapshot {last} is not in it any more")
        snapshots = snapshots[: ids.index(last) + 1]
        for snapshot in snapshots:
            operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown"
            if operation not in ("append", "replace"):
                raise self._no_way(
                    start,
                    f"snapshot {snapshot.snapshot_id} changed or deleted rows ({operation}), which a reader of new rows would not see",
                )
        return snapshots

    def _no_way(self, start: Position, reason: str) -> DisagreementError:
        read = f"up to snapshot {start['snapshot']}" if start["snapshot"] else "not yet"
        return DisagreementError(
            f"{self} was read {read}, and there is no way on from there: {reason}; give the source a new uid, which reads the table from its "
            "beginning, and the operators behind it and all their other sources, too, and run once with --allow-non-restored-state, or restore the job to a checkpoint from which there is a way"
        )


def rows_of(uid: str, table: IcebergTable, rows: RowType | None) -> Any:
    """What a source reads. UsageError for what only a sink heeds."""
    for name, given in (("create", table.create), ("partition_by", table.partition_by)):
        if given:
            raise UsageError(
                f"source {uid!r}: {name} of {table} is for writing it and would do nothing: leave it out"
            )
    return IcebergRows(table, rows).declared(uid, rows)


def _from_the_first(table: Table, last: int) -> Iterator[Snapshot]:
    """The snapshots up to one, the oldest first, if each appended and none has expired; else none: then the whole is read at once."""
    snapshots = list(lineage(table.metadata))
    if any(
        each is None or each.summary is None or each.summary.operation.value != "append" for each in snapshots
    ):
        return
    for snapshot in reversed(snapshots):
        assert snapshot is not None
        yield snapshot
        if snapshot.snapshot_id == last:
            return


def _added(snapshot: Snapshot) -> int:
    return 0 if snapshot.summary is None else int(snapshot.summary["added-records"] or 0)


def _parts(table: Table, tasks: Sequence[FileScanTask]) -> Iterator[list[Any]]:
    """Files as tasks read them, small ones together."""
    part: list[Any] = []
    size = 0
    for task in tasks:
        if part and size + task.file.file_size_in_bytes > _PART:
            yield part
            part, size = [], 0
        deletes = sorted(task.delete_files, key=lambda file: file.file_path)
        part.append(
            {"file": _described(table, task.file), "deletes": [_described(table, each) for each in deletes]}
        )
        size += task.file.file_size_in_bytes
    if part:
        yield part


def _described(table: Table, file: Any) -> dict[str, Any]:
    return described(file, table.specs()[file.spec_id], table.schema())


def _file(table: Table, description: Any) -> Any:
    return data_file(description, table.specs()[description["spec"]], table.schema())


def _selected(batch: pa.RecordBatch, wanted: dict[str, pa.DataType]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        batch[name].cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)
        for name, kind in wanted.items()
    ]
    return pa.record_batch(columns, names=list(wanted))


def _holds(wanted: pa.DataType, there: pa.DataType) -> bool:
    """Whether a type of a row class holds all values of a table's, as PyIceberg gives them."""
    import pyarrow as pa

    if pa.types.is_struct(wanted) and pa.types.is_struct(there):
        own, others = (
            [wanted[k] for k in range(wanted.num_fields)],
            [there[k] for k in range(there.num_fields)],
        )
        return [f.name for f in own] == [f.name for f in others] and all(
            _holds(f.type, other.type) for f, other in zip(own, others, strict=True)
        )
    if pa.types.is_map(wanted) and pa.types.is_map(there):
        return _holds(wanted.key_type, there.key_type) and _holds(wanted.item_type, there.item_type)
    if pa.types.is_list(wanted) and (pa.types.is_list(there) or pa.types.is_large_list(there)):
        return _holds(wanted.value_type, there.value_type)
    if pa.types.is_decimal(wanted) and pa.types.is_decimal(there):
        return bool(
            wanted.scale >= there.scale and wanted.precision - wanted.scale >= there.precision - there.scale
        )
    return str(wanted) in _WIDER.get(str(there), (str(there),))


_WIDER = {
    "int32": ("int32", "int64"),
    "float": ("float", "double"),
    "large_string": ("string",),
    "large_binary": ("binary",),
}
"""By Arrow's name of a table's type those that hold its values."""

"""Appends to an Iceberg table: tasks write data files, and the commit adds them in a snapshot together with the slot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.connectors import (
    CommitRequest,
    Committed,
    DisagreementError,
    FileRef,
    IncompatibleError,
    Prepared,
    Sink,
    SinkKind,
    SinkSlot,
    Stager,
    UnavailableError,
)
from stateflow.connectors.iceberg.catalog import (
    ConflictError,
    catalog_of,
    found,
    identity_of,
    loaded,
    told,
    trying_again,
)
from stateflow.connectors.iceberg.columns import made_partitions, made_schema, written_schema
from stateflow.connectors.iceberg.data_files import data_file
from stateflow.connectors.iceberg.reading import scan_of
from stateflow.connectors.iceberg.slots import (
    slot_of,
    slot_property,
    summary_of,
    taken_back,
    way_back,
    writers,
    written_beside,
)
from stateflow.connectors.iceberg.table import APPEND, IcebergTable
from stateflow.connectors.iceberg.writer import TaskWriters

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TRIES = 100
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Of a table that a run makes: each commit leaves a file of metadata behind, and the older ones go."""
_MERGED = "commit.manifest-merge.enabled"
"""Iceberg's default is true, and PyIceberg's false: each commit would be read by all that follow."""

Change = Callable[["CommitRequest", "Table", "Transaction"], None]
"""What a commit does to a table, beside its slot: it makes the snapshot."""


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A table as a record names it."""

    catalog: str
    name: str
    uuid: str
    """Another one for a table that was made anew."""
    spec: int
    """Of the partitions that its files have."""
    columns: Sequence[Sequence[Any]]
    """Ids and names of the columns that are written."""

    @classmethod
    def made(cls, target: IcebergTable, table: Table, columns: Schema) -> RecordedTable:
        """The table as it is, to which these columns are written."""
        written = [[field.field_id, field.name] for field in columns.fields]
        metadata = table.metadata
        return cls(target.catalog, target.name, str(metadata.table_uuid), metadata.default_spec_id, written)

    @classmethod
    def of(cls, prepared: Prepared) -> RecordedTable:
        return cls(*(prepared.payload[name] for name in cls.__dataclass_fields__))

    @property
    def table(self) -> IcebergTable:
        return IcebergTable(self.name, self.catalog)

    def payload(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"exactly_once": True}


class IcebergAppend(Sink):
    """The sink `stream.append(uid, iceberg(table))`."""

    declared: ClassVar[SinkKind] = APPEND
    target: IcebergTable

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.upsert.deletion(schema)
        self.upsert.refuse_nested_order(schema)
        if self.target.create and found(self.target) is None:
            self.refuse_gone(str(self.target))
            self._make(self.upsert.columns(schema))
        table = loaded(self.target)
        self.identity = identity_of(table)
        self._columns(table, schema)

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        table = trying_again(self.target, lambda: asked(self.target, at))
        columns = self._columns(table, frame.schema)
        written = stager.write_with(frame, TaskWriters(table.io, table.metadata, columns))
        files = [json.loads(file) for file in written]
        return self._prepared(table, columns, at, {"files": files}, sum(file["rows"] for file in files))

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        if not request.prepared.payload["files"]:
            return "none"
        return committed(request, _append)

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        return slot_of(loaded(RecordedTable.of(prepared).table).metadata, at.app_id)[0]

    @classmethod
    def delivered(cls, prepared: Prepared) -> pa.Table | None:
        """The rows of the data files, under the names that their columns had."""
        import pyarrow as pa
        from pyiceberg.schema import Schema
        from pyiceberg.table import FileScanTask

        target = RecordedTable.of(prepared)
        table = loaded(target.table)
        if str(table.metadata.table_uuid) != target.uuid:
            raise DisagreementError(f"{target.table} was dropped or made anew since")
        files = prepared.payload["files"]
        if gone := _gone(table, files):
            raise DisagreementError(f"{len(gone)} of its data files in {target.table} are gone")
        names = {int(id): str(name) for id, name in target.columns}
        schema = Schema(*(field for field in table.schema().fields if field.field_id in names))
        specs = table.specs()
        tasks = [FileScanTask(data_file(file, specs[file["spec"]], table.schema())) for file in files]
        with told(target.table):
            batches = list(scan_of(table, schema).to_record_batches(tasks))
        if not batches:
            return None
        return pa.Table.from_batches(batches).rename_columns(
            [names[field.field_id] for field in schema.fields]
        )

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        return writers(loaded(self.target).metadata)

    @classmethod
    def rewind(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
        target = RecordedTable.of(prepared)
        table = loaded(target.table)
        metadata = table.metadata
        if str(metadata.table_uuid) != target.uuid:
            raise DisagreementError(
                f"{target.table} was dropped or made anew since {at} wrote to it: put the old one back, or restore without --rewind-sinks, into a new "
                "table and a new sink uid"
            )
        slot, _ = slot_of(metadata, at.app_id)
        at.refuse_disagreement(str(target.table), slot, at.restore_to(slot))
        _, refused = way_back(metadata, at.app_id, last_slot)
        if refused:
            raise IncompatibleError(
                f"{target.table} cannot go back for {at}: {refused}; restore without --rewind-sinks, into a new table and a new sink uid"
            )
        # No file is added: the partitions and columns are those of the table as it is.
        as_it_is = RecordedTable.made(target.table, table, table.schema())
        payload = {**as_it_is.payload(), "back_to": last_slot}
        return Prepared(kind=cls.declared.rewound_as, target=prepared.target, payload=payload)

    @staticmethod
    def commit_rewind(request: CommitRequest) -> Committed:
        return committed(request, _go_back)

    def _columns(self, table: Table, schema: StructType) -> Schema:
        """The columns of the data files. Refuses a table that cannot be written, or does not fit."""
        what = str(self.target)
        refuse_unwritable(table, what)
        return written_schema(schema, table.schema(), what)

    def _prepared(
        self,
        table: Table,
        columns: Schema,
        at: SinkSlot,
        payload: Mapping[str, Any],
        rows: int,
        files: tuple[FileRef, ...] = (),
    ) -> Prepared:
        target = RecordedTable.made(self.target, table, columns)
        return Prepared(
            kind=self.declared.name,
            target=self.target.place,
            payload={**target.payload(), **payload},
            files=files,
            rows=rows,
        )

    def _make(self, schema: StructType) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        what = str(self.target)
        columns = made_schema(schema, self.upsert.keys, what)
        spec = made_partitions(columns, self.target.partitions, what)
        catalog = catalog_of(self.target)
        with told(self.target):
            try:
                catalog.create_table(self.target.name, columns, partition_spec=spec, properties=_PROPERTIES)
            except TableAlreadyExistsError:
                return  # somebody else has made it in this very moment


def asked(table: IcebergTable, at: SinkSlot) -> Table:
    """The table, before a record is decided. DisagreementError where its slot is not that of the log."""
    opened = loaded(table)
    slot, _ = slot_of(opened.metadata, at.app_id)
    if slot is None and at.prev is not None:
        raise DisagreementError(
            f"sink and log disagree: {table} has no property {at.app_id!r}, which says what {at} wrote last: put the table back, or give it the value "
            "that it had (older metadata of the table has it), or give a new table a new sink uid"
        )
    at.refuse_disagreement(str(table), slot, at.restore_to(slot))
    if gone := _rolled_back(table, opened, at):
        raise DisagreementError(f"sink and log disagree: {gone}, or give the sink a new uid")
    return opened


def _rolled_back(target: IcebergTable, table: Table, at: SinkSlot) -> str:
    """That somebody has rolled a table back behind the sink's last commit, and what brings its rows back; empty if nobody has."""
    slot, _ = slot_of(table.metadata, at.app_id)
    snapshot = taken_back(table.metadata, at.app_id)
    if snapshot is None:
        return ""
    others = written_beside(table.metadata, snapshot)
    loses = (
        f", which takes away what others have written since (snapshot {others.snapshot_id}): write that again"
        if others
        else ""
    )
    return (
        f"somebody has rolled {target} back behind slot {slot} of {at}, so that its rows are gone; bring them back with "
        f"table.manage_snapshots().set_current_snapshot({snapshot.snapshot_id}).commit(){loses}"
    )


def committed(request: CommitRequest, change: Change) -> Committed:
    """Commits a change with its slot, once: whoever finds that somebody else has committed meanwhile looks at the slot again."""
    target = RecordedTable.of(request.prepared)
    for _ in range(_TRIES):
        try:
            return trying_again(target.table, lambda: _tried(target, request, change))
        except ConflictError:
            continue
    raise UnavailableError(
        f"{_TRIES} others wrote to {target.table} while {request.at} committed slot {request.at.slot}: run again"
    )


def _tried(target: RecordedTable, request: CommitRequest, change: Change) -> Committed:
    table = loaded(target.table)
    slot, mark = slot_of(table.metadata, request.at.app_id)
    if request.is_in(str(target.table), slot, mark):
        return "already"
    if reason := _changed(table, target):
        request.still_owner()
        raise request.stuck(f"{reason}: put the table back")
    # A snapshot on top of the older one would hide from everybody after it that rows are gone.
    if change is not _go_back and (gone := _rolled_back(target.table, table, request.at)):
        request.still_owner()
        raise request.stuck(gone)
    metadata = table.metadata
    table.metadata = metadata.model_copy(update={"properties": {_MERGED: "true", **metadata.properties}})
    transaction = table.transaction()
    transaction.set_properties(slot_property(request.at))
    change(request, table, transaction)
    # The snapshot is committed only on top of the one that was current when the slot was read.
    request.still_owner()
    transaction.commit_transaction()
    return "committed"


def _changed(table: Table, target: RecordedTable) -> str:
    """Why files of a record cannot be added to the table as it is now; empty if they can."""
    metadata = table.metadata
    if str(metadata.table_uuid) != target.uuid:
        return f"{target.table} was dropped or made anew since"
    if metadata.default_spec_id != target.spec:
        return f"{target.table} has other partitions since"
    there = {field.field_id: field for field in table.schema().fields}
    written = {id for id, _ in target.columns}
    gone = [name for id, name in target.columns if id not in there]
    if gone:
        return f"{target.table} has lost its column {gone[0]!r} since"
    wanted = [field.name for id, field in there.items() if field.required and id not in written]
    return f"{target.table} has got the required column {wanted[0]!r} since" if wanted else ""


def refuse_unwritable(table: Table, what: str) -> None:
    """IncompatibleError for a table that PyIceberg does not write as it asks for."""
    metadata = table.metadata
    if metadata.format_version > 2:
        raise IncompatibleError(
            f"{what} has version {metadata.format_version} of Iceberg's format, and versions 1 and 2 are written: write to a table of version 2"
        )
    if (kind := metadata.properties.get("write.format.default", "parquet").lower()) != "parquet":
        raise IncompatibleError(
            f"{what} wants files of {kind} (write.format.default), and Parquet is written: set it to parquet"
        )
    names = {field.field_id for field in table.schema().fields}
    for field in table.spec().fields:
        if field.source_id not in names:
            raise IncompatibleError(
                f"{what} is partitioned by a field inside a struct ({field.name}), which is not written: partition it by a column"
            )


def refuse_unreadable(table: Table, what: str) -> None:
    """IncompatibleError for a table with rows that PyIceberg takes for there, though they are deleted."""
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return
    if snapshot.summary["total-equality-deletes"] not in (None, "0"):
        raise IncompatibleError(
            f"{what} has equality deletes, which PyIceberg does not read: have them rewritten first (rewrite_data_files)"
        )


def _gone(table: Table, files: Sequence[Mapping[str, Any]]) -> list[str]:
    """The data files of a record that are not there any more."""
    return [file["path"] for file in files if not table.io.new_input(file["path"]).exists()]


def _append(request: CommitRequest, table: Table, transaction: Transaction) -> None:
    files, spec, schema = request.prepared.payload["files"], table.spec(), table.schema()
    if gone := _gone(table, files):
        raise request.stuck(
            f"its data file {gone[0]} is gone (were orphan files removed, with too short a retention?): put it back"
        )
    with transaction.update_snapshot(snapshot_properties=summary_of(request.at)).merge_append() as snapshot:
        for file in files:
            snapshot.append_data_file(data_file(file, spec, schema))


def _go_back(request: CommitRequest, table: Table, transaction: Transaction) -> None:
    from pyiceberg.table.update.snapshot import ManageSnapshots

    prepared, at = request.prepared, request.at
    snapshot, refused = way_back(table.metadata, at.app_id, prepared.payload["back_to"])
    if refused:
        raise DisagreementError(
            f"record {at.slot} of {at} is decided, and {RecordedTable.of(prepared).table} cannot go back any more: {refused}; give it up with `stateflow "
            f"abandon {at.job_name} {at.slot}`"
        )
    update = transaction.update_snapshot(snapshot_properties=summary_of(at))
    if snapshot is None:
        with update.overwrite() as emptied:
            for task in table.scan().plan_files():
                emptied.delete_data_file(task.file)
        return
    ManageSnapshots(transaction).set_current_snapshot(snapshot)
    # A snapshot of its own on top: no commit that began before this one finds the table as it was then.
    with update.fast_append():
        pass

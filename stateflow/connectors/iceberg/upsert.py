"""Upserts into an Iceberg table: the commit writes the files anew that have a key of the batch, in one snapshot with the slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from stateflow.connectors import (
    CommitRequest,
    Committed,
    IncompatibleError,
    Prepared,
    SinkKind,
    SinkSlot,
    Staged,
    Stager,
    staged_schema,
)
from stateflow.connectors.iceberg.catalog import trying_again
from stateflow.connectors.iceberg.columns import written_schema
from stateflow.connectors.iceberg.merge import Merge, Newest
from stateflow.connectors.iceberg.sink import (
    IcebergAppend,
    RecordedTable,
    asked,
    committed,
    refuse_unreadable,
)
from stateflow.connectors.iceberg.slots import summary_of
from stateflow.connectors.iceberg.table import UPSERT
from stateflow.connectors.iceberg.times import BEYOND, has_beyond, is_beyond, is_time
from stateflow.connectors.iceberg.writer import DataFileWriter

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KEYS = ("int", "long", "string", "date", "timestamp", "timestamptz", "boolean", "binary")
"""Types of columns that tell rows apart; decimals, too."""


class IcebergUpsert(IcebergAppend):
    """The sink `stream.upsert(uid, iceberg(table), keys=[...], order_by=..., delete_when=...)`."""

    declared: ClassVar[SinkKind] = UPSERT

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        schema = frame.schema
        frame, upsert = self.upsert.marked(frame)
        table = trying_again(self.target, lambda: asked(self.target, at))
        columns = self._columns(table, schema)
        times = [
            name
            for name, field in zip(self.upsert.columns(schema).names, columns.fields, strict=True)
            if is_time(field.field_type)
        ]
        staged = stager.write(frame, at, bounds_of=times)
        upsert.refuse(staged, frame, at, stager)
        self._refuse_rows(columns, staged, Newest(upsert.keys, upsert.order_by, upsert.operation), at, stager)
        payload = {
            "files": [],
            "schema": frame.schema.json(),
            "keys": list(upsert.keys),
            "order_by": list(upsert.order_by),
            "operation": upsert.operation,
        }
        return self._prepared(table, columns, at, payload, staged.rows, staged.files)

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        if not request.prepared.files:
            return "none"
        return committed(request, _merge)

    def _columns(self, table: Table, schema: StructType) -> Schema:
        what, rows = str(self.target), self.upsert.columns(schema)
        refuse_unreadable(table, what)
        columns = super()._columns(table, rows)
        names = {name.lower(): field for name, field in zip(rows.names, columns.fields, strict=True)}
        self.upsert.refuse_unknown(rows.names)
        for key in self.upsert.keys:
            kind = str(names[key.lower()].field_type)
            if kind not in _KEYS and not kind.startswith("decimal"):
                raise IncompatibleError(
                    f"the upsert into {what} has the key {key!r}, which is {kind}: keys are whole numbers, text, bytes, decimals, dates and times"
                )
        refuse_other_columns(table.schema(), columns, what)
        return columns

    def _refuse_rows(
        self, columns: Schema, staged: Staged, newest: Newest, at: SinkSlot, stager: Stager
    ) -> None:
        """Refuses rows that stay with what no data file takes: a null in a required column, or a time of years that PyIceberg does not write."""
        nulls = {name.lower() for name, count in staged.nulls.items() if count}
        required = [field.name for field in columns.fields if field.required and field.name.lower() in nulls]
        bounds = {name.lower(): pair for name, pair in staged.bounds.items()}
        far = [
            (field.name, field.field_type)
            for field in columns.fields
            if (pair := bounds.get(field.name.lower()))
            and is_beyond(field.field_type, int(pair[0]), int(pair[1]))
        ]
        leave = "no row was written; leave such rows out where the operator puts them out"
        for batch in stager.batches(staged.files) if required or far else ():
            for name in required:
                if newest.staying(batch, name).null_count:
                    raise IncompatibleError(
                        f"rows of {at} have a null in column {name!r} of {self.target}, which is required: {leave}"
                    )
            for name, kind in far:
                if has_beyond(kind, newest.staying(batch, name)):
                    raise IncompatibleError(
                        f"rows of {at} have {BEYOND} in column {name!r} of {self.target}, which PyIceberg does not write: {leave}"
                    )


def without(schema: StructType, column: str) -> StructType:
    """The columns but for one, if they have it."""
    return type(schema)([field for field in schema if field.name != column])


def refuse_other_columns(table: Schema, columns: Schema, what: str) -> None:
    """IncompatibleError unless an output has all columns of the table, as a file that is written anew has."""
    written = {field.field_id: field for field in columns.fields}
    if lacking := [field.name for field in table.fields if field.field_id not in written]:
        raise IncompatibleError(
            f"{what} has the column {lacking[0]!r}, which the output of the upsert lacks: put out all of its columns {list(table.column_names)}"
        )
    for field in table.fields:
        if written[field.field_id].field_type != field.field_type:
            raise IncompatibleError(
                f"{what} has other fields in its column {field.name!r} than the output of the upsert, or in another order: put them out as they are there"
            )


def _merge(request: CommitRequest, table: Table, transaction: Transaction) -> None:
    import pyarrow as pa

    prepared, stager = request.prepared, request.stager
    payload, target = prepared.payload, RecordedTable.of(prepared)
    rows = without(staged_schema(prepared), payload["operation"])
    try:
        columns = written_schema(rows, table.schema(), str(target.table))
        refuse_other_columns(table.schema(), columns, str(target.table))
    except IncompatibleError as error:
        raise request.stuck(f"{error}; put the table right and run again") from error
    newest = Newest(payload["keys"], payload["order_by"], payload["operation"])
    writer = DataFileWriter(table.io, table.metadata, table.schema(), stager.new_id())
    try:
        merge = Merge(
            table, writer, newest.of(stager.batches(prepared.files)), _places(columns, rows.names, table)
        )
        removed = merge.files_without_keys(_names(payload["keys"], columns, rows.names))
        merge.put_new_rows()
        added = writer.close()
    # Values that Python cannot hold are among these, and what Arrow calls invalid.
    except (
        IncompatibleError,
        OverflowError,
        ValueError,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
    ) as error:
        said = " ".join(str(error).split())
        raise request.stuck(
            f"its rows cannot be merged into {target.table} as it is: {said}; put the table right, if somebody has changed it, and run again"
        ) from error
    update = transaction.update_snapshot(snapshot_properties=summary_of(request.at))
    with update.overwrite() if removed else update.merge_append() as snapshot:
        for file in removed:
            snapshot.delete_data_file(file)
        for file in added:
            snapshot.append_data_file(file)


def _places(columns: Schema, names: Sequence[str], table: Table) -> list[str]:
    """The names that the rows have for the columns of the table, in its order."""
    own = {field.field_id: name for name, field in zip(names, columns.fields, strict=True)}
    return [own[field.field_id] for field in table.schema().fields]


def _names(keys: Sequence[str], columns: Schema, names: Sequence[str]) -> dict[str, str]:
    """By the table's name of a key that of the rows."""
    there = {name.lower(): (field.name, name) for name, field in zip(names, columns.fields, strict=True)}
    return dict(there[key.lower()] for key in keys)

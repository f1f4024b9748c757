"""Rows as data files of a table: in the tasks of a batch, and in the driver where an upsert replaces files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateflow.connectors import IncompatibleError, task_error
from stateflow.connectors.iceberg.data_files import described
from stateflow.connectors.iceberg.partitions import Partition, parted
from stateflow.connectors.iceberg.times import BEYOND, has_beyond

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

ROW_GROUP = 32 << 20
"""Bytes of rows in memory that make a row group."""
HELD = 128 << 20
"""Bytes of rows that wait in memory, of all partitions together."""
_TARGET = "write.target-file-size-bytes"
_TARGET_DEFAULT = 512 << 20


@dataclass(slots=True)
class _Open:
    """The data file of a partition that rows still come for."""

    partition: Partition
    waiting: list[pa.Table] = field(default_factory=list)
    held: int = 0
    written: int = 0
    path: str = ""
    output: Any = None
    writer: Any = None


class DataFileWriter:
    """Writes record batches as data files, one per partition, and a further one where it becomes large."""

    def __init__(self, io: FileIO, metadata: TableMetadata, columns: Schema, unique: str) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.schema import sanitize_column_names
        from pyiceberg.table.locations import load_location_provider

        self.rows = 0
        self._io = io
        self._metadata = metadata
        self._columns = columns
        self._in_file = sanitize_column_names(columns)
        self._schema = schema_to_pyarrow(self._in_file)
        self._named = schema_to_pyarrow(columns)
        self._unique = unique
        self._locations = load_location_provider(metadata.location, metadata.properties)
        self._largest = int(metadata.properties.get(_TARGET, _TARGET_DEFAULT))
        self._open: dict[tuple[Any, ...], _Open] = {}
        self._paths: list[str] = []
        self._finished: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """`batch` has the columns in the order of the rows, of Spark's types."""
        import pyarrow as pa

        if batch.num_rows == 0:
            return
        arrays = []
        parts = zip(batch.columns, self._columns.fields, self._named, self._schema, strict=True)
        for column, there, named, wanted in parts:
            if not wanted.nullable and column.null_count:
                raise IncompatibleError(
                    f"{column.null_count} rows have a null in column {named.name!r}, which is required: no row was written; leave such rows out where "
                    "the operator puts them out"
                )
            values = _cast(column, named)
            if has_beyond(there.field_type, values):
                raise IncompatibleError(
                    f"rows have {BEYOND} in column {named.name!r}, which PyIceberg does not write: no row was written; leave such rows out where the "
                    "operator puts them out"
                )
            arrays.append(values.view(wanted.type))
        rows = pa.Table.from_arrays(arrays, schema=self._schema)
        self.rows += len(rows)
        for partition, some in parted(rows, self._columns, self._metadata.spec(), self._metadata.schema()):
            open = self._open.setdefault(partition.key, _Open(partition))
            open.waiting.append(some)
            open.held += some.nbytes
            if open.held >= ROW_GROUP:
                self._put(open)
        if len(self._open) > 1 and sum(open.held for open in self._open.values()) >= HELD:
            for open in self._open.values():
                self._put(open)

    def close(self) -> list[DataFile]:
        """The finished files; none when there were no rows."""
        for open in self._open.values():
            self._put(open)
            self._finish(open)
        self._open.clear()
        return self._finished

    def discard(self) -> None:
        """After a failure: removes the files, as far as that can be done."""
        for path in self._paths:
            with suppress(Exception):
                self._io.delete(path)

    def _put(self, open: _Open) -> None:
        import pyarrow as pa
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.manifest import FileFormat

        if not open.waiting:
            return
        rows = pa.concat_tables(open.waiting)
        open.waiting, open.held = [], 0
        if open.writer is None:
            name = f"{open.partition.folder}{self._unique}-{len(self._paths):05d}.parquet"
            open.path = self._locations.new_data_location(name)
            open.output = self._io.new_output(open.path)
            properties = self._metadata.properties
            model = FileFormatFactory.get(FileFormat.PARQUET)
            open.writer = model.create_writer(open.output, self._in_file, properties)
            self._paths.append(open.path)
        open.writer.write(rows)
        open.written += rows.nbytes
        if open.written >= self._largest:
            self._finish(open)

    def _finish(self, open: _Open) -> None:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        if open.writer is None:
            return
        statistics = open.writer.close()
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=open.path,
            file_format=FileFormat.PARQUET,
            partition=open.partition.record,
            file_size_in_bytes=len(open.output),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        made.spec_id = self._metadata.default_spec_id
        self._finished.append(made)
        open.writer, open.written = None, 0


def _cast(column: pa.Array, named: pa.Field) -> pa.Array:
    """A column in the type of the table, under the table's names.

    A data file has other names for fields such as `unit-price`, and a cast makes nulls of every field that it does not find by its name.
    """
    own, others = list(_field_names(column.type)), list(_field_names(named.type))
    if own != others:
        raise IncompatibleError(
            f"column {named.name!r} has the fields {own}, and the table has {others}: no row was written; put them out as they are there"
        )
    return column.cast(named.type)


def _field_names(kind: pa.DataType) -> Iterator[str]:
    """Names of the fields in structs, of all depths."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for field in kind:
            yield field.name
            yield from _field_names(field.type)
    elif pa.types.is_map(kind):
        yield from _field_names(kind.key_type)
        yield from _field_names(kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _field_names(kind.value_type)


@dataclass(frozen=True, slots=True)
class TaskWriters:
    """Makes the writers of a batch's tasks."""

    io: FileIO
    metadata: TableMetadata
    columns: Schema

    def __call__(self, unique: str) -> DescribingWriter:
        return DescribingWriter(self.io, self.metadata, self.columns, unique)


class DescribingWriter:
    """Writes the rows of a task, and describes the files as a record keeps them."""

    def __init__(self, io: FileIO, metadata: TableMetadata, columns: Schema, unique: str) -> None:
        self._metadata = metadata
        self._files = DataFileWriter(io, metadata, columns, unique)

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            self._files.write(batch)
        except IncompatibleError as error:
            raise task_error(error) from error

    def close(self) -> list[str]:
        spec, schema = self._metadata.spec(), self._metadata.schema()
        return [json.dumps(described(file, spec, schema)) for file in self._files.close()]

    def discard(self) -> None:
        self._files.discard()

"""The rows of a batch in place of those with their keys: which rows count, and the files that are written anew without the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.connectors import DELETE
from stateflow.connectors.iceberg.reading import scan_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from stateflow.connectors.iceberg.writer import DataFileWriter

_FEW = 100
"""Keys that a scan compares with the bounds of files one by one."""
_BOUNDED = ("int", "long", "string", "date", "timestamp", "timestamptz")
"""Types whose least and greatest values tell files apart."""
_ROW = "_sf_row"


@dataclass(frozen=True, slots=True)
class Newest:
    """Which row of a key counts: that with the highest order, among equals the first that was staged; nulls are the lowest."""

    keys: Sequence[str]
    order_by: Sequence[str]
    operation: str
    """The column that says what is deleted; empty without one."""

    def of(self, batches: Iterable[pa.RecordBatch]) -> NewRows:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = pa.Table.from_batches(list(batches))
        names = {name.lower(): name for name in rows.schema.names}
        keys = [names[key.lower()] for key in self.keys]
        if self.order_by:
            order = _by_order(rows, [names[column.lower()] for column in self.order_by])
            rows = rows.take(order)
            numbered = rows.select(keys).append_column(_ROW, pa.array(range(len(rows))))
            first = numbered.group_by(keys, use_threads=False).aggregate([(_ROW, "min")])
            rows = rows.take(first[f"{_ROW}_min"])
        if not self.operation:
            return NewRows(rows.select(keys), rows)
        stay = pc.not_equal(rows[self.operation], DELETE)
        return NewRows(rows.select(keys), rows.filter(stay).drop_columns([self.operation]))

    def staying(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """The values of a column in rows that stay."""
        import pyarrow.compute as pc

        column = batch[{each.lower(): each for each in batch.schema.names}[name.lower()]]
        return column.filter(pc.not_equal(batch[self.operation], DELETE)) if self.operation else column


@dataclass(frozen=True, slots=True)
class NewRows:
    """What a batch makes of a table."""

    keys: pa.Table
    """Of the rows that go."""
    rows: pa.Table
    """Those that come."""


def _by_order(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """The places of rows, the highest first and nulls last, as Arrow sorts them. NaN is above all numbers, as in Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sorted_by: list[tuple[str, str]] = []
    compared: dict[str, Any] = {}
    for number, name in enumerate(columns):
        column = rows[name]
        if pa.types.is_floating(column.type):
            compared[f"n{number}"] = pc.fill_null(pc.is_nan(column), False).cast(pa.int8())
            sorted_by.append((f"n{number}", "descending"))
        compared[f"c{number}"] = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        sorted_by.append((f"c{number}", "descending"))
    compared[_ROW] = pa.array(range(len(rows)))
    return pc.sort_indices(pa.table(compared), sort_keys=[*sorted_by, (_ROW, "ascending")])


class Merge:
    """A batch on its way into a table as it is now."""

    def __init__(self, table: Table, writer: DataFileWriter, new: NewRows, columns: Sequence[str]) -> None:
        self._table = table
        self._writer = writer
        self._new = new
        self._columns = columns

    def files_without_keys(self, keys: Mapping[str, str]) -> list[DataFile]:
        """The files that have a key of the batch: their other rows are written anew. `keys` are the names of the table and of the rows."""
        removed = []
        there = _in_types_of(self._table, self._new.keys, keys)
        for task in self._table.scan(row_filter=_condition(self._table, there)).plan_files():
            found = _matches(self._read(task, list(keys)), there)
            if found is None:
                continue
            for batch in self._read(task, None).filter(found).to_batches():
                self._writer.write(batch)
            removed.append(task.file)
        return removed

    def put_new_rows(self) -> None:
        for batch in self._new.rows.select(self._columns).to_batches():
            self._writer.write(batch)

    def _read(self, task: FileScanTask, columns: list[str] | None) -> pa.Table:
        from pyiceberg.table import FileScanTask

        schema = self._table.schema() if columns is None else self._table.schema().select(*columns)
        # The residual of the plan would leave rows out.
        whole = FileScanTask(task.file, task.delete_files)
        return scan_of(self._table, schema).to_table([whole])


def _in_types_of(table: Table, rows: pa.Table, keys: Mapping[str, str]) -> pa.Table:
    """Keys of the batch, each once, as the table has them."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    there = schema_to_pyarrow(table.schema().select(*keys), include_field_ids=False)
    columns = {name: rows[own].cast(there.field(name).type) for name, own in keys.items()}
    return pa.table(columns).group_by(list(columns)).aggregate([])


def _condition(table: Table, keys: pa.Table) -> Any:
    """For files that may have a key, by the bounds of their columns."""
    import pyarrow.compute as pc
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, LessThanOrEqual

    found: Any = AlwaysTrue()
    for name in keys.column_names:
        if str(table.schema().find_field(name).field_type) not in _BOUNDED or not len(keys):
            continue
        try:
            if len(keys) <= _FEW:
                found = And(found, In(name, set(keys[name].to_pylist())))
                continue
            least = pc.min_max(keys[name]).as_py()
        except (OverflowError, ValueError):
            # A row that goes may have a key of a year that Python does not have.
            continue
        found = And(found, GreaterThanOrEqual(name, least["min"]), LessThanOrEqual(name, least["max"]))
    return found


def _matches(rows: pa.Table, keys: pa.Table) -> pa.Array | None:
    """Which rows have none of the keys; None if all of them have none."""
    import numpy as np
    import pyarrow as pa

    names = keys.column_names
    numbered = rows.select(names).append_column(_ROW, pa.array(np.arange(len(rows))))
    found = numbered.join(keys, names, join_type="left semi")[_ROW].to_numpy()
    if not len(found):
        return None
    stay = np.ones(len(rows), bool)
    stay[found] = False
    return pa.array(stay)

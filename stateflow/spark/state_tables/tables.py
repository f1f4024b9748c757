"""One state of one operator in a snapshot as a table: its columns, its parts, and the rows of a part.

Shards, Parquet files and operator state have the same columns for every reader: the data source, an export, a restore.
Expired rows are in the table, with `expires_at`: a table shows what is stored, and whether a row has expired depends
on the time of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.errors import NotFoundError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.records import (
    FileRef,
    OperatorListState,
    OperatorState,
    Record,
    Savepoint,
    Shard,
    StateSchema,
    TableFile,
)
from stateflow.reading.opened_shard import opened_shard
from stateflow.reading.query import unknown_operator
from stateflow.spark.state_tables.selection import EVERYTHING, Range, Selection
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import OpenShard
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import TIMERS, StateTable, TimerTable, tables_of
from stateflow.storage.scratch import temporary

BATCH_ROWS, BATCH_BYTES = 20_000, 4 << 20
_FIRST_ROWS = 64
_ROW_GROUPS = 4
"""How many row groups of one file form a part."""
_ELEMENT_KEY = (("subtask", "int"), ("position", "int"))
_ELEMENT_COLUMNS = ("subtask", "position", "value")

Entries = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True)
class ShardPart:
    """A shard. `Table.selection` says which of its keys to read."""

    shard: Shard


@dataclass(frozen=True)
class FilePart:
    """Some row groups of a Parquet file."""

    file: TableFile
    row_groups: tuple[int, ...]


@dataclass(frozen=True)
class ElementsPart:
    """The elements of operator state, which lie in the record itself."""

    state: OperatorListState


Part = ShardPart | FilePart | ElementsPart


@dataclass(frozen=True)
class Table:
    """Spark sends it to the tasks, so `operator` has neither shards nor operator state."""

    uid: str
    state: str
    operator: OperatorState
    storage: TaskStorage
    open_shard: Callable[[str], OpenShard]
    base: str = ""
    """The savepoint that the paths of Parquet files are relative to."""
    elements: str = ""
    """The schema of an element, when this is operator state."""
    selection: Selection = field(default=EVERYTHING)

    @cached_property
    def codec(self) -> StateTable | TimerTable:
        if self.elements:
            # Read as a value state keyed by subtask and position: one way to read values serves both.
            return StateTable(
                _ELEMENT_KEY, 1, self.state, StateSchema(id=1, kind="value", value=self.elements)
            )
        return tables_of(self.operator)[self.state]

    def __getstate__(self) -> dict[str, Any]:
        # Each task makes its own codec: a compiled one need not travel.
        return {name: value for name, value in self.__dict__.items() if name != "codec"}

    @property
    def schema(self) -> pa.Schema:
        schema = self.codec.schema
        return pa.schema([schema.field(name) for name in _ELEMENT_COLUMNS]) if self.elements else schema

    def rows(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part with the columns of `schema`, in batches of bounded size."""
        match part:
            case ShardPart():
                yield from self._shard_rows(part.shard)
            case FilePart():
                yield from self._file_rows(part)
            case ElementsPart():
                yield from self._element_rows(part.state)

    def _shard_rows(self, shard: Shard) -> Iterator[pa.RecordBatch]:
        with opened_shard(task_reader(self.storage, self.open_shard), shard) as state:
            entries = chain.from_iterable(state.scan(*each) for each in self._ranges(shard))
            for batch in decoded(entries, self.codec):
                yield from self._filter(batch)

    def _ranges(self, shard: Shard) -> Iterable[Range]:
        key, operator, selection = self.operator.key, self.operator, self.selection
        schema = operator.states.get(self.state)
        # The key of a timer, and of an entry of a timed state, stands behind its time: only their key groups narrow the scan.
        if selection.keys is not None and schema is not None and not schema.timed:
            return selection.key_ranges(key, operator.max_parallelism, schema.id, shard.first, shard.last)
        return (
            range_
            for first, last in selection.of(shard.first, shard.last)
            for range_ in self.codec.ranges(first, last)
        )

    def _file_rows(self, part: FilePart) -> Iterator[pa.RecordBatch]:
        with temporary(Path(self.storage.scratch_dir)) as folder:
            local = folder / "table.parquet"
            self.storage.download(reference(part.file, self.base), local)
            with pq.ParquetFile(local) as parquet:
                batches = parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=list(part.row_groups))
                for batch in batches:
                    yield from self._filter(cast(batch, self.schema))

    def _element_rows(self, state: OperatorListState) -> Iterator[pa.RecordBatch]:
        codec = KeyCodec([kind for _, kind in _ELEMENT_KEY])
        head = prefix(0, 1)
        entries = (
            (head + codec.encode((subtask, position)) + EMPTY_NAMESPACE, raw)
            for subtask, elements in enumerate(state.parts)
            for position, raw in enumerate(elements)
        )
        for batch in decoded(entries, self.codec):
            yield batch.select(list(_ELEMENT_COLUMNS))

    def _filter(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The selected rows of a batch."""
        selection, key = self.selection, self.operator.key
        if selection.groups is not None and batch.num_rows:
            batch = batch.filter(_is_in(batch.column(self.codec.names["key_group"]), selection.groups))
        if selection.keys is not None and batch.num_rows:
            for index, (name, _) in enumerate(key):
                batch = batch.filter(_is_in(batch.column(name), {values[index] for values in selection.keys}))
            if len(key) > 1 and batch.num_rows:
                rows = zip(*(batch.column(name).to_pylist() for name, _ in key), strict=True)
                batch = batch.filter(pa.array([row in selection.keys for row in rows]))
        if batch.num_rows:
            yield batch


def _is_in(column: pa.Array, values: Iterable[Any]) -> pa.Array:
    return pc.is_in(column, value_set=pa.array(list(values), type=column.type))


def decoded(entries: Entries, codec: StateTable | TimerTable) -> Iterator[pa.RecordBatch]:
    """Stored entries as rows: a small batch first, then batches of bounded size."""
    count = _FIRST_ROWS
    while chunk := list(islice(entries, count)):
        keys, values = zip(*chunk, strict=True)
        yield codec.decode(keys, values)
        size = sum(map(len, keys)) + sum(map(len, values))
        count = max(1, min(BATCH_ROWS, BATCH_BYTES * len(chunk) // max(size, 1)))


def table_of(
    record: Record,
    uid: str,
    state: str,
    storage: TaskStorage,
    open_shard: Callable[[str], OpenShard],
    *,
    label: str,
    savepoint: Savepoint | None = None,
) -> tuple[Table, list[Part]]:
    """The table and all its parts. `label` names the snapshot in errors. The files of `record` can be fetched."""
    operator = record.operators.get(uid)
    if operator is None:
        raise NotFoundError(unknown_operator(record, uid, label))
    bare = msgspec.structs.replace(operator, shards=(), operator_states={}, hosts=())
    base = storage.root if savepoint is not None else ""
    table = Table(uid, state, bare, storage, open_shard, base)
    if state in operator.operator_states:
        elements = operator.operator_states[state]
        return replace(table, elements=elements.schema), [ElementsPart(elements)]
    tables = tables_of(operator)
    if state in operator.states and operator.states[state].kind == "timer":
        raise UsageError(
            f"timer {state!r} of operator {uid!r} is in the table {TIMERS!r}, with all others: read that"
        )
    if state not in tables:
        raise NotFoundError(
            f"operator {uid!r} has no state {state!r} in {label}: its states are "
            f"{_names([*tables, *operator.operator_states])}"
        )
    if savepoint is not None and savepoint.kind == "canonical":
        files = savepoint.tables.get(uid, {}).get(state, ())
        return table, [part for file in files for part in _file_parts(file)]
    shards = sorted(operator.all_shards, key=lambda shard: shard.first)
    return table, [ShardPart(shard) for shard in shards if shard.files]


def narrowed(parts: Sequence[Part], selection: Selection) -> list[Part]:
    """The parts that hold something of the selection."""
    if selection.everything:
        return list(parts)
    selected: list[Part] = []
    for part in parts:
        if isinstance(part, ShardPart):
            if selection.overlaps(part.shard.first, part.shard.last):
                selected.append(part)
        elif isinstance(part, FilePart):
            row_groups = tuple(n for n in part.row_groups if selection.overlaps(*part.file.groups[n]))
            if row_groups:
                selected.append(FilePart(part.file, row_groups))
        else:
            selected.append(part)
    return selected


def reference(file: TableFile, base: str) -> FileRef:
    """The reference that fetches and checks a table's file."""
    return FileRef(
        name=file.path.rpartition("/")[2],
        size=file.size,
        xxh3=file.xxh3,
        path=file.path,
        base=base,
        sha256=file.sha256,
    )


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the types and order of `schema`. Writers name the fields inside lists and maps differently."""
    if batch.schema.equals(schema):
        return batch
    columns = [batch.column(f.name) for f in schema]
    return pa.record_batch(
        [c if c.type.equals(f.type) else c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
        schema=schema,
    )


def _file_parts(file: TableFile) -> Iterator[FilePart]:
    count = len(file.groups)
    for begin in range(0, count, _ROW_GROUPS):
        yield FilePart(file, tuple(range(begin, min(begin + _ROW_GROUPS, count))))


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

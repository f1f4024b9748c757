"""Makes a canonical savepoint: a Spark job writes a record's state in parallel, as typed Parquet.

Each task gets a contiguous range of an operator's key groups. It writes one file per table, straight to the savepoint's
store, under a name of its own attempt. `_metadata` lists only the files that successful tasks hand back. It is created
last: before it there is no savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import AccumulatorParam, TaskContext
from pyspark.sql import SparkSession

from stateflow.checkpoint.rescale import clipped
from stateflow.config.options import Options
from stateflow.errors import StateflowError
from stateflow.format.keygroups import default_assignment
from stateflow.format.layout import (
    SAVEPOINT_STATE,
    SAVEPOINT_TABLES,
    savepoint_state_file,
    savepoint_table_file,
)
from stateflow.format.records import (
    FileRef,
    OperatorState,
    Record,
    Savepoint,
    Shard,
    TableFile,
)
from stateflow.format.references import references, with_references
from stateflow.reading.opened_shard import opened_shard
from stateflow.savepoints.publish import SavepointFacts, publish, remove_empty, require_vacant
from stateflow.spark.state_tables.failures import failed
from stateflow.spark.state_tables.table_files import TableFileWriter, empty_file
from stateflow.spark.task.failures import through_spark
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.spark.task.subtask import spare_the_collector
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.choice import open_reader
from stateflow.state.tabular import StateTable, TimerTable, tables_of
from stateflow.storage.local import held_root
from stateflow.storage.roots import open_store
from stateflow.storage.scratch import remove_scratch, temporary
from stateflow.storage.store import Store
from stateflow.storage.transfer import Transfer, transfer

SPLIT_BYTES = 512 << 20
MOST_TASKS = 1024
GROUPS, BYTES = "key groups", "bytes"
"""What `progress` counts."""

Progress = Callable[[str, int, int], object]
"""progress(what, done, total); called from a thread of Spark's."""
Tables = dict[str, dict[str, tuple[TableFile, ...]]]


def create_canonical(
    spark: SparkSession,
    saved: SavepointFacts,
    *,
    root_url: str,
    job: str,
    record: Record,
    target_url: str,
    storage_options: Mapping[str, str],
    ids: Callable[[], str],
    clock: Callable[[], int],
    split_bytes: int = SPLIT_BYTES,
    max_tasks: int = MOST_TASKS,
    progress: Progress = lambda what, done, total: None,
    options: Options | None = None,
) -> Savepoint:
    """Makes the savepoint `saved` of a record that the caller has pinned.

    `options` says where tasks keep their caches and scratch files. If the folder is taken, it raises UsageError and
    writes nothing. After a failure there is no savepoint, and it deletes what it wrote, as far as possible.
    """
    task_options = replace(options or Options(), storage_options=dict(storage_options))
    target = open_store(target_url, storage_options, fsync=task_options.local_fsync)
    require_vacant(target)
    storage = task_storage(task_options, open_store(root_url, storage_options).url, job, 0, record.slot)
    attempt = ids()
    parts = tuple(_parts(record, split_bytes, max_tasks))
    facts = {"job": job, "checkpoint": str(record.slot), "savepoint": saved.name}
    writing = _WriteTask(storage, target.url, attempt, parts, _bare(record), open_reader(task_options), facts)
    try:
        tables = _write_tables(spark, writing, progress)
        _fill_empty(tables, writing, target)
        own = _with_own_sources(record, writing.operators, target, storage, attempt)
    except BaseException:
        _discard(target, attempt)
        remove_empty(target)
        raise
    files = {
        file.path: file.size for states in tables.values() for files in states.values() for file in files
    }
    files |= {ref.path: ref.size for ref in references(own) if ref.path}
    _discard(target, attempt, files)
    savepoint = saved.savepoint("canonical", job, own, id=ids(), at=clock(), tables=tables)
    return publish(target, savepoint, files, owner=saved.owner, clock=clock)


@dataclass(frozen=True)
class _Part:
    """The key groups of an operator that one task writes, and the shards that hold them."""

    operator: str
    first: int
    last: int
    shards: tuple[Shard, ...]

    @property
    def bytes(self) -> int:
        return sum(map(_weight, self.shards))


def _parts(record: Record, split_bytes: int, most: int) -> Iterator[_Part]:
    """Per operator `clamp(ceil(size / split), 1, most)` ranges of key groups, of nearly the same length."""
    for uid, operator in sorted(record.operators.items()):
        shards = sorted(operator.all_shards, key=lambda shard: shard.first)
        size = sum(map(_weight, shards))
        count = min(max(1, -(-size // max(1, split_bytes))), max(1, most), operator.max_parallelism)
        for first, last in default_assignment(count, operator.max_parallelism):
            pieces = (clipped(shard, first, last) for shard in shards if shard.files)
            yield _Part(uid, first, last, tuple(piece for piece in pieces if piece is not None))


def _weight(shard: Shard) -> int:
    """An estimate of the bytes in a shard's logical range: its share of the files' key groups."""
    first = shard.first if shard.physical_first is None else shard.physical_first
    last = shard.last if shard.physical_last is None else shard.physical_last
    return shard.bytes * (shard.last - shard.first + 1) // (last - first + 1)


def _bare(record: Record) -> dict[str, OperatorState]:
    return {uid: msgspec.structs.replace(o, shards=(), hosts=()) for uid, o in record.operators.items()}


def _written_anew(operator: OperatorState) -> OperatorState:
    """The tables have every value as one of today's type."""
    states = {name: schema.written_anew() for name, schema in operator.states.items()}
    return msgspec.structs.replace(operator, states=states)


class _WrittenFile(msgspec.Struct, frozen=True):
    """A task's result for one file."""

    operator: str
    state: str
    file: TableFile


@dataclass(frozen=True)
class _WriteTask:
    """The task that writes one part per partition."""

    storage: TaskStorage
    target_url: str
    attempt: str
    parts: tuple[_Part, ...]
    operators: dict[str, OperatorState]
    open_shard: Callable[[str], OpenShard]
    facts: Mapping[str, str]
    done: Any = None
    """An accumulator of key groups and bytes."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with through_spark():
                    # Two attempts of one partition, speculation included, must not share a name.
                    files = self._write(self.parts[number], f"{self.attempt}-{number}-{task.taskAttemptId()}")
                bodies = [msgspec.msgpack.encode(file) for file in files]
                yield pa.record_batch([pa.array(bodies, pa.binary())], names=["written"])

    def _write(self, part: _Part, unique: str) -> list[_WrittenFile]:
        operator = self.operators[part.operator]
        target = open_store(self.target_url, self.storage.storage_options, fsync=self.storage.fsync)
        folder = self.storage.folder()
        writers: dict[str, tuple[StateTable | TimerTable, TableFileWriter]] = {}
        try:
            for number, (state, codec) in enumerate(tables_of(operator).items()):
                local = folder / f"{number}.parquet"
                writers[state] = codec, TableFileWriter(codec, local, self.described(part.operator, state))
            for shard in part.shards:
                with opened_shard(task_reader(self.storage, self.open_shard), shard) as opened:
                    for codec, writer in writers.values():
                        for group in range(shard.first, shard.last + 1):
                            ranges = codec.ranges(group, group)
                            writer.write(group, chain.from_iterable(opened.scan(*each) for each in ranges))
                        writer.pause()
            found = []
            for state, (_, writer) in writers.items():
                file = writer.close()
                if file is not None:
                    path = savepoint_table_file(part.operator, state, writer.first or part.first, unique)
                    target.upload(writer.local, path)
                    found.append(_WrittenFile(part.operator, state, msgspec.structs.replace(file, path=path)))
        finally:
            for _, writer in writers.values():
                writer.discard()
            remove_scratch(folder)
        if self.done is not None:
            self.done.add([part.last - part.first + 1, part.bytes])
        return found

    def described(self, operator: str, state: str) -> dict[str, str]:
        """Metadata for a file, so that it explains itself when somebody finds it alone."""
        schema = self.operators[operator].states.get(state)
        own = {"kind": schema.kind, "type": schema.value} if schema is not None else {"kind": "timers"}
        return {
            **self.facts,
            "operator": operator,
            "state": state,
            "max_parallelism": str(self.operators[operator].max_parallelism),
            **own,
        }


class _Tally(AccumulatorParam[list[int]]):
    """Adds up key groups and bytes as tasks end, and reports them on the driver."""

    def __init__(self, tell: Callable[[list[int]], object] | None = None) -> None:
        self._tell = tell

    def __reduce__(self) -> Any:
        return _Tally, ()

    def zero(self, value: list[int]) -> list[int]:
        return [0, 0]

    def addInPlace(self, value1: list[int], value2: list[int]) -> list[int]:
        total = [a + b for a, b in zip(value1, value2, strict=True)]
        if self._tell is not None:
            with suppress(Exception):  # a broken progress bar must not stop Spark's accumulators
                self._tell(total)
        return total


def _write_tables(spark: SparkSession, writing: _WriteTask, progress: Progress) -> Tables:
    """Runs the job; returns the files that its successful tasks have written."""
    parts = writing.parts
    tables: Tables = {
        uid: dict.fromkeys(tables_of(operator), ()) for uid, operator in writing.operators.items()
    }
    if not parts:
        return tables
    groups, size = sum(p.last - p.first + 1 for p in parts), sum(p.bytes for p in parts)

    def tell(done: list[int]) -> None:
        progress(GROUPS, done[0], groups)
        progress(BYTES, done[1], size)

    tell([0, 0])
    tally = spark.sparkContext.accumulator([0, 0], _Tally(tell))
    frame = spark.range(0, len(parts), 1, len(parts))
    try:
        # Collected rows come from exactly one attempt of each partition.
        rows = frame.mapInArrow(replace(writing, done=tally), "written binary").collect()
    except Exception as error:
        raise failed("the state could not be written as tables", error) from error
    for row in rows:
        file = msgspec.msgpack.decode(row["written"], type=_WrittenFile)
        tables[file.operator][file.state] += (file.file,)
    for states in tables.values():
        for state, files in states.items():
            states[state] = tuple(sorted(files, key=lambda file: file.path))
    return tables


def _fill_empty(tables: Tables, writing: _WriteTask, target: Store) -> None:
    """Writes a file for each table without rows, so that other programs find its columns."""
    with temporary(Path(writing.storage.scratch_dir)) as folder:
        for uid, operator in writing.operators.items():
            for state, codec in tables_of(operator).items():
                if tables[uid][state]:
                    continue
                local = folder / "empty.parquet"
                file = empty_file(codec, local, writing.described(uid, state))
                path = savepoint_table_file(uid, state, 0, writing.attempt)
                target.upload(local, path)
                local.unlink()
                tables[uid][state] = (msgspec.structs.replace(file, path=path),)


def _with_own_sources(
    record: Record, operators: dict[str, OperatorState], target: Store, storage: TaskStorage, attempt: str
) -> Record:
    """The record without shards and sinks. Copies the logs of its sources into the savepoint."""
    bare = msgspec.structs.replace(
        record, operators={uid: _written_anew(operator) for uid, operator in operators.items()}, sinks={}
    )
    sources = dict.fromkeys((ref.base, ref.path, ref.offset) for ref in references(bare) if ref.path)
    paths = {
        source: savepoint_state_file(attempt, number, Path(source[1]).suffix or ".bin")
        for number, source in enumerate(sources)
    }
    items = {
        paths[source]: Transfer(
            storage.store(ref.base), ref.path, paths[source], ref.size, ref.xxh3, ref.offset, ref.sha256
        )
        for ref in references(bare)
        if (source := (ref.base, ref.path, ref.offset)) in paths
    }
    with temporary(Path(storage.scratch_dir)) as scratch:
        transfer(list(items.values()), target, scratch=scratch)

    def rebased(ref: FileRef) -> FileRef:
        if not ref.path:
            return ref
        path = paths[ref.base, ref.path, ref.offset]
        return msgspec.structs.replace(ref, base="", path=path, offset=None)

    return with_references(bare, rebased)


def _discard(target: Store, attempt: str, but: Container[str] = ()) -> None:
    """Deletes the files that tasks of this attempt wrote, except `but`, also files that no task reported.

    If deleting fails, the files stay invisible, and a disposal deletes them.
    """
    with suppress(StateflowError), held_root(target) as held:
        entries = [*held.list(SAVEPOINT_TABLES), *held.list(SAVEPOINT_STATE)]
        own = [e.path for e in entries if attempt in e.path.rpartition("/")[2]]
        held.delete(path for path in own if path not in but)

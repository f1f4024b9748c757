"""The task of a columnar operator: Arrow tables in, Arrow tables out, state in bulk."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from stateflow.errors import CorruptError, StateflowError, UsageError
from stateflow.format.records import FileRef, Shard
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.keyed import REPEATED, UserCodeError, described
from stateflow.pipelines.operators import MAIN
from stateflow.spark.session.shipping import packed, unpacked
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.blocks import refuse_nulls
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.worker import marked, spare_the_collector
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.bound import Cursor
from stateflow.state.column_state import ColumnState
from stateflow.state.keys.codec import KeyCodec

BUCKETS = 32


@dataclass(frozen=True)
class ArrowTask:
    uid: str
    function: Callable[..., Any]
    state: Mapping[str, Any]
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...]
    fields: tuple[str, ...]
    chunk_rows: int
    state_id: int
    moment: Moment
    storage: TaskStorage
    shards: tuple[tuple[Shard, ...], ...]
    open_shard: Callable[[str], OpenShard]
    output: pa.Schema
    max_parallelism: int
    stage: Callable[[str, pa.Schema], Any] | None
    user_paths: tuple[str, ...] = ()


def arrow_worker(task: ArrowTask, acks: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`."""
    code, user_paths = packed(task), task.user_paths

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from _run(unpacked(code, user_paths), batches, acks)
        except StateflowError as error:
            raise marked(error) from error

    return run


def _run(task: ArrowTask, batches: Iterator[Any], acks: Any) -> Iterator[Any]:
    spare_the_collector()
    spark_task = TaskContext.get()
    assert spark_task is not None
    index = spark_task.partitionId()
    shards = TaskShards(task.shards[index], task.storage, task.open_shard, task.storage.join_limit)
    codec = KeyCodec(task.key_types, task.key_columns if len(task.key_columns) > 1 else ())
    state = ColumnState(task.state, codec, task.state_id, task.max_parallelism, f"operator {task.uid!r}")
    context = OperatorContext(Cursor(task.moment.slot, task.moment.now), task.moment, index, {})
    writer = task.stage(MAIN, task.output) if task.stage is not None else None
    rows_in = rows_out = 0
    feed = _TableFeed(batches, task)
    try:
        current: tuple[int, Backend] | None = None
        for shard, table in feed.tables(shards.inputs, len(task.key_columns)):
            if current is None or current[0] != shard:
                _finish(shards, state, current)
                current = (shard, shards.open(shard))
                state.backend, state.changed = current[1], False
            for batch in _fitting_batches(task, table, state, context):
                rows_out += batch.num_rows
                if writer is not None:
                    writer.write(batch)
                else:
                    yield batch
        _finish(shards, state, current)
        staged: dict[str, FileRef | None] = {"": writer.close()} if writer is not None else {}
        handles = shards.handles()
        rows_in = feed.rows
    except CorruptError:
        shards.distrust()
        raise
    finally:
        feed.close()
        shards.close()
    ack = Ack(
        operator=task.uid,
        subtask=index,
        attempt=spark_task.taskAttemptId(),
        shards=handles,
        staged=staged,
        rows_in=rows_in,
        rows_out=rows_out,
        keys=state.keys,
        counters={name: c.value for name, c in context.metrics.counters.items()},
        metrics=shards.figures(),
        host=socket.gethostname(),
    )
    acks.add([msgspec.msgpack.encode(ack)])


def _finish(shards: TaskShards, state: ColumnState, current: tuple[int, Backend] | None) -> None:
    if current is None:
        return
    if state.changed or shards.changes(current[0]):
        shards.finish(*current, (None, None))
    else:
        shards.keep(*current)


def _fitting_batches(
    task: ArrowTask, table: pa.Table, state: ColumnState, context: OperatorContext
) -> Iterator[Any]:
    for piece in _pieces(task, table, state, context):
        try:
            output = pa.table(piece).select(task.output.names).cast(task.output)
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise UsageError(
                f"operator {task.uid!r} put out a table that does not fit its output ({', '.join(task.output.names)}): "
                f"{' '.join(str(error).split())}"
            ) from error
        yield from output.to_batches(max_chunksize=100_000)


def _pieces(task: ArrowTask, table: pa.Table, state: ColumnState, context: OperatorContext) -> Iterator[Any]:
    """The output of user code: one table, or several, as it yields them."""
    try:
        out = task.function(table, state, context)
        if isinstance(out, (pa.Table, pa.RecordBatch)):
            yield out
        elif out is not None:
            yield from out
    except StateflowError:
        raise
    except Exception as error:
        raise UserCodeError(f"operator {task.uid!r} failed: {described(error)}: {REPEATED}") from error


class _TableFeed:
    """A task's rows as tables that hold whole keys: one table per shard, if the rows fit into memory.

    Otherwise they go to files on scratch disk, one per range of key groups. A range that still does not fit is cut
    between keys.
    """

    def __init__(self, batches: Iterator[Any], task: ArrowTask) -> None:
        limit, storage = task.chunk_rows, task.storage
        self._uid, self._key_columns = task.uid, task.key_columns
        self._batches = batches
        self._limit = limit
        self._storage = storage
        self._folder: Path | None = None
        self._writers: dict[int, tuple[Path, Any]] = {}
        self.rows = 0

    def tables(self, shards: Sequence[Shard], keys: int) -> Iterator[tuple[int, pa.Table]]:
        batches: list[pa.RecordBatch] = []
        rows = 0
        first, last = shards[0].first, max(s.last for s in shards)
        for batch in self._batches:
            if not batch.num_rows:
                continue
            for name, index in zip(self._key_columns, range(1, 1 + keys), strict=True):
                refuse_nulls(self._uid, name, batch.column(index))
            batches.append(batch)
            rows += batch.num_rows
            self.rows += batch.num_rows
            if rows > self._limit:
                self._spill(pa.Table.from_batches(batches), first, last)
                batches, rows = [], 0
        if self._writers:
            if batches:
                self._spill(pa.Table.from_batches(batches), first, last)
            for _, (path, writer) in sorted(self._writers.items()):
                writer.close()
                with pa.memory_map(str(path)) as mapped:
                    table = pa.ipc.open_file(mapped).read_all()
                    for shard, part in _by_shard(table, shards):
                        for piece in self._cut(part, keys):
                            yield shard, _fields(piece, keys)
        elif batches:
            for shard, part in _by_shard(pa.Table.from_batches(batches), shards):
                yield shard, _fields(part, keys)

    def _cut(self, table: pa.Table, keys: int) -> Iterator[pa.Table]:
        if table.num_rows <= self._limit:
            yield table
            return
        table = table.sort_by([(name, "ascending") for name in table.column_names[: 1 + keys]])
        names = table.column_names[: 1 + keys]
        begin = 0
        while begin < table.num_rows:
            end = min(begin + self._limit, table.num_rows)
            if end < table.num_rows:
                end = self._boundary(table, names, begin, end)
            yield table.slice(begin, end - begin)
            begin = end

    def _boundary(self, table: pa.Table, names: list[str], begin: int, end: int) -> int:
        """The last row at or before `end` at which a key begins; `end` itself inside a key larger than the limit."""
        edge = [table[name][end] for name in names]
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if [table[name][middle] for name in names] == edge:
                high = middle
            else:
                low = middle + 1
        return low if low > begin else end

    def _spill(self, table: pa.Table, first: int, last: int) -> None:
        if self._folder is None:
            self._folder = self._storage.folder()
        groups = table.column(0).to_numpy()
        buckets = (groups - first) * BUCKETS // (last - first + 1)
        for bucket in np.unique(buckets).tolist():
            if bucket not in self._writers:
                path = self._folder / f"bucket-{bucket}.arrow"
                self._writers[bucket] = (path, pa.ipc.new_file(str(path), table.schema))
            self._writers[bucket][1].write_table(table.filter(pa.array(buckets == bucket)))

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _by_shard(table: pa.Table, shards: Sequence[Shard]) -> Iterator[tuple[int, pa.Table]]:
    if len(shards) == 1:
        yield 0, table
        return
    groups = table.column(0).to_numpy()
    for index, shard in enumerate(shards):
        mask = (groups >= shard.first) & (groups <= shard.last)
        if mask.any():
            yield index, table.filter(pa.array(mask))


def _fields(table: pa.Table, keys: int) -> pa.Table:
    """The table without the columns of the exchange: group, keys, late."""
    return table.select(table.column_names[2 + keys :])

"""The task of a columnar operator: Arrow tables in, Arrow tables out, state in bulk."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from stateflow.errors import CorruptError, StateflowError
from stateflow.format.records import FileRef, Shard
from stateflow.operators.columnar import ColumnarEngine, ColumnarSpec
from stateflow.operators.combined import count_of
from stateflow.operators.context import Moment
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.spark.session.shipping import packed, unpacked
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.key_columns import KeyColumns, key_starts
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.sorted_rows import SortedRows
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.widths import WIDEST, Widest
from stateflow.spark.task.worker import expires_now, marked, spare_the_collector
from stateflow.state.backends.base import Backend, OpenShard


@dataclass(frozen=True)
class ArrowTask:
    """What the subtasks of an operator need. One value serves all of them."""

    spec: ColumnarSpec
    fields: tuple[tuple[str, ...], ...]
    """The names of each input's fields."""
    carry: Carried
    moment: Moment
    storage: TaskStorage
    shards: tuple[tuple[Shard, ...], ...]
    open_shard: Callable[[str], OpenShard]
    stage: Callable[[str, pa.Schema], Any] | None = None
    """Makes the writer of one output's staged file; None when the main output goes straight to its sink."""
    read_outputs: frozenset[str] = frozenset({MAIN})
    """The outputs that have a reader. Only these are staged."""
    user_paths: tuple[str, ...] = ()


def arrow_worker(task: ArrowTask, acks: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`."""
    code, user_paths = packed(task), task.user_paths

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from _Subtask(unpacked(code, user_paths)).run(batches, acks)
        except StateflowError as error:
            raise marked(error) from error

    return run


class _Outputs:
    """Where the operator's batches go: to the sink, or to staged files."""

    def __init__(self, task: ArrowTask) -> None:
        self._staging = task.stage is not None
        self._files: dict[str, Any] = {}
        if task.stage is not None:
            self._files = {n: task.stage(n, task.spec.outputs[n]) for n in sorted(task.read_outputs)}
        self.rows = 0

    def take(self, produced: Iterator[tuple[str, Any]]) -> Iterator[Any]:
        for name, batch in produced:
            if name == MAIN:
                self.rows += batch.num_rows
            if name in self._files:
                self._files[name].write(batch)
            elif name == MAIN and not self._staging:
                yield batch

    def close(self) -> dict[str, FileRef | None]:
        return {name: writer.close() for name, writer in self._files.items()}


class _Subtask:
    def __init__(self, task: ArrowTask) -> None:
        spare_the_collector()
        context = TaskContext.get()
        assert context is not None
        self.task = task
        self.index = context.partitionId()
        self.attempt = context.taskAttemptId()
        self.shards = TaskShards(
            task.shards[self.index], task.storage, task.open_shard, task.storage.join_limit
        )
        self.inputs = self.shards.inputs
        self.engine = ColumnarEngine(task.spec, task.moment, self.index)

    def run(self, batches: Iterator[Any], acks: Any) -> Iterator[Any]:
        widest = Widest()
        feed = _TableFeed(widest.of(batches), self.task)
        try:
            outputs = _Outputs(self.task)
            yield from widest.of(self._shards(feed, outputs))
            staged = outputs.close()
            handles = self.shards.handles()
        except CorruptError:
            self.shards.distrust()
            raise
        finally:
            feed.close()
            self.shards.close()
        ack = Ack(
            operator=self.task.spec.uid,
            subtask=self.index,
            attempt=self.attempt,
            shards=handles,
            staged=staged,
            rows_in=feed.rows,
            rows_out=outputs.rows,
            keys=self.engine.keys,
            groups=self.engine.groups,
            dead_letters=self.engine.dead_letters,
            expired=self.engine.expiry.expired,
            counters={name: c.value for name, c in self.engine.context.metrics.counters.items()},
            metrics={**self.shards.figures(), WIDEST: widest.bytes},
            host=socket.gethostname(),
        )
        acks.add([msgspec.msgpack.encode(ack)])

    def _shards(self, feed: _TableFeed, outputs: _Outputs) -> Iterator[Any]:
        """Runs the tables shard by shard, then the shards that have no rows but entries that are due."""
        current: tuple[int, Backend] | None = None
        with_rows: set[int] = set()
        for index, table in feed.tables(self.inputs):
            if current is None or current[0] != index:
                if current is not None:
                    yield from self._finish(*current, outputs)
                current = (index, self._open(index))
                with_rows.add(index)
            tables, late = self._split(table)
            yield from outputs.take(self.engine.process(tables, late))
        if current is not None:
            yield from self._finish(*current, outputs)
        for index, shard in enumerate(self.inputs):
            if index not in with_rows and (self._due(shard) or expires_now(shard, self.task.moment)):
                yield from self._finish(index, self._open(index, without_rows=True), outputs)

    def _open(self, index: int, *, without_rows: bool = False) -> Backend:
        shard, backend = self.inputs[index], self.shards.open(index)
        # A shard that is joined from several begins without files, but not empty.
        empty = not shard.files and not self.shards.changes(index)
        groups = range(shard.first, shard.last + 1)
        self.engine.attach(backend, groups, shard.next_event_timer, empty=empty, expiring=shard.expiring)
        due = shard.next_event_expiry, shard.next_processing_expiry
        self.engine.expire(groups, due, shard.entries, without_rows=without_rows)
        return backend

    def _due(self, shard: Shard) -> bool:
        watermark = self.task.moment.watermark
        return (
            shard.next_event_timer is not None
            and watermark is not None
            and shard.next_event_timer <= watermark
        )

    def _finish(self, index: int, backend: Backend, outputs: _Outputs) -> Iterator[Any]:
        yield from outputs.take(self.engine.fire())
        expiries = self.engine.next_expiries()
        # Where nothing came of a timer that was due, the record says too early when the next one is.
        if self.engine.changed or self.shards.changes(index) or self._due(self.inputs[index]):
            timers = self.engine.next_due(), None
            self.shards.finish(index, backend, timers, expiries, self.engine.expiry.shares)
        else:
            self.shards.keep(index, backend)

    def _split(self, table: pa.Table) -> tuple[list[pa.Table], list[Any]]:
        """The rows of each input without the columns of the exchange, and which of them were late."""
        carry = self.task.carry
        first = carry.fields_index
        if carry.late_index is None:
            late = pa.array(np.zeros(len(table), dtype=bool))
        else:
            late = table.column(carry.late_index).combine_chunks()
        names = self.task.fields
        if not carry.sides:
            return [table.select(range(first, first + len(names[0])))], [late]
        side = table.column(first).to_numpy()
        tables, flags = [], []
        for index, columns in enumerate(carry.sides):
            mine = pa.array(side == index)
            arrays = [table.column(column).filter(mine).combine_chunks() for column in columns]
            tables.append(pa.table(arrays, names=list(names[index])))
            flags.append(late.filter(mine))
        return tables, flags


class _TableFeed:
    """A task's rows as tables that hold whole keys: one table per shard, if the rows fit into memory. Otherwise they are sorted
    and cut between keys."""

    def __init__(self, batches: Iterator[Any], task: ArrowTask) -> None:
        self._keys = KeyColumns(task.spec.uid, [name for name, _ in task.spec.key], task.carry.key_indices)
        self._null_keys = task.spec.operator.null_keys
        self._batches = self._counted(batches)
        self._limit = task.spec.operator.chunk_rows
        self._sorted = SortedRows(self._keys, task.storage.folder)
        self.rows = 0

    def tables(self, shards: Sequence[Shard]) -> Iterator[tuple[int, pa.Table]]:
        """Index of a shard and a table of its rows, with the columns of the exchange."""
        first: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._batches:
            first.append(batch)
            rows += batch.num_rows
            if rows > self._limit:
                break
        if not first:
            return
        tables = iter([pa.Table.from_batches(first)]) if rows <= self._limit else self._cut(first)
        for table in tables:
            yield from _by_shard(table, shards)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                if not self._null_keys:
                    self._keys.checked(batch)
                self.rows += count_of(batch)
                yield batch

    def _cut(self, first: list[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables that end with a key. They are larger than the limit only if a key is."""
        waiting: pa.Table | None = None
        begins = np.zeros(0, dtype=np.int64)
        for batch, starts in self._sorted.of(chain(first, self._batches)):
            table, before = pa.Table.from_batches([batch]), 0
            if waiting is not None:
                before = waiting.num_rows
                table = pa.concat_tables([waiting, table])
                starts = starts[int(self._goes_on(waiting, batch)) :] + before
            begins = np.concatenate((begins, starts))
            while table.num_rows > self._limit and len(ends := begins[begins > 0]):
                # With the last key that still ends within the limit, or with the first one.
                end = int(max(ends[ends <= self._limit], default=ends[0]))
                yield table.slice(0, end)
                table, begins = table.slice(end), begins[begins >= end] - end
            waiting = table
        if waiting is not None:
            yield waiting

    def _goes_on(self, waiting: pa.Table, batch: Any) -> bool:
        """Whether a batch begins with the key that the rows before it ended with."""
        two = pa.concat_tables(
            [waiting.slice(waiting.num_rows - 1), pa.Table.from_batches([batch.slice(0, 1)])]
        )
        return len(key_starts(self._keys.of(two.combine_chunks().to_batches()[0]))) == 1

    def close(self) -> None:
        self._sorted.close()


def _by_shard(table: pa.Table, shards: Sequence[Shard]) -> Iterator[tuple[int, pa.Table]]:
    if len(shards) == 1:
        yield 0, table
        return
    groups = table.column(0).to_numpy()
    for index, shard in enumerate(shards):
        mask = (groups >= shard.first) & (groups <= shard.last)
        if mask.any():
            yield index, table.filter(pa.array(mask))

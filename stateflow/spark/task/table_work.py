"""The work of a subtask whose user code gets Arrow tables, and state in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.records import Shard
from stateflow.operators.columnar import ColumnarEngine, ColumnarSpec
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.hot_keys import KeySample
from stateflow.spark.task.key_columns import KeyColumns
from stateflow.spark.task.shards import Timers
from stateflow.spark.task.subtask import Outputs, Task, Work
from stateflow.spark.task.table_feed import TableFeed
from stateflow.state.backends.base import Backend


@dataclass(frozen=True, kw_only=True)
class TableTask(Task):
    """The task of a columnar operator."""

    spec: ColumnarSpec
    fields: tuple[tuple[str, ...], ...]
    """The names of each input's fields."""
    carry: Carried
    """The columns that the exchange sends."""

    def work(self, subtask: int, shards: tuple[Shard, ...], batches: Iterator[Any]) -> Work:
        return TableWork(self, subtask, shards, batches)


class TableWork(Work):
    """User code gets the rows of many keys as one table per input."""

    def __init__(
        self, task: TableTask, subtask: int, shards: tuple[Shard, ...], batches: Iterator[Any]
    ) -> None:
        spec = task.spec
        self._task = task
        self._engine = ColumnarEngine(spec, task.moment, subtask)
        self.context = self._engine.context
        self.outputs = Outputs(task, spec.outputs)
        keys = KeyColumns(spec.uid, [name for name, _ in spec.key], task.carry.key_indices)
        operator = spec.operator
        self._sample = KeySample(keys.indices)
        self.source = TableFeed(
            self._sample.of(batches),
            keys,
            operator.chunk_rows,
            task.storage.folder,
            null_keys=operator.null_keys,
        )
        self.pieces = self.source.tables(shards)

    def attach(self, backend: Backend, shard: Shard, *, empty: bool) -> ColumnarEngine:
        groups = range(shard.first, shard.last + 1)
        self._engine.attach(backend, groups, shard.next_event_timer, empty=empty, expiring=shard.expiring)
        return self._engine

    def take(self, piece: pa.Table) -> Iterator[Any]:
        return self._put_out(self._engine.process(*self._split(piece)))

    def fire(self, groups: range) -> Iterator[Any]:
        return self._put_out(self._engine.fire())

    def next_timers(self, groups: range) -> Timers:
        return self._engine.next_due(), None

    def figures(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "keys": engine.keys,
            "groups": engine.groups,
            "dead_letters": engine.dead_letters,
            "expired": engine.expiry.expired,
            **self._sample.figures(),
        }

    def _put_out(self, produced: Iterator[tuple[str, Any]]) -> Iterator[Any]:
        outputs = self.outputs
        for name, batch in produced:
            if name == MAIN:
                outputs.rows += batch.num_rows
            if name in outputs.files:
                outputs.files[name].write(batch)
            elif name == MAIN and outputs.direct:
                yield batch

    def _split(self, table: pa.Table) -> tuple[list[pa.Table], list[Any]]:
        """The rows of each input without the columns of the exchange, and which of them were late."""
        carry = self._task.carry
        first = carry.fields_index
        if carry.late_index is None:
            late = pa.array(np.zeros(len(table), dtype=bool))
        else:
            late = table.column(carry.late_index).combine_chunks()
        names = self._task.fields
        if not carry.sides:
            return [table.select(range(first, first + len(names[0])))], [late]
        side = table.column(first).to_numpy()
        tables, flags = [], []
        for index, columns in enumerate(carry.sides):
            mine = pa.array(side == index)
            arrays = [table.column(column).filter(mine) for column in columns]
            # Of a table, unlike of a column, texts stay in several chunks if one array cannot hold them.
            tables.append(pa.table(arrays, names=list(names[index])).combine_chunks())
            flags.append(late.filter(mine))
        return tables, flags

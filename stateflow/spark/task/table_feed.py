"""From Arrow batches to tables of whole keys: one table per shard if the rows fit into memory. Otherwise the rows are sorted, and
cut between keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.records import Shard
from stateflow.operators.combined import count_of
from stateflow.spark.task.key_columns import KeyColumns, key_starts
from stateflow.spark.task.sorted_rows import SortedRows


class TableFeed:
    """The tables of one subtask. One has more rows than `limit` only if a key has. `null_keys`: a key may have no value."""

    def __init__(
        self,
        batches: Iterator[Any],
        keys: KeyColumns,
        limit: int,
        scratch: Callable[[], Path],
        *,
        null_keys: bool,
    ) -> None:
        self._keys = keys
        self._null_keys = null_keys
        self._batches = self._counted(batches)
        self._limit = limit
        self._sorted = SortedRows(keys, scratch)
        self.rows_in = 0

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
                    self._keys.check(batch)
                self.rows_in += count_of(batch)
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

"""Rows that wait until a place has ended, to come out key by key: in memory, and beyond a bound in a file.

What does not fit is sorted by key and written as a run; at the end the runs are merged. So neither many rows of a key nor
many keys at one place need more memory than the bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.spark.task.key_columns import KeyColumns, key_starts
from stateflow.spark.task.runs_file import RunsFile

BYTES_IN_MEMORY = 32 << 20
ROWS = 10_000
"""The rows of a batch that comes out, at most."""
BATCH_BYTES = 4 << 20
"""The bytes of a batch that comes out, about."""


class SpilledKeys:
    """Rows of any keys. `add` them as they come, then `take` them once."""

    def __init__(self, keys: KeyColumns, scratch: Callable[[], Path]) -> None:
        self._keys = keys
        self._file = RunsFile(scratch)
        self._batches: list[Any] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches or self._file.runs)

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > BYTES_IN_MEMORY:
            self._write()

    def take(self) -> Iterator[Any]:
        """All rows, key after key; a key's rows in the order of their arrival."""
        if not self._file.runs:
            yield from self._sorted()
        else:
            self._write()
            yield from self._merged()
        self.close()

    def close(self) -> None:
        self._batches, self._bytes = [], 0
        self._file.close()

    def _sorted(self) -> list[Any]:
        if not self._batches:
            return []
        table = pa.Table.from_batches(self._batches)
        columns = self._keys.of(table)
        keys = pa.table(columns, [str(n) for n in range(len(columns))])
        # Arrow's sort is stable.
        order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
        rows = max(1, min(ROWS, table.num_rows * BATCH_BYTES // max(1, self._bytes)))
        return table.take(order).combine_chunks().to_batches(max_chunksize=rows)  # type: ignore[no-any-return]

    def _write(self) -> None:
        self._file.write(self._sorted())
        self._batches, self._bytes = [], 0

    def _merged(self) -> Iterator[Any]:
        with self._file.opened() as file:
            runs = (self._by_key(file, run) for run in self._file.runs)
            waiting: list[Any] = []
            rows = size = 0
            # If keys are equal, the earlier run's comes first.
            for _, batch in heapq.merge(*runs, key=lambda of_key: of_key[0]):
                waiting.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= ROWS or size >= BATCH_BYTES:
                    yield pa.concat_batches(waiting)
                    waiting, rows, size = [], 0, 0
            if waiting:
                yield pa.concat_batches(waiting)

    def _by_key(self, file: Any, run: range) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """The rows of each key of a run, with the key's place among the keys."""
        for number in run:
            batch = file.get_batch(number)
            columns = self._keys.of(batch)
            starts = key_starts(columns)
            keys = zip(*(_comparable(column.take(pa.array(starts))) for column in columns), strict=True)
            for key, (begin, end) in zip(keys, pairwise([*starts.tolist(), batch.num_rows]), strict=True):
                yield key, batch.slice(begin, end - begin)


def _comparable(column: Any) -> list[Any]:
    """The values as Python values that order as Arrow orders them; instants as numbers, which have no last year."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    return column.to_pylist()  # type: ignore[no-any-return]

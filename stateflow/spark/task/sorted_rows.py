"""Rows in the order of their places, sorted by the task itself: of Arrow columns that takes a fifth of what Spark's sort takes
of rows, which it fetches from all over its memory one by one.

What exceeds the bound in memory is written to a file as a sorted run; at the end the runs are merged. So a task can have
more rows than its memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.spark.task.runs_file import RunsFile

BYTES_IN_MEMORY = 64 << 20
"""Beyond it, rows that wait for the end of the input go to disk."""
BLOCK_BYTES = 1 << 20
"""The bytes of a block of a run, about. While runs are merged, one block of each is at hand."""


class SortedRows:
    """Sorts Arrow batches by their first column, the place. Rows of one place stay in the order of their arrival."""

    def __init__(self, scratch: Callable[[], Path]) -> None:
        self._file = RunsFile(scratch)
        self._waiting: list[Any] = []
        self._bytes = 0
        self._rows = 1
        """The rows of a batch that comes out, at most: as many as the largest that came in has."""

    def of(self, batches: Iterator[Any]) -> Generator[Any]:
        try:
            for batch in batches:
                if batch.num_rows:
                    self._add(batch)
            if not self._file.runs:
                yield from self._sorted(self._rows)
                return
            self._write()
            yield from _joined(self._merged(), self._rows)
        finally:
            self._close()

    def _add(self, batch: Any) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        self._rows = max(self._rows, batch.num_rows)
        if self._bytes > BYTES_IN_MEMORY:
            self._write()

    def _sorted(self, rows: int) -> Iterator[Any]:
        """The waiting rows, in batches of so many rows."""
        if not self._waiting:
            return
        whole = pa.concat_batches(self._waiting)
        self._waiting, self._bytes = [], 0
        order = _order(whole)
        for begin in range(0, len(order), rows):
            yield _in_order(whole, order[begin : begin + rows])

    def _write(self) -> None:
        rows = sum(batch.num_rows for batch in self._waiting)
        self._file.write(self._sorted(max(1, rows * BLOCK_BYTES // max(1, self._bytes))))

    def _merged(self) -> Iterator[Any]:
        with self._file.opened() as file:
            runs = [_Run(file, numbers) for numbers in self._file.runs]
            while runs := [run for run in runs if run.rows is not None]:
                # Behind its block a run may have more rows of the block's last place, and none before that place.
                bound = min(run.places[-1] for run in runs)
                before = pa.concat_batches([run.before(bound) for run in runs])
                yield _in_order(before, _order(before))
                for run in runs:
                    yield from run.at(bound)

    def _close(self) -> None:
        self._waiting, self._bytes = [], 0
        self._file.close()


class _Run:
    """Sorted rows in blocks of a file, read from their beginning."""

    rows: Any
    """What is left of the block at hand; None at the end."""
    places: Any

    def __init__(self, file: Any, numbers: range) -> None:
        self._file = file
        self._numbers = iter(numbers)
        self._turn(None)

    def before(self, bound: int) -> Any:
        """Takes the rows of lower places. There are none of them in later blocks."""
        cut = int(np.searchsorted(self.places, bound))
        taken = self.rows.slice(0, cut)
        # The block ends at the bound or behind it, so some of it is left.
        self._turn(self.rows.slice(cut))
        return taken

    def at(self, place: int) -> Iterator[Any]:
        """Takes the rows of this place, from all blocks that have any."""
        while self.rows is not None and self.places[0] == place:
            cut = int(np.searchsorted(self.places, place, side="right"))
            yield self.rows.slice(0, cut)
            rest = self.rows.slice(cut)
            self._turn(rest if rest.num_rows else None)

    def _turn(self, rows: Any) -> None:
        """Goes on with these rows; None: with the next block."""
        if rows is None:
            number = next(self._numbers, None)
            rows = None if number is None else self._file.get_batch(number)
        self.rows = rows
        self.places = None if rows is None else _places(rows)


def _places(rows: Any) -> Any:
    return rows.column(0).to_numpy()


def _order(rows: Any) -> Any:
    """Where each row of the sorted ones stands; those of one place stay in their order."""
    return np.argsort(_places(rows), kind="stable")


def _in_order(rows: Any, order: Any) -> Any:
    return rows.take(pa.array(order))


def _joined(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Small batches as larger ones, and large ones cut: every batch costs the engine a turn."""
    waiting: list[Any] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.concat_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)

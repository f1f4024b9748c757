"""Keys that share a place: rows are sorted by the place alone, so those of these keys come mixed, and here they are told apart.

Hardly any two keys share a place. Whether some do shows in two counts: there are more changes of the key than of the place.
A place that ends inside its batch is reordered there. A place that goes on can be as large as its largest key, so the rows of
its first key go on to user code as they come; those of its other keys wait until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.spark.task.key_columns import KeyColumns, key_starts, rows_of_key
from stateflow.spark.task.spilled_keys import ROWS, SpilledKeys


class WholeKeys:
    """Reorders Arrow batches that are sorted by place: the rows of every key follow each other, in their order."""

    def __init__(self, keys: KeyColumns, scratch: Callable[[], Path]) -> None:
        self._keys = keys
        self._place = -1
        """The last row's place. More of it may come."""
        self._key: tuple[Any, ...] = ()
        """Its first key, a scalar per column."""
        self._aside = SpilledKeys(keys, scratch)

    def of(self, batches: Iterator[Any]) -> Generator[tuple[Any, Any]]:
        """Each batch with the first indices of its keys."""
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                columns = self._keys.checked(batch)
                places, starts = batch.column(0).to_numpy(), key_starts(columns)
                goes_on = places[0] == self._place
                changes = np.count_nonzero(places[1:] != places[:-1])
                if (
                    len(starts) - 1 == changes
                    and not self._aside
                    and not (goes_on and any(c[0] != k for c, k in zip(columns, self._key, strict=True)))
                ):
                    self._place, self._key = places[-1], tuple(column[-1] for column in columns)
                    yield batch, starts
                else:
                    yield from map(self._with_starts, _joined(self._separated(batch, places)))
            yield from map(self._with_starts, self._aside.take())
        finally:
            self._aside.close()

    def _with_starts(self, batch: Any) -> tuple[Any, Any]:
        return batch, key_starts(self._keys.of(batch))

    def _separated(self, batch: Any, places: Any) -> Iterator[Any]:
        """The rows of a batch that can go on, in order, behind those that have waited for the end of a place."""
        head = int(np.searchsorted(places, self._place, side="right")) if places[0] == self._place else 0
        if head:
            yield self._of_first_key(batch.slice(0, head))
            if head == batch.num_rows:
                return
        yield from self._aside.take()
        batch, places = batch.slice(head), places[head:]
        tail = int(np.searchsorted(places, places[-1]))
        yield _reordered(batch.slice(0, tail), places[:tail], self._keys)
        self._place, self._key = places[-1], tuple(column[tail] for column in self._keys.of(batch))
        yield self._of_first_key(batch.slice(tail))

    def _of_first_key(self, batch: Any) -> Any:
        """The rows of the place's first key; the others wait."""
        mine = rows_of_key(self._keys.of(batch), self._key)
        if mine.all():
            return batch
        self._aside.add(batch.filter(pa.array(~mine)))
        return batch.filter(pa.array(mine))


def _reordered(batch: Any, places: Any, keys: KeyColumns) -> Any:
    """A batch of whole places, with the rows of each key together."""
    if not batch.num_rows:
        return batch
    columns = keys.of(batch)
    place = np.concatenate(([0], np.cumsum(places[1:] != places[:-1])))
    shared = np.bincount(place[key_starts(columns)]) > 1
    rows = np.flatnonzero(shared[place])
    if not len(rows):
        return batch
    codes = [_codes(column.take(pa.array(rows))) for column in columns]
    order = np.arange(batch.num_rows)
    order[rows] = rows[np.lexsort((*codes, place[rows]))]
    return batch.take(pa.array(order))


def _codes(column: Any) -> Any:
    """Numbers that are equal where the values are."""
    return (
        column.to_numpy()
        if pa.types.is_integer(column.type)
        else column.dictionary_encode().indices.to_numpy()
    )


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Small batches as one: every batch costs the engine a turn."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)

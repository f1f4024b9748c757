"""Rows of a key that are in the same window: they wait until the window is closed, and come out then."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.arrivals import Arriving, Came, Produced
from stateflow.operators.joins.joining import Joining
from stateflow.operators.joins.row_blocks import both
from stateflow.operators.joins.row_state import SideOfBlocks, empty_rows
from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.windows.assigning import (
    assigned,
    instants,
    newest_end,
    oldest_end,
    shown_ends,
    shown_starts,
)
from stateflow.operators.ready.windows.partly_late import misses_windows
from stateflow.operators.ready.windows.windowed import AT, NEVER, later, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joined_columns import LEFT, RIGHT
from stateflow.pipelines.ready.joins import WindowJoin
from stateflow.pipelines.ready.operators import WINDOW_END, WINDOW_START
from stateflow.pipelines.ready.windows import STRICT

_SIDES = (LEFT, RIGHT)


class WindowJoined(Joining):
    """`left` and `right` have the rows of each input by the end of their window and by key."""

    _declared: WindowJoin
    chunk_rows = 500_000

    def __init__(self, declared: WindowJoin, read: Set[str]) -> None:
        super().__init__(declared, read)
        self.waits = declared.lateness
        self._window = declared.window
        last_end = oldest_end if declared.late == STRICT else newest_end
        self._arriving = Arriving(declared, self._layouts, lambda times: last_end(declared.window, times))

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        closed = watermark_of(ctx, self.waits)
        came = self._arriving.of(left, right, closed)
        yield from self._late.put(came.late, ctx)
        taken = (came.left.rows, came.right.rows, *(rows for _, rows in came.without_key))
        partly = (misses_windows(self._window, rows.at, closed) for rows in taken)
        self._late.count_partly(sum(int(each.sum()) for each in partly), ctx)
        bare = []
        for keys, rows in came.without_key:
            places, ends = self._windows(rows.at, closed)
            bare.append((self._bounded(keys.take(pa.array(places)), ends), rows.take(places)))
        yield from self._joined.without_key((bare[0], bare[1]))
        for number, side in enumerate((came.left, came.right)):
            if len(side.owners):
                self._add(number, came.keys, side, states, closed)

    def _windows(self, times: Any, closed: int) -> tuple[Any, Any]:
        """Rows with the ends of the windows that they are in and that are open; a row may come several times."""
        windows = assigned(self._window, times)
        places = np.arange(len(times)) if windows.rows is None else windows.rows
        still = windows.ends > closed
        return places[still], windows.ends[still]

    def _add(self, number: int, keys: pa.Table, came: Came, states: Mapping[str, Any], closed: int) -> None:
        places, ends = self._windows(came.rows.at, closed)
        owners, state, stored = came.owners[places], states[_SIDES[number]], self._stored[number]
        groups = grouped([pa.array(owners), pa.array(ends)], len(places))
        mine, at = keys.take(pa.array(owners[groups.firsts])), instants(ends[groups.firsts])
        before = stored.read(state.get(mine, at=at))
        rows, blocks = both(before.rows, came.rows.take(places)), np.concatenate((before.blocks, groups.ids))
        state.put(mine, stored.values(SideOfBlocks(rows, blocks), groups.size), at=at)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        closed = watermark_of(ctx, self.waits)
        if closed == NEVER:
            return
        left, right = states[LEFT], states[RIGHT]
        for entries in left.due(closed):
            keys, at = entries.select(self._key), entries[AT]
            partners = self._stored[1].read(right.get(keys, at=whole(at)))
            yield from self._joined.of_windows(
                self._bounded(keys, micros(at)), self._stored[0].read(entries), partners
            )
        if self._declared.puts_out_right:
            for entries in right.due(closed):
                keys, at = entries.select(self._key), entries[AT]
                alone = pa.array(~left.has(keys, at=whole(at)).to_numpy(zero_copy_only=False))
                entries = entries.filter(alone)
                nothing = SideOfBlocks(empty_rows(self._stored[0].layout), np.zeros(0, dtype=np.int64))
                bounded = self._bounded(entries.select(self._key), micros(entries[AT]))
                yield from self._joined.of_windows(bounded, nothing, self._stored[1].read(entries))
        left.delete_due(closed)
        right.delete_due(closed)

    def _bounded(self, keys: pa.Table, ends: Any) -> pa.Table:
        return keys.append_column(WINDOW_START, shown_starts(self._window, ends)).append_column(
            WINDOW_END, shown_ends(ends)
        )

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        ends = [at for side in _SIDES if (at := states[side].next_due()) is not None]
        return later(min(ends, default=None), self._declared.lateness)

"""Windows that overlap, put out when they close: a row is aggregated once, into the pane that its windows share.

`panes` has the partials of each key's panes by their end. `ends` has each key's next window that must come out, by its end:
a window that comes out hands on to the one after it while that has panes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.accumulator import Accumulator
from stateflow.operators.ready.assigning import event_times, instants, newest_end
from stateflow.operators.ready.groups import grouped, whole
from stateflow.operators.ready.keys import key_columns, one_of_each
from stateflow.operators.ready.late_rows import LateRows
from stateflow.operators.ready.panes import panes_of
from stateflow.operators.ready.windowed import NEVER, Produced, later, window_rows
from stateflow.pipelines.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready import PANE, WindowAggregate


class SlicedAggregates(ColumnarOperator):
    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        self.states = declared.states
        self.waits = declared.lateness
        self._declared = declared
        self._late = late
        self._key = declared.key
        self._panes = panes_of(declared.window)
        self._accumulator = Accumulator(declared.where, declared.aggregates)
        self._has_closed = False
        """Whether the windows of the shard that the watermark closes are out. They are before rows come: a row that is late
        for one of its windows must not go into a pane of it."""

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        times, valid = event_times(rows, self._declared.time)
        closed = self._closed(ctx)
        taken = valid & (newest_end(self._declared.window, times) > closed)
        if not bool(taken.all()):
            yield from self._late.put(rows.filter(pa.array(~taken)), ctx)
            rows, times = rows.filter(pa.array(taken)), times[taken]
        if rows.num_rows:
            self._take(rows, self._panes.end_of(times), closed, states)

    def _take(self, rows: pa.Table, panes: Any, closed: int, states: Mapping[str, Any]) -> None:
        columns = key_columns(rows, self._key)
        groups = grouped([*columns, pa.array(panes)], rows.num_rows)
        keys, ends = one_of_each(columns, self._key, groups.firsts), panes[groups.firsts]
        partials = self._accumulator.create(rows, groups, keys)
        at = instants(ends)
        merged = self._accumulator.merge(states["panes"].get(keys, at=at), partials, keys)
        states["panes"].put(keys, merged.append_column(PANE, pa.array(np.ones(len(keys), dtype=bool))), at=at)
        windows = self._panes.first_window(ends, closed)
        # Several panes of a key may have the same next window.
        once = grouped([*keys.columns, pa.array(windows)], len(keys)).firsts
        states["ends"].put(keys.take(pa.array(once)), at=instants(windows[once]))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        self._has_closed = False

    def _close(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        closed, ends = self._closed(ctx), states["ends"]
        if self._has_closed:
            return
        self._has_closed = True
        while (end := ends.next_due()) is not None and end <= closed:
            for entries in ends.due(end):
                yield self._windows(entries.select(self._declared.key_columns), end, states)
            ends.delete_due(end)
        states["panes"].delete_due(self._panes.done(closed))

    def _windows(self, keys: pa.Table, end: int, states: Mapping[str, Any]) -> pa.Table:
        """The rows of a window of some keys, which hands on to the next one."""
        partials: pa.Table | None = None
        has_next = np.zeros(len(keys), dtype=bool)
        following = self._panes.next_window(end)
        for pane in self._panes.of_window(end):
            found = states["panes"].get(keys, at=instants(np.full(len(keys), pane)))
            partials = found if partials is None else self._accumulator.merge(partials, found, keys)
            if following is not None and self._panes.has(following, pane):
                has_next |= whole(found[PANE]).is_valid().to_numpy(zero_copy_only=False)
        assert partials is not None
        if following is not None and bool(has_next.any()):
            chosen = keys.filter(pa.array(has_next))
            states["ends"].put(chosen, at=instants(np.full(len(chosen), following)))
        return window_rows(self._declared, self._accumulator, keys, np.full(len(keys), end), partials)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return later(states["ends"].next_due(), self._declared.lateness)

    def _closed(self, ctx: ColumnarContext) -> int:
        watermark = ctx.watermark_micros
        return NEVER if watermark is None else watermark - self._declared.lateness

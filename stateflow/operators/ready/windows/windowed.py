"""Aggregates per key and window. An entry of state is a window of a key, under the instant at which the window ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.combined import Combinable
from stateflow.operators.ready.aggregates.distinct import Seen
from stateflow.operators.ready.grouping.dead_letters import Produced, letters_of
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.grouping.keys import columns_of, grouped_by_key
from stateflow.operators.ready.grouping.latest_rows import LatestRows
from stateflow.operators.ready.windows.aggregating import Aggregating
from stateflow.operators.ready.windows.assigning import (
    Assigned,
    assigned,
    event_times,
    instants,
    newest_end,
    shown_ends,
    shown_starts,
)
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.operators.ready.windows.panes import panes_of
from stateflow.operators.ready.windows.partly_late import misses_windows
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import FOREVER, WINDOW_END, WINDOW_START, WindowAggregate

AT = "at"


@dataclass(frozen=True)
class _Change:
    """The new content of windows, and the rows that come out."""

    state: str
    keys: pa.Table
    at: Any
    partials: pa.Table
    rows: pa.Table | None
    moved: bool = False
    """Whether they leave the state `windows`."""


class WindowedAggregates(Aggregating, Combinable):
    """Windows whose ends follow from the time of a row: tumbling, hopping, cumulative.

    `windows` holds those that are open. With emit="on_time" a window whose end has come moves to `emitted`, where it waits
    for changes until it is closed, so that nothing is looked through twice.
    """

    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        super().__init__(declared, late)
        self._window = declared.window
        self._latest = LatestRows(declared.key, (*declared.key_columns, WINDOW_START, WINDOW_END))

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        times, valid = event_times(rows, self._declared.time)
        closed, came = watermark_of(ctx, self.waits), rows
        taken = valid & (newest_end(self._window, times) > closed)
        partly = misses_windows(self._window, times, closed) if self._window.count > 1 else None
        rows, times = yield from self._late.divert(rows, times, taken, ctx, partly)
        if rows.num_rows:
            if self._window.count > 1:
                panes = panes_of(self._window).end_of(times)
                self.groups += grouped_by_key(rows, self._key, panes)[0].size
            yield from self._take(rows, _open(assigned(self._window, times), closed), states, ctx, came)

    def _take(
        self,
        rows: pa.Table,
        windows: Assigned,
        states: Mapping[str, Any],
        ctx: ColumnarContext,
        came: pa.Table,
    ) -> Produced:
        single, at = windows.rows is None, windows.ends
        if windows.rows is not None:
            rows = rows.take(pa.array(windows.rows))
        while True:
            groups, keys = grouped_by_key(rows, self._key, at)
            ends = at[groups.firsts]
            seen = Seen(states, instants(ends))
            try:
                partials = self._accumulator.create(rows, groups, keys, seen)
                changes = self._changes(keys, ends, partials, states, ctx)
                break
            except FailedGroups as failed:
                yield from letters_of(self._declared.uid, failed, keys, rows, groups.ids, ctx)
                stays = ~failed.among(groups.ids)
                rows, at = rows.filter(pa.array(stays)), at[stays]
        if single:
            self.groups += groups.size
        seen.keep()
        for change in changes:
            if change.moved:
                states["windows"].delete(change.keys, at=change.at)
            states[change.state].put(change.keys, change.partials, at=change.at)
            if change.rows is not None:
                yield from self._latest.put(change.rows, came)

    def _changes(
        self, keys: pa.Table, ends: Any, partials: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> list[_Change]:
        """What the partials of a batch would change. Writes nothing yet."""
        if self._declared.emit != "on_time":
            at = instants(ends)
            merged = self._accumulator.merge(states["windows"].get(keys, at=at), partials, keys)
            rows = self._rows(keys, ends, merged) if self._declared.emit == "changes" else None
            return [_Change("windows", keys, at, merged, rows)]
        # Windows whose end has come are put out at once; the others when it comes.
        changes, has_ended = [], ends <= watermark_of(ctx)
        for ended in (False, True):
            mine = np.flatnonzero(has_ended == ended)
            if len(mine):
                chosen = pa.array(mine)
                try:
                    changes.append(
                        self._changed(
                            keys.take(chosen), ends[mine], partials.take(chosen), states, ended=ended
                        )
                    )
                except FailedGroups as failed:
                    raise failed.renumbered(mine) from None
        return changes

    def _changed(
        self, keys: pa.Table, ends: Any, partials: pa.Table, states: Mapping[str, Any], *, ended: bool
    ) -> _Change:
        at = instants(ends)
        # Where its end came in this very batch, `fire` has not moved it yet.
        merged = self._accumulator.merge(states["windows"].get(keys, at=at), partials, keys)
        if not ended:
            return _Change("windows", keys, at, merged, None)
        merged = self._accumulator.merge(states["emitted"].get(keys, at=at), merged, keys)
        return _Change("emitted", keys, at, merged, self._rows(keys, ends, merged), moved=True)

    def _rows(self, keys: pa.Table, ends: Any, partials: pa.Table) -> pa.Table:
        results = self._accumulator.results(partials, keys)
        bounds = {WINDOW_START: shown_starts(self._window, ends), WINDOW_END: shown_ends(ends)}
        return pa.table({**columns_of(keys), **bounds, **results})

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._latest.rest()
        closed, emit = watermark_of(ctx, self.waits), self._declared.emit
        if closed == NEVER:
            return
        windows = states["windows"]
        ended = watermark_of(ctx) if emit == "on_time" else closed
        if emit != "changes":
            for entries in windows.due(ended):
                keys, ends = entries.select(self._declared.key_columns), micros(entries[AT])
                begins = shown_starts(self._window, ends)
                yield from self._closing.rows(keys, begins, shown_ends(ends), entries, ctx)
                if "emitted" in states:
                    still = ends > closed
                    if bool(still.any()):
                        chosen = pa.array(still)
                        states["emitted"].put(
                            keys.filter(chosen), entries.filter(chosen), at=instants(ends[still])
                        )
        windows.delete_due(ended)
        for name, state in states.items():
            if name != "windows":
                state.delete_due(closed)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        wait = 0 if self._declared.emit == "on_time" else self.waits
        due = [later(states["windows"].next_due(), wait)]
        if "emitted" in states:
            due.append(later(states["emitted"].next_due(), self.waits))
        return min((at for at in due if at is not None), default=None)


NEVER = -(1 << 63)
"""Before every instant."""
_ALL = 1 << 62
"""After every instant, also after those that only ends of windows reach."""


def watermark_of(ctx: ColumnarContext, lateness: int = 0) -> int:
    """With the lateness: up to when windows have ended that are closed. At the end of time, where a drained job stands, nothing is
    left to wait for, also where a window would end later or its lateness is not over."""
    watermark = ctx.watermark_micros
    if watermark is None:
        return NEVER
    return _ALL if watermark >= FOREVER else watermark - lateness


def _open(windows: Assigned, closed: int) -> Assigned:
    """The rows in windows that are still open: a row may be late for some of its windows and not for others."""
    still = windows.ends > closed
    if windows.rows is None or bool(still.all()):
        return windows
    return Assigned(windows.rows[still], windows.ends[still])


def later(at: int | None, wait: int) -> int | None:
    """The watermark at which something is over that has to wait; the last one there is, where it would be later."""
    return None if at is None else min(at + wait, FOREVER)


def micros(column: Any) -> Any:
    array = whole(column)
    return (array if pa.types.is_int64(array.type) else array.view(pa.int64())).to_numpy()

"""Windows that overlap, put out when they close: a row is aggregated once, into the pane that its windows share.

`panes` has the partials of each key's panes by their end. `ends` has each key's next window that must come out, by its end.
When windows come out, a key with panes that later windows share is entered there again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.combined import Combinable
from stateflow.operators.ready.grouping.dead_letters import Produced, letters_of
from stateflow.operators.ready.grouping.failed_groups import FailedGroups, Failure
from stateflow.operators.ready.grouping.groups import grouped
from stateflow.operators.ready.grouping.keys import Key, grouped_by_key, has_alike, key_columns
from stateflow.operators.ready.grouping.ordered_values import smallest
from stateflow.operators.ready.windows.aggregating import Aggregating
from stateflow.operators.ready.windows.assigning import (
    event_times,
    instants,
    newest_end,
    shown_ends,
    shown_starts,
)
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.operators.ready.windows.panes import panes_of
from stateflow.operators.ready.windows.partly_late import misses_windows
from stateflow.operators.ready.windows.windowed import AT, NEVER, later, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import PANE, WINDOW_END, WINDOW_START, WindowAggregate

Piece = tuple[pa.Table, Any, pa.Table]
"""Keys, ends of windows and partials, row by row."""
_Lost = tuple[pa.Table, Any, list[Failure]]
"""Keys, ends of windows, and why they cannot come out."""
_NONE = np.zeros(0, dtype=np.int64)


class _First:
    """The first window of each key that must come out. The windows after it, and none before, must as well."""

    def __init__(self, keys: list[Any], ends: Any) -> None:
        self._keys, self._ends = keys, ends

    @classmethod
    def of(cls, due: list[pa.Table], key: Key) -> _First:
        entries = pa.concat_tables(due)
        groups, keys = grouped_by_key(entries, key)
        return cls(keys.columns, smallest(micros(entries[AT]), groups.ids, groups.size))

    def of_keys(self, columns: list[Any]) -> Any:
        """For each key; later than all windows for a key without one."""
        both = [
            pa.chunked_array([*mine.chunks, theirs]) for mine, theirs in zip(self._keys, columns, strict=True)
        ]
        groups = grouped(both, len(self._ends) + len(columns[0]))
        first = np.full(groups.size, np.iinfo(np.int64).max)
        first[groups.ids[: len(self._ends)]] = self._ends
        return first[groups.ids[len(self._ends) :]]


class SlicedAggregates(Aggregating, Combinable):
    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        super().__init__(declared, late)
        self._panes = panes_of(declared.window)
        self._closed_to = NEVER
        """Until when the windows of the shard are out. They are before rows come: a row that is late for one of its windows
        must not go into a pane of it."""

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        times, valid = event_times(rows, self._declared.time)
        closed = watermark_of(ctx, self.waits)
        taken = valid & (newest_end(self._declared.window, times) > closed)
        partly = misses_windows(self._declared.window, times, closed)
        rows, times = yield from self._late.divert(rows, times, taken, ctx, partly)
        if rows.num_rows:
            yield from self._take(rows, self._panes.end_of(times), closed, states, ctx)

    def _take(
        self, rows: pa.Table, panes: Any, closed: int, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        while True:
            groups, keys = grouped_by_key(rows, self._key, panes)
            ends = panes[groups.firsts]
            at = instants(ends)
            try:
                partials = self._accumulator.create(rows, groups, keys)
                merged = self._accumulator.merge(states["panes"].get(keys, at=at), partials, keys)
                break
            except FailedGroups as failed:
                yield from letters_of(self._declared.uid, failed, keys, rows, groups.ids, ctx)
                stays = ~failed.among(groups.ids)
                rows, panes = rows.filter(pa.array(stays)), panes[stays]
        self.groups += groups.size
        states["panes"].put(keys, merged.append_column(PANE, pa.array(np.ones(len(keys), dtype=bool))), at=at)
        windows = self._panes.first_window(ends, closed)
        # Several panes of a key may have the same next window.
        groups, keys = grouped_by_key(keys, self._key, windows)
        states["ends"].put(keys, at=instants(windows[groups.firsts]))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        self._closed_to = NEVER

    def _close(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        closed, panes = watermark_of(ctx, self.waits), states["panes"]
        if closed <= self._closed_to:
            return
        self._closed_to = closed
        due = list(states["ends"].due(closed))
        if due:
            first = _First.of(due, self._key)
            lost: list[_Lost] = []
            pieces = [self._in_windows(entries, first, closed, lost) for entries in panes.due(closed)]
            keys, ends, partials = self._reduced(pieces, lost)
            begins = shown_starts(self._declared.window, ends)
            if lost:
                keys, begins, ends, partials = yield from self._without(
                    lost, keys, begins, ends, partials, ctx
                )
            yield from self._closing.rows(keys, begins, shown_ends(ends), partials, ctx)
            states["ends"].delete_due(closed)
            self._hand_on(closed, states)
        panes.delete_due(self._panes.done(closed))

    def _in_windows(self, entries: pa.Table, first: _First, closed: int, lost: list[_Lost]) -> Piece:
        """Each pane of a part of all panes, in every one of its windows that must come out."""
        columns = key_columns(entries, self._key)
        since = first.of_keys(columns)
        panes = micros(entries[AT])
        ends = self._panes.first_window(panes, NEVER)
        rows, of_rows = [], []
        while True:
            there = np.flatnonzero((ends <= closed) & self._panes.has(ends, panes))
            if not len(there):
                break
            wanted = there[ends[there] >= since[there]]
            rows.append(wanted)
            of_rows.append(ends[wanted])
            ends = self._panes.next_window(ends)
        at, windows = np.concatenate([_NONE, *rows]), np.concatenate([_NONE, *of_rows])
        owners = pa.table(
            {name: c.take(pa.array(at)) for (name, _), c in zip(self._key, columns, strict=True)}
        )
        return self._reduced([(owners, windows, entries.take(pa.array(at)))], lost)

    def _reduced(self, pieces: list[Piece], lost: list[_Lost]) -> Piece:
        """Merges the panes: one row per key and window. Windows whose panes cannot be merged go to `lost`; a part of such a
        window may be left."""
        keys = pa.concat_tables([keys for keys, _, _ in pieces])
        ends = np.concatenate([ends for _, ends, _ in pieces])
        partials = pa.concat_tables([partials for *_, partials in pieces])
        while True:
            groups, owners = grouped_by_key(keys, self._key, ends)
            of_owners = ends[groups.firsts]
            try:
                return owners, of_owners, self._accumulator.reduce(partials, groups.ids, keys)
            except FailedGroups as failed:
                at = pa.array(list(failed.failures))
                lost.append((owners.take(at), of_owners[at], list(failed.failures.values())))
                stays = ~failed.among(groups.ids)
                keys, ends, partials = (
                    keys.filter(pa.array(stays)), ends[stays], partials.filter(pa.array(stays)),
                )  # fmt: skip

    def _without(
        self,
        lost: list[_Lost],
        keys: pa.Table,
        begins: Any,
        ends: Any,
        partials: pa.Table,
        ctx: ColumnarContext,
    ) -> Generator[tuple[str, pa.Table] | pa.Table, None, tuple[pa.Table, Any, Any, pa.Table]]:
        """Puts out letters for windows that are lost, and returns the others."""
        gone = pa.concat_tables([of for of, _, _ in lost])
        gone_ends = np.concatenate([of for _, of, _ in lost])
        failures = [failure for *_, of in lost for failure in of]
        # Several pieces of a window may have failed.
        groups, windows = grouped_by_key(gone, self._key, gone_ends)
        gone_ends = gone_ends[groups.firsts]
        windows = windows.append_column(WINDOW_START, shown_starts(self._declared.window, gone_ends))
        windows = windows.append_column(WINDOW_END, instants(gone_ends))
        failed = FailedGroups({at: failures[place] for at, place in enumerate(groups.firsts.tolist())})
        place = windows.column_names.index(WINDOW_END)
        named = windows.set_column(place, WINDOW_END, shown_ends(gone_ends))
        yield from self._closing.lost(failed, named, ctx)
        mine = keys.append_column(WINDOW_END, instants(ends))
        stays = ~has_alike(mine, windows.select(mine.column_names), mine.column_names)
        kept = pa.array(stays)
        return keys.filter(kept), begins.filter(kept), ends[stays], partials.filter(kept)

    def _hand_on(self, closed: int, states: Mapping[str, Any]) -> None:
        """Enters in `ends` each key that has panes of windows which are still open."""
        for entries in states["panes"].due(closed):
            panes = micros(entries[AT])
            windows = self._panes.first_window(panes, closed)
            still = np.flatnonzero(self._panes.has(windows, panes))
            windows = windows[still]
            open_panes = entries.select(self._declared.key_columns).take(pa.array(still))
            groups, keys = grouped_by_key(open_panes, self._key, windows)
            states["ends"].put(keys, at=instants(windows[groups.firsts]))

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return later(states["ends"].next_due(), self._declared.lateness)

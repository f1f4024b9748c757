"""Rows of a key that are in the same session, which the rows of both inputs make together.

`sessions` has the open sessions of each key by their start, and `left` and `right` have the rows of each input by the same.
`ends` finds sessions when they close, at times too early, as it does for aggregates per session.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.arrivals import Arriving, Came, Produced
from stateflow.operators.joins.joining import Joining
from stateflow.operators.joins.row_blocks import both
from stateflow.operators.joins.row_state import SideOfBlocks
from stateflow.operators.ready.windows.assigning import instants, shown_ends
from stateflow.operators.ready.windows.partly_late import before_sessions
from stateflow.operators.ready.windows.session_ends import ended
from stateflow.operators.ready.windows.spans import Merged, Spans
from stateflow.operators.ready.windows.windowed import NEVER, later, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joined_columns import LEFT, RIGHT
from stateflow.pipelines.ready.joins import WindowJoin
from stateflow.pipelines.ready.operators import FOREVER, SESSION_END, SESSION_START, WINDOW_END, WINDOW_START
from stateflow.pipelines.ready.windows import STRICT, Session

_SIDES = (LEFT, RIGHT)
_ROW = "_sf_row"


class JoinedInSessions(Joining):
    chunk_rows = 500_000

    def __init__(self, declared: WindowJoin, read: Set[str]) -> None:
        assert isinstance(declared.window, Session)
        super().__init__(declared, read)
        self.waits = declared.lateness
        self._gap = gap = declared.window.gap
        # Whether a row is late shows when its session is known; that of a row without a key is its own.
        self._arriving = Arriving(
            declared,
            self._layouts,
            lambda times: np.full(len(times), FOREVER),
            lambda times: times + gap,
        )
        self._is_strict = declared.late == STRICT
        self._closed_to = NEVER
        """Until when the sessions of the shard are closed. They are before rows come: a late row must not go into a session
        whose end has come."""

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        yield from self._close(states, ctx)
        closed = watermark_of(ctx, self.waits)
        came = self._arriving.of(left, right, closed)
        yield from self._late.put(came.late, ctx)
        bare = [(self._bounded(keys, rows.at, rows.at + self._gap), rows) for keys, rows in came.without_key]
        yield from self._joined.without_key((bare[0], bare[1]))
        if not len(came.keys):
            return
        sides = came.left, came.right
        stored = states["sessions"].entries(came.keys, row=_ROW)
        old = Spans(micros(stored[_ROW]), micros(stored[SESSION_START]), micros(stored[SESSION_END]))
        partly = [before_sessions(side.owners, side.rows.at, old, closed) for side in sides]
        if self._is_strict and any(bool(each.any()) for each in partly):
            yield from self._late.put(_as_they_came((left, right), sides, partly), ctx)
            sides = sides[0].take(~partly[0]), sides[1].take(~partly[1])
            partly = [mine[~mine] for mine in partly]
            if not any(len(side.owners) for side in sides):
                return
        owners, times = (
            np.concatenate(parts)
            for parts in ([side.owners for side in sides], [side.rows.at for side in sides])
        )
        new = Spans.among(owners, times, self._gap)
        merged = Merged(old, new)
        touched = np.zeros(len(merged.ends), dtype=bool)
        touched[merged.of_new] = True
        touched &= merged.ends > closed
        number = np.where(touched, np.cumsum(touched) - 1, -1)
        into = number[merged.of_new][new.of_rows]
        split = len(sides[0].owners)
        of_sides = into[:split], into[split:]
        if bool((into < 0).any()):
            late = [mine < 0 for mine in of_sides]
            yield from self._late.put(_as_they_came((left, right), sides, late), ctx)
        self._late.count_partly(int((np.concatenate(partly) & (into >= 0)).sum()), ctx)
        if bool(touched.any()):
            self._write(
                states, came.keys, merged, touched, number[merged.of_old], stored, old, sides, of_sides
            )

    def _write(
        self, states: Mapping[str, Any], keys: pa.Table, merged: Merged, touched: Any, into: Any, stored: pa.Table, old: Spans,
        sides: tuple[Came, Came], of_sides: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """Writes the touched sessions. `into` gives each stored session, and `of_sides` each row that came, the number of its
        touched session, below zero for none."""
        owners = keys.take(pa.array(merged.keys[touched]))
        starts, ends = merged.starts[touched], merged.ends[touched]
        by = pa.table({SESSION_START: instants(starts)})
        takes = np.flatnonzero(into >= 0)
        stays = old.starts[takes] == starts[into[takes]]
        before, moved = stored.take(pa.array(takes)), np.flatnonzero(~stays)
        gone = before.take(pa.array(moved))
        gone_keys, gone_by = gone.select(self._key), gone.select([SESSION_START])
        for name, stored_rows, came, mine in zip(_SIDES, self._stored, sides, of_sides, strict=True):
            written = np.zeros(len(starts), dtype=bool)
            written[mine[mine >= 0]] = True
            # Of a session that begins earlier now, or that another one goes into, the rows lie elsewhere.
            written[into[takes[moved]]] = True
            again = np.flatnonzero(written[into[takes]])
            some = before.take(pa.array(again))
            blocks = stored_rows.read(
                states[name].get(some.select(self._key), by=some.select([SESSION_START]))
            )
            there = np.flatnonzero(mine >= 0)
            rows = both(blocks.rows, came.rows.take(there))
            of_rows = np.concatenate((into[takes[again]][blocks.blocks], mine[there]))
            filled = np.zeros(len(starts), dtype=bool)
            filled[of_rows] = True
            if len(moved):
                states[name].delete(gone_keys, by=gone_by)
            places = np.flatnonzero(filled)
            if len(places):
                numbers = (np.cumsum(filled) - 1)[of_rows]
                values = stored_rows.values(SideOfBlocks(rows, numbers), len(places))
                states[name].put(owners.take(pa.array(places)), values, by=by.take(pa.array(places)))
        if len(moved):
            states["sessions"].delete(gone_keys, by=gone_by)
        states["sessions"].put(owners, pa.table({SESSION_END: instants(ends)}), by=by)
        known = np.zeros(len(starts), dtype=bool)
        known[into[takes[stays]]] = True
        fresh = pa.array(np.flatnonzero(~known))
        if len(fresh):
            states["ends"].put(owners.take(fresh), by=by.take(fresh), at=instants(ends).take(fresh))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        self._closed_to = NEVER

    def _close(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        closed = watermark_of(ctx, self.waits)
        if closed <= self._closed_to:
            return
        self._closed_to = closed
        for keys, by, found in ended(states, self._key, closed):
            left, right = (
                stored.read(states[name].get(keys, by=by))
                for name, stored in zip(_SIDES, self._stored, strict=True)
            )
            windows = self._bounded(keys, micros(by[SESSION_START]), micros(found[SESSION_END]))
            yield from self._joined.of_windows(windows, left, right)
            for name in ("sessions", *_SIDES):
                states[name].delete(keys, by=by)

    def _bounded(self, keys: pa.Table, starts: Any, ends: Any) -> pa.Table:
        return keys.append_column(WINDOW_START, instants(starts)).append_column(WINDOW_END, shown_ends(ends))

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return later(states["ends"].next_due(), self.waits)


def _as_they_came(
    tables: tuple[pa.Table, pa.Table], sides: tuple[Came, Came], chosen: list[Any]
) -> tuple[pa.Table, pa.Table]:
    """The chosen rows of both sides, with all of their columns."""
    left, right = (
        table.take(pa.array(side.places[mine]))
        for table, side, mine in zip(tables, sides, chosen, strict=True)
    )
    return left, right

"""Aggregates per key and session: a window that rows within the gap of each other make, and that grows with them.

`sessions` has the open sessions of each key by their start. `ends` finds them when they close: under an instant at or
before the end of the session, for a session that grew in the meantime is only found too early, and asked for again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.dead_letters import Produced, letters_of
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.keys import grouped_by_key
from stateflow.operators.ready.windows.aggregating import Aggregating
from stateflow.operators.ready.windows.assigning import event_times, instants
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.operators.ready.windows.partly_late import before_sessions
from stateflow.operators.ready.windows.session_ends import ended
from stateflow.operators.ready.windows.spans import Merged, Spans
from stateflow.operators.ready.windows.windowed import NEVER, later, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import (
    SESSION_END,
    SESSION_START,
    WindowAggregate,
)
from stateflow.pipelines.ready.windows import Session

_ROW = "_sf_row"


class SessionAggregates(Aggregating):
    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        assert isinstance(declared.window, Session)
        super().__init__(declared, late)
        self._gap = declared.window.gap
        self._closed_to = NEVER
        """Until when the sessions of the shard are closed. They are before rows come: a late row must not go into a session
        whose end has come."""

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        times, valid = event_times(rows, self._declared.time)
        rows, times = yield from self._late.divert(rows, times, valid, ctx)
        while rows.num_rows:
            rows, times = yield from self._merge(rows, times, states, ctx)

    def _merge(
        self, rows: pa.Table, times: Any, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Generator[pa.Table | tuple[str, pa.Table], None, tuple[pa.Table, Any]]:
        """Returns the rows that are to be tried again: those that stay when some are found late, and those of other sessions when
        some failed. Then nothing was stored."""
        closed = watermark_of(ctx, self.waits)
        by_key, keys = grouped_by_key(rows, self._key)
        new = Spans.among(by_key.ids, times, self._gap)
        stored = states["sessions"].entries(keys, row=_ROW)
        old = Spans(micros(stored[_ROW]), micros(stored[SESSION_START]), micros(stored[SESSION_END]))
        partly = before_sessions(by_key.ids, times, old, closed)
        if self._late.strict and bool(partly.any()):
            return (yield from self._late.divert(rows, times, ~partly, ctx))
        merged = Merged(old, new)
        is_open = merged.ends > closed
        is_of_batch = np.zeros(len(merged.ends), dtype=bool)
        is_of_batch[merged.of_new] = True
        if not bool(is_open[merged.of_new].all()):
            late = ~is_open[merged.of_new][new.of_rows]
            yield from self._late.put(rows.filter(pa.array(late)), ctx)
        touched = np.flatnonzero(is_of_batch & is_open)
        if not len(touched):
            return rows.slice(0, 0), times[:0]
        number = np.full(len(merged.ends), -1)
        number[touched] = np.arange(len(touched))
        taken = number[merged.of_new][new.of_rows]
        try:
            self._write(states, keys, merged, touched, number, stored, old, rows, taken)
        except FailedGroups as failed:
            owners = keys.take(pa.array(merged.keys[touched]))
            yield from letters_of(self._declared.uid, failed, owners, rows, taken, ctx)
            stays = (taken >= 0) & ~failed.among(taken)
            return rows.filter(pa.array(stays)), times[stays]
        if bool(partly.any()):
            self._late.count_partly(rows.filter(pa.array(partly & (taken >= 0))), ctx)
        return rows.slice(0, 0), times[:0]

    def _write(
        self, states: Mapping[str, Any], keys: pa.Table, merged: Merged, touched: Any, number: Any,
        stored: pa.Table, old: Spans, rows: pa.Table, taken: Any,
    ) -> None:  # fmt: skip
        owners = keys.take(pa.array(merged.keys[touched]))
        counted = np.flatnonzero(taken >= 0)
        groups = Groups(taken[counted], len(touched), np.zeros(0, dtype=np.int64))
        partials = self._accumulator.create(rows.take(pa.array(counted)), groups, owners)
        into = number[merged.of_old]
        partials = self._accumulator.combine(partials, stored, into, owners)
        starts = instants(merged.starts[touched])
        takes = into >= 0
        keeps_start = takes & (old.starts == merged.starts[touched[np.maximum(into, 0)]])
        known = np.zeros(len(touched), dtype=bool)
        known[into[keeps_start]] = True
        sessions, gone = states["sessions"], pa.array(takes & ~keeps_start)
        if gone.true_count:
            names = list(self._declared.key_columns)
            sessions.delete(stored.select(names).filter(gone), by=stored.select([SESSION_START]).filter(gone))
        by = pa.table({SESSION_START: starts})
        ends = instants(merged.ends[touched])
        sessions.put(owners, partials.append_column(SESSION_END, ends), by=by)
        if not bool(known.all()):
            fresh = pa.array(~known)
            states["ends"].put(owners.filter(fresh), by=by.filter(fresh), at=ends.filter(fresh))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._close(states, ctx)
        self._closed_to = NEVER

    def _close(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        closed = watermark_of(ctx, self.waits)
        if closed <= self._closed_to:
            return
        self._closed_to = closed
        for keys, by, found in ended(states, self._declared.key_columns, closed):
            yield from self._closing.rows(keys, by[SESSION_START], found[SESSION_END], found, ctx)
            states["sessions"].delete(keys, by=by)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return later(states["ends"].next_due(), self._declared.lateness)

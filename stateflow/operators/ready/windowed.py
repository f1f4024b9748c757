"""Aggregates per key and window. An entry of state is a window of a key, under the instant at which the window ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from stateflow.operators.combined import Combinable
from stateflow.operators.ready.accumulator import Accumulator
from stateflow.operators.ready.assigning import Assigned, assigned, event_times, instants, newest_end, starts
from stateflow.operators.ready.distinct import Seen
from stateflow.operators.ready.groups import grouped, whole
from stateflow.operators.ready.keys import key_columns, one_of_each
from stateflow.operators.ready.late_rows import LateRows
from stateflow.operators.ready.latest_rows import LatestRows
from stateflow.operators.ready.panes import panes_of
from stateflow.pipelines.columnar import ColumnarContext
from stateflow.pipelines.ready import WINDOW_END, WINDOW_START, WindowAggregate

Produced = Iterator[pa.Table | tuple[str, pa.Table]]
AT = "at"


class WindowedAggregates(Combinable):
    """Windows whose ends follow from the time of a row: tumbling, hopping, cumulative.

    `windows` holds those that are open. With emit="on_time" a window whose end has come moves to `told`, where it waits
    for changes until it is closed, so that nothing is looked through twice.
    """

    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        self.states = declared.states
        self.waits = declared.lateness
        self._declared = declared
        self._late = late
        self._key = declared.key
        self._window = declared.window
        self._lateness = declared.lateness
        self._accumulator = Accumulator(declared.where, declared.aggregates)
        self._latest = LatestRows(declared.key, (*declared.key_columns, WINDOW_END))

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        times, valid = event_times(rows, self._declared.time)
        closed, came = self._closed(ctx), rows
        taken = valid & (newest_end(self._window, times) > closed)
        rows, times = yield from self._late.apart(rows, times, taken, ctx)
        if rows.num_rows:
            if self._window.count > 1:
                panes = pa.array(panes_of(self._window).end_of(times))
                self.groups += grouped([*key_columns(rows, self._key), panes], rows.num_rows).size
            yield from self._take(rows, _open(assigned(self._window, times), closed), states, ctx, came)

    def _take(
        self,
        rows: pa.Table,
        windows: Assigned,
        states: Mapping[str, Any],
        ctx: ColumnarContext,
        came: pa.Table,
    ) -> Produced:
        if windows.rows is not None:
            rows = rows.take(pa.array(windows.rows))
        columns = key_columns(rows, self._key)
        groups = grouped([*columns, pa.array(windows.ends)], rows.num_rows)
        if windows.rows is None:
            self.groups += groups.size
        keys = one_of_each(columns, self._key, groups.firsts)
        ends = windows.ends[groups.firsts]
        partials = self._accumulator.create(rows, groups, keys, Seen(states, instants(ends)))
        match self._declared.emit:
            case "final":
                self._merge(states["windows"], keys, ends, partials)
            case "changes":
                merged = self._merge(states["windows"], keys, ends, partials)
                yield from self._latest.put(
                    window_rows(self._declared, self._accumulator, keys, ends, merged), came
                )
            case _:
                yield from self._merge_told(keys, ends, partials, states, ctx, came)

    def _merge(self, state: Any, keys: pa.Table, ends: Any, partials: pa.Table) -> pa.Table:
        at = instants(ends)
        merged = self._accumulator.merge(state.get(keys, at=at), partials, keys)
        state.put(keys, merged, at=at)
        return merged

    def _merge_told(
        self,
        keys: pa.Table,
        ends: Any,
        partials: pa.Table,
        states: Mapping[str, Any],
        ctx: ColumnarContext,
        came: pa.Table,
    ) -> Produced:
        """Windows whose end has come are put out at once; the others when it comes."""
        has_ended = ends <= _watermark(ctx)
        for ended in (False, True):
            mask = has_ended == ended
            if not bool(mask.any()):
                continue
            chosen = pa.array(mask)
            mine, ends_here, parts = keys.filter(chosen), ends[mask], partials.filter(chosen)
            if not ended:
                self._merge(states["windows"], mine, ends_here, parts)
                continue
            at = instants(ends_here)
            # Its end came in this very batch, and `fire` has not moved it yet.
            parts = self._accumulator.merge(states["windows"].get(mine, at=at), parts, mine)
            states["windows"].delete(mine, at=at)
            merged = self._merge(states["told"], mine, ends_here, parts)
            yield from self._latest.put(
                window_rows(self._declared, self._accumulator, mine, ends_here, merged), came
            )

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._latest.rest()
        closed, emit = self._closed(ctx), self._declared.emit
        if closed == NEVER:
            return
        windows = states["windows"]
        ended = _watermark(ctx) if emit == "on_time" else closed
        if emit != "changes":
            for entries in windows.due(ended):
                keys, ends = entries.select(self._declared.key_columns), micros(entries[AT])
                yield window_rows(self._declared, self._accumulator, keys, ends, entries)
                if "told" in states:
                    still = ends > closed
                    if bool(still.any()):
                        chosen = pa.array(still)
                        states["told"].put(
                            keys.filter(chosen), entries.filter(chosen), at=instants(ends[still])
                        )
        windows.delete_due(ended)
        for name, state in states.items():
            if name != "windows":
                state.delete_due(closed)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        wait = 0 if self._declared.emit == "on_time" else self._lateness
        due = [later(states["windows"].next_due(), wait)]
        if "told" in states:
            due.append(later(states["told"].next_due(), self._lateness))
        return min((at for at in due if at is not None), default=None)

    def _closed(self, ctx: ColumnarContext) -> int:
        """Windows that end then, or before, are closed."""
        watermark = ctx.watermark_micros
        return NEVER if watermark is None else watermark - self._lateness


def window_rows(
    declared: WindowAggregate, accumulator: Accumulator, keys: pa.Table, ends: Any, partials: pa.Table
) -> pa.Table:
    """The output rows of windows."""
    columns = dict(zip(keys.column_names, keys.columns, strict=True))
    columns[WINDOW_START] = instants(starts(declared.window, ends))
    columns[WINDOW_END] = instants(ends)
    return pa.table({**columns, **accumulator.results(partials, keys)})


NEVER = -(1 << 63)
"""Before every instant."""


def _watermark(ctx: ColumnarContext) -> int:
    return NEVER if ctx.watermark_micros is None else ctx.watermark_micros


def _open(windows: Assigned, closed: int) -> Assigned:
    """Without those that are closed: a row may be late for some of its windows, and not for all."""
    still = windows.ends > closed
    if windows.rows is None or bool(still.all()):
        return windows
    return Assigned(windows.rows[still], windows.ends[still])


def later(at: int | None, wait: int) -> int | None:
    return None if at is None else at + wait


def micros(column: Any) -> Any:
    array = whole(column)
    return (array if pa.types.is_int64(array.type) else array.view(pa.int64())).to_numpy()

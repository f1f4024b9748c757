"""Windows that hold a number of rows of a key, in the order of event time.

`waiting` has the rows that the watermark has not reached. So the rows alone decide which of them share a window, and not the
order in which they came. `open` has each key's window that is not full yet, under the last instant that there is: only a run
that closes all windows gets to it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.dead_letters import Produced, letters_of
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.operators.ready.grouping.keys import grouped_by_key
from stateflow.operators.ready.grouping.ordered_values import ranks
from stateflow.operators.ready.windows.aggregating import Aggregating
from stateflow.operators.ready.windows.assigning import event_times, instants
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.operators.ready.windows.stored_rows import StoredRows
from stateflow.operators.ready.windows.windowed import AT, NEVER, later, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import (
    FILLED,
    FIRST_TIME,
    FOREVER,
    LAST_TIME,
    NUMBER,
    WindowAggregate,
)
from stateflow.pipelines.ready.windows import Counted

_ROW = "_sf_row"


class CountedAggregates(Aggregating):
    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        assert isinstance(declared.window, Counted)
        super().__init__(declared, late)
        self._n = declared.window.n
        kept = tuple(n for n in declared.reads if n not in (*declared.key_columns, declared.time))
        self._stored = StoredRows(declared.uid, declared.needed(frozenset()), kept, declared.time)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        times, valid = event_times(rows, self._declared.time)
        taken = valid & (times > watermark_of(ctx, self.waits))
        rows, times = yield from self._late.divert(rows, times, taken, ctx)
        if not rows.num_rows:
            return
        groups, keys = grouped_by_key(rows, self._key, times)
        stored = states["waiting"].entries(keys, at=instants(times[groups.firsts]), row=_ROW)
        waiting = np.bincount(whole(stored[_ROW]).to_numpy(), minlength=groups.size)
        numbers = _places(groups.ids, groups.size) + waiting[groups.ids]
        states["waiting"].put(
            keys.take(pa.array(groups.ids)), self._stored.of_rows(rows), by=pa.table({NUMBER: numbers}), at=instants(times)
        )  # fmt: skip

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        closed = watermark_of(ctx, self.waits)
        if closed == NEVER:
            return
        for entries in _whole_instants(states["waiting"].due(closed)):
            while entries.num_rows:
                entries = yield from self._fill(entries, states["open"], ctx)
        states["waiting"].delete_due(closed)
        if closed >= FOREVER:
            for entries in states["open"].due(FOREVER):
                yield from self._rows(entries.select(self._declared.key_columns), entries, ctx)
            states["open"].delete_due(FOREVER)

    def _fill(
        self, entries: pa.Table, state: Any, ctx: ColumnarContext
    ) -> Generator[pa.Table | tuple[str, pa.Table], None, pa.Table]:
        """Takes rows that the watermark has reached; those of a key come in the order of their times. Returns the rows that are
        to be tried again when a window failed: without its rows, others are in a window together."""
        of_key, keys = grouped_by_key(entries, self._key)
        times = micros(entries[AT])
        codes = [ranks(whole(entries[name])) for name in self._stored.names]
        order = np.lexsort((*reversed(codes), times, of_key.ids))
        entries, ids, times = entries.take(pa.array(order)), of_key.ids[order], times[order]
        before = state.get(keys, at=FOREVER)
        filled = whole(before[FILLED]).fill_null(0).to_numpy()
        position = _places(ids, of_key.size) + filled[ids]
        number = position // self._n
        begins = np.ones(len(ids), dtype=bool)
        begins[1:] = (ids[1:] != ids[:-1]) | (number[1:] != number[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(ids)) - 1
        groups = Groups(np.cumsum(begins) - 1, len(first), first)
        owners = keys.take(pa.array(ids[first]))
        rows = self._stored.rows(entries, times)
        goes_on = (number[first] == 0) & (filled[ids[first]] > 0)
        earlier = before.take(pa.array(ids[first], mask=~goes_on))
        try:
            partials = self._accumulator.create(rows, groups, owners)
            windows = self._accumulator.merge(earlier, partials, owners)
        except FailedGroups as failed:
            yield from letters_of(self._declared.uid, failed, owners, rows, groups.ids, ctx)
            return entries.filter(pa.array(~failed.among(groups.ids)))
        began = np.where(
            goes_on, micros(whole(earlier[FIRST_TIME]).fill_null(instants([0])[0])), times[first]
        )
        windows = windows.append_column(FILLED, pa.array(position[last] % self._n + 1))
        windows = windows.append_column(FIRST_TIME, instants(began))
        windows = windows.append_column(LAST_TIME, instants(times[last]))
        is_full = position[last] % self._n == self._n - 1
        full, still = pa.array(is_full), pa.array(~is_full)
        yield from self._rows(owners.filter(full), windows.filter(full), ctx)
        open_now = np.zeros(of_key.size, dtype=bool)
        open_now[ids[first][~is_full]] = True
        state.delete(keys.filter(pa.array(~open_now & (filled > 0))), at=FOREVER)
        state.put(owners.filter(still), windows.filter(still), at=FOREVER)
        return entries.slice(0, 0)

    def _rows(self, keys: pa.Table, windows: pa.Table, ctx: ColumnarContext) -> Produced:
        return self._closing.rows(keys, windows[FIRST_TIME], windows[LAST_TIME], windows, ctx)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        due = later(states["waiting"].next_due(), self._declared.lateness), states["open"].next_due()
        return min((at for at in due if at is not None), default=None)


def _whole_instants(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables that end between two instants: what the rows of an instant hold is their order, whichever came first."""
    held = None
    for entries in tables:
        entries = entries if held is None else pa.concat_tables([held, entries])
        times = micros(entries[AT])
        earlier = np.flatnonzero(times != times[-1])
        split = int(earlier[-1]) + 1 if len(earlier) else 0
        yield entries.slice(0, split)
        held = entries.slice(split)
    if held is not None:
        yield held


def _places(ids: Any, size: int) -> Any:
    """The number of each row among those of its group."""
    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids, minlength=size)
    out = np.empty(len(ids), dtype=np.int64)
    out[order] = np.arange(len(ids)) - (np.cumsum(counts) - counts)[ids[order]]
    return out

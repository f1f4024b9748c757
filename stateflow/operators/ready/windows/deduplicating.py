"""One row of each key, and no other row of it for a while.

In order of event time a row opens a group, unless the key has an open one; a group takes the rows up to `within` after its
first. Rows wait until the watermark has reached their time: then no earlier row can come, and which row is the first or the
last follows from the rows alone. Of rows of one time that one counts whose values are smallest (of the last: largest),
column after column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.dead_letters import Produced
from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.keys import columns_of, grouped_by_key, key_columns, one_of_each
from stateflow.operators.ready.grouping.winners import displaces, winners
from stateflow.operators.ready.windows.assigning import event_times, instants
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.operators.ready.windows.stored_rows import StoredRows
from stateflow.operators.ready.windows.windowed import AT, NEVER, micros, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.operators import FOREVER, ROW_TIME, UNTIL, Deduplicate


class FirstToCome(ColumnarOperator):
    """Without event time: the first row of a key that comes; of those of one batch, the one with the smallest values."""

    def __init__(self, declared: Deduplicate) -> None:
        self.states = declared.states
        self._key = declared.key
        self._stored = StoredRows(declared.uid, declared.rows, declared.kept, declared.time)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        groups, keys = grouped_by_key(rows, self._key)
        is_new = whole(states["groups"].get(keys)[UNTIL]).is_null()
        order = [(whole(column), True) for column in self._stored.of_rows(rows).columns]
        best = winners(order, groups.ids, groups)
        fresh = keys.filter(is_new)
        states["groups"].put(fresh, pa.table({UNTIL: instants(np.full(len(fresh), FOREVER))}))
        yield rows.take(pa.array(best).filter(is_new))


class Deduplicated(ColumnarOperator):
    """`waiting` has the rows that the watermark has not reached, one per key and time; `groups` has each key's open group,
    and `ends` tells when it ends."""

    def __init__(self, declared: Deduplicate, late: LateRows) -> None:
        self.states = declared.states
        self._declared = declared
        self._late = late
        self._key = declared.key
        self._is_last = declared.keep == "last"
        self._stored = StoredRows(declared.uid, declared.rows, declared.kept, declared.time)

    def _ordered(self, stored: pa.Table) -> list[tuple[Any, bool]]:
        return [(whole(column), not self._is_last) for column in stored.columns]

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        times, valid = event_times(rows, self._declared.time)
        on_time = valid & (times > watermark_of(ctx))
        rows, times = yield from self._late.divert(rows, times, on_time, ctx)
        if not rows.num_rows:
            return
        columns = key_columns(rows, self._key)
        groups = grouped([*columns, pa.array(times)], rows.num_rows)
        stored = self._stored.of_rows(rows)
        best = winners(self._ordered(stored), groups.ids, groups)
        keys, after = one_of_each(columns, self._key, best), stored.take(pa.array(best))
        at = instants(times[best])
        wins = pa.array(displaces(self._ordered(states["waiting"].get(keys, at=at)), after.columns))
        states["waiting"].put(keys.filter(wins), after.filter(wins), at=at.filter(wins))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        watermark = watermark_of(ctx)
        if watermark == NEVER:
            return
        for entries, settled in states["waiting"].due_settled(watermark):
            yield self._reached(entries, settled, watermark, states)
        states["waiting"].delete_due(watermark)
        if "ends" in states:
            yield from self._end(watermark, states)

    def _reached(
        self, entries: pa.Table, settled: int, watermark: int, states: Mapping[str, Any]
    ) -> pa.Table:
        """Rows that the watermark has reached; those of a key come in the order of their times. Of the keys of the first
        `settled` rows no other row is to come before the watermark moves."""
        groups, keys = grouped_by_key(entries, self._key)
        times = micros(entries[AT])
        found = states["groups"].get(keys)
        before = micros(whole(found[UNTIL]).fill_null(instants([NEVER])[0]))
        cut = opened(groups.ids, times, before, self._declared.within)
        changed = cut.until != before
        if not self._is_last:
            # A group that has ended by then concerns no row any more. What ended before it is still found in `ends`.
            changed &= (groups.firsts >= settled) | (cut.until > watermark)
        chosen = pa.array(changed)
        ends = instants(cut.until[changed])
        if "ends" in states:
            states["ends"].put(keys.filter(chosen), at=ends)
        if not self._is_last:
            states["groups"].put(keys.filter(chosen), pa.table({UNTIL: ends}))
            return self._stored.rows(entries, times).take(pa.array(np.flatnonzero(cut.opens)))
        return self._last_of_each(entries, times, groups.ids, cut, keys, found, states)

    def _last_of_each(
        self, entries: pa.Table, times: Any, ids: Any, cut: Opened, keys: pa.Table, found: pa.Table,
        states: Mapping[str, Any],
    ) -> pa.Table:  # fmt: skip
        """The last rows of groups that a later group of the key follows. The last row of each key is kept."""
        held = np.flatnonzero(whole(found[UNTIL]).is_valid().to_numpy(zero_copy_only=False))
        at = pa.array(held)
        names = self._stored.names
        stored = pa.concat_tables([found.select(names).take(at), entries.select(names)])
        every_time = np.concatenate((micros(whole(found[ROW_TIME]).take(at)), times))
        every_id = np.concatenate((held, ids))
        opens = np.concatenate((np.ones(len(held), dtype=bool), cut.opens))
        # What is held came before all entries.
        order = np.lexsort((every_time, every_id))
        every_id, opens = every_id[order], opens[order]
        ends_key = np.append(every_id[1:] != every_id[:-1], True)
        ends_group = np.append(opens[1:], True) & ~ends_key
        last = order[ends_key]
        kept = stored.take(pa.array(last)).append_column(ROW_TIME, instants(every_time[last]))
        states["groups"].put(keys, kept.append_column(UNTIL, instants(cut.until)))
        over = order[ends_group]
        owners = keys.take(pa.array(every_id[ends_group]))
        return self._stored.rows(pa.table(columns_of(owners, stored.take(pa.array(over)))), every_time[over])

    def _end(self, watermark: int, states: Mapping[str, Any]) -> Produced:
        for entries in states["ends"].due(watermark):
            keys = entries.select(self._declared.key_columns)
            found = states["groups"].get(keys)
            # The group may have been followed by another one, which ends later.
            ended = whole(found[UNTIL]).view(pa.int64()).fill_null(NEVER).to_numpy() == micros(entries[AT])
            chosen = pa.array(ended)
            keys, found = keys.filter(chosen), found.filter(chosen)
            states["groups"].delete(keys)
            if self._is_last:
                # Without the group's own columns: a key column may be called as one of them is.
                rows = columns_of(keys, found.select(self._stored.names))
                yield self._stored.rows(pa.table(rows), micros(found[ROW_TIME]))
        states["ends"].delete_due(watermark)


@dataclass(frozen=True)
class Opened:
    """The rows that open a group, and when the newest group of each key ends."""

    opens: Any
    until: Any


def opened(ids: Any, times: Any, until: Any, within: int | None) -> Opened:
    """Rows of keys `ids`; a key's rows come in the order of their times, and `until` is the end of its open group.

    Each round opens at most one group per key, so that there are as many rounds as groups of one key.
    """
    opens, until = np.zeros(len(ids), dtype=bool), until.copy()
    left = np.arange(len(ids))
    while True:
        left = left[times[left] > until[ids[left]]]
        if not len(left):
            return Opened(opens, until)
        first = np.full(len(until), -1, dtype=np.int64)
        first[ids[left[::-1]]] = left[::-1]
        heads = first[first >= 0]
        opens[heads] = True
        until[ids[heads]] = FOREVER if within is None else np.minimum(times[heads] + within, FOREVER)

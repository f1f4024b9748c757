"""The last row of each key, put out whenever it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.keys import key_columns, one_of_each
from stateflow.operators.ready.grouping.latest_rows import LatestRows
from stateflow.operators.ready.grouping.winners import displaces, winners
from stateflow.operators.ready.windows.assigning import INSTANT, event_times
from stateflow.operators.ready.windows.stored_rows import StoredRows
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.latest import Latest
from stateflow.pipelines.ready.operators import ROW_TIME, Deduplicate, stored_name


class LatestOfEach(ColumnarOperator):
    """Of a deduplication without an end the last row by event time, of others by the declared order."""

    def __init__(self, declared: Latest | Deduplicate) -> None:
        self.states = declared.states
        (self._state,) = declared.states
        self._key = declared.key
        self._time, by = (declared.time, ()) if isinstance(declared, Deduplicate) else ("", declared.order)
        self._stored = StoredRows(declared.uid, declared.rows, declared.kept, self._time)
        order = [(stored_name(each.removeprefix("-")), each.startswith("-")) for each in by]
        if self._time:
            order.append((ROW_TIME, False))
        # Of rows at the same place the one with the largest values is the last, column after column.
        order += [(name, False) for name in self._stored.names]
        # Its first column tells whether there is a row.
        self._order = [(self._stored.names[0], False), *order]
        self._latest = LatestRows(declared.key, declared.key_columns)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        columns = key_columns(rows, self._key)
        groups = grouped(columns, rows.num_rows)
        stored = self._stored.of_rows(rows)
        if self._time:
            times, valid = event_times(rows, self._time)
            stored = stored.append_column(ROW_TIME, pa.array(times, INSTANT, mask=~valid))
        best = winners(self._ordered(stored), groups.ids, groups)
        keys, after = one_of_each(columns, self._key, best), stored.take(pa.array(best))
        before = self._ordered(states[self._state].get(keys))
        changed = pa.array(displaces(before, [after[name] for name, _ in self._order]))
        states[self._state].put(keys.filter(changed), after.filter(changed))
        yield from self._latest.put(rows.take(pa.array(best).filter(changed)), rows)

    def _ordered(self, stored: pa.Table) -> list[tuple[Any, bool]]:
        """Each column with whether its smallest value wins."""
        return [(whole(stored[name]), descends) for name, descends in self._order]

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        yield from self._latest.rest()

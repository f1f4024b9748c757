"""The last row of each key, put out whenever it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.keys import key_columns, one_of_each
from stateflow.operators.ready.grouping.latest_rows import LatestRows
from stateflow.operators.ready.grouping.winners import takes_over, winners
from stateflow.operators.ready.windows.stored_rows import StoredRows
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.latest import Latest
from stateflow.pipelines.ready.operators import stored_name


class LatestOfEach(ColumnarOperator):
    def __init__(self, declared: Latest) -> None:
        self.states = declared.states
        self._key = declared.key
        self._state = declared.state
        self._stored = StoredRows(declared.uid, declared.rows, declared.kept)
        order = [(stored_name(by.removeprefix("-")), by.startswith("-")) for by in declared.order]
        # Of rows at the same place the one with the largest values is the last, column after column.
        self._order = [*order, *((name, False) for name in self._stored.names)]
        self._latest = LatestRows(declared.key, declared.key_columns)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        columns = key_columns(rows, self._key)
        groups = grouped(columns, rows.num_rows)
        stored = self._stored.of_rows(rows)
        best = winners(self._ordered(stored), groups.ids, groups)
        keys, after = one_of_each(columns, self._key, best), stored.take(pa.array(best))
        before = states[self._state].get(keys)
        is_new = whole(before[self._stored.names[0]]).is_null().to_numpy(zero_copy_only=False)
        wins = takes_over(self._ordered(before), [whole(after[name]) for name, _ in self._order])
        changed = pa.array(wins | is_new)
        states[self._state].put(keys.filter(changed), after.filter(changed))
        yield from self._latest.put(rows.take(pa.array(best).filter(changed)), rows)

    def _ordered(self, stored: pa.Table) -> list[tuple[Any, bool]]:
        """Each column with whether its smallest value wins."""
        return [(whole(stored[name]), descends) for name, descends in self._order]

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        yield from self._latest.rest()

"""Running aggregates: per key over all of its rows so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from stateflow.operators.combined import Combinable
from stateflow.operators.ready.aggregates.accumulator import Accumulator
from stateflow.operators.ready.aggregates.distinct import Seen
from stateflow.operators.ready.grouping.dead_letters import Produced, letters_of
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.operators.ready.grouping.keys import columns_of, grouped_by_key
from stateflow.operators.ready.grouping.latest_rows import LatestRows
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import RunningAggregate


class RunningAggregates(Combinable):
    """Puts out a row per key and batch with rows of the key."""

    def __init__(self, declared: RunningAggregate) -> None:
        self.states = declared.states
        self._key = declared.key
        self._uid = declared.uid
        self._accumulator = Accumulator(declared.where, declared.aggregates, diverts=declared.diverts)
        self._latest = LatestRows(declared.key, declared.key_columns)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        came, state = rows, states["aggregates"]
        while True:
            groups, keys = grouped_by_key(rows, self._key)
            seen = Seen(states)
            try:
                partials = self._accumulator.create(rows, groups, keys, seen)
                merged = self._accumulator.merge(state.get(keys), partials, keys)
                results = self._accumulator.results(merged, keys)
                break
            except FailedGroups as failed:
                yield from letters_of(self._uid, failed, keys, rows, groups.ids, ctx)
                rows = rows.filter(pa.array(~failed.among(groups.ids)))
        self.groups += max(groups.size, seen.values)
        seen.keep()
        state.put(keys, merged)
        yield from self._latest.put(pa.table({**columns_of(keys), **results}), came)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        yield from self._latest.rest()

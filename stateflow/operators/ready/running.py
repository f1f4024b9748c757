"""Running aggregates: per key over all of its rows so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from stateflow.operators.combined import Combinable
from stateflow.operators.ready.accumulator import Accumulator
from stateflow.operators.ready.distinct import Seen
from stateflow.operators.ready.groups import grouped
from stateflow.operators.ready.keys import key_columns, one_of_each
from stateflow.operators.ready.latest_rows import LatestRows
from stateflow.pipelines.columnar import ColumnarContext
from stateflow.pipelines.ready import RunningAggregate


class RunningAggregates(Combinable):
    """Puts out a row per key and batch with rows of the key."""

    def __init__(self, declared: RunningAggregate) -> None:
        self.states = declared.states
        self._key = declared.key
        self._accumulator = Accumulator(declared.where, declared.aggregates)
        self._latest = LatestRows(declared.key, declared.key_columns)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        columns = key_columns(rows, self._key)
        groups = grouped(columns, rows.num_rows)
        self.groups += groups.size
        keys = one_of_each(columns, self._key, groups.firsts)
        state = states["aggregates"]
        partials = self._accumulator.create(rows, groups, keys, Seen(states))
        merged = self._accumulator.merge(state.get(keys), partials, keys)
        state.put(keys, merged)
        results = self._accumulator.results(merged, keys)
        yield from self._latest.put(pa.table({**_columns(keys), **results}), rows)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        yield from self._latest.rest()


def _columns(table: pa.Table) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))

"""Picks the pairs of rows that fulfil the join's further condition, among those with one key and matching times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.row_blocks import Rows
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.windows.assigning import instants
from stateflow.pipelines.conditions.evaluation import holds
from stateflow.pipelines.ready.joined_columns import KEY, LEFT
from stateflow.pipelines.ready.joins import JoinOperator, Side


class Partners:
    def __init__(self, declared: JoinOperator) -> None:
        self._declared = declared
        condition = declared.condition
        self._sources = {} if condition is None else {each.field: each for each in condition.sources}

    def among(
        self, keys: pa.Table, owners: Any, left: Rows, at_left: Any, right: Rows, at_right: Any
    ) -> tuple[Any, Any]:
        """The pairs of left and right rows, given by their places, that fulfil the condition. `owners` has the place of each
        pair's key in `keys`."""
        condition = self._declared.condition
        if condition is None or not len(at_left):
            return at_left, at_right

        def column(name: str) -> Any:
            source = self._sources[name]
            if source.of == KEY:
                return whole(keys[source.column]).take(pa.array(owners))
            if source.of == LEFT:
                return side_column(left, self._declared.left, source.column).take(pa.array(at_left))
            return side_column(right, self._declared.right, source.column).take(pa.array(at_right))

        fulfil = holds(condition.expression, column, len(at_left))
        return at_left[fulfil], at_right[fulfil]

    def of_each(self, keys: pa.Table, owners: Any, left: Rows, right: Rows, partner: Any) -> Any:
        """For each left row the place of its partner, below zero where it has none or does not fulfil the condition with it."""
        places = np.flatnonzero(partner >= 0)
        fulfil, _ = self.among(keys, owners[places], left, places, right, partner[places])
        chosen = np.full(len(partner), -1)
        chosen[fulfil] = partner[fulfil]
        return chosen


def side_column(rows: Rows, side: Side, name: str) -> Any:
    return instants(rows.at) if name == side.time else whole(rows.columns[name])

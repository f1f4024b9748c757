"""What the engine of every join has: layouts of both sides' rows, what is made of partners, late rows."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from stateflow.operators.joins.arrivals import LateSides
from stateflow.operators.joins.joined_rows import JoinedRows
from stateflow.operators.joins.row_blocks import RowBlocks
from stateflow.operators.joins.row_state import RowState
from stateflow.operators.ready.windows.windowed import later
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.joins import JoinOperator


class Joining(ColumnarOperator):
    null_keys = True

    def __init__(self, declared: JoinOperator, read: Set[str] = frozenset()) -> None:
        """`read` names the outputs that have a reader."""
        self.states = declared.states
        self._declared = declared
        self._layouts = tuple(RowBlocks.of_side(side) for side in (declared.left, declared.right))
        self._stored = tuple(RowState(declared.where, layout) for layout in self._layouts)
        self._joined = JoinedRows(declared)
        self._late = LateSides(frozenset(read))
        self._key = list(declared.key_columns)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return later(super().next_due(states), 0)

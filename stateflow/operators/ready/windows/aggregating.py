"""What the engine of every aggregate per window has."""

from __future__ import annotations

from stateflow.operators.ready.aggregates.accumulator import Accumulator
from stateflow.operators.ready.aggregates.closing import Closing
from stateflow.operators.ready.windows.late_rows import LateRows
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.operators import WindowAggregate


class Aggregating(ColumnarOperator):
    def __init__(self, declared: WindowAggregate, late: LateRows) -> None:
        self.states = declared.states
        self.waits = declared.lateness
        self._declared = declared
        self._late = late
        self._key = declared.key
        self._accumulator = Accumulator(declared.where, declared.aggregates, diverts=declared.diverts)
        self._closing = Closing(declared.uid, self._accumulator)

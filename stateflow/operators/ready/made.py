"""From what a pipeline declares to what a task runs."""

from __future__ import annotations

from stateflow.operators.ready.running import RunningAggregates
from stateflow.operators.ready.sessions import SessionAggregates
from stateflow.operators.ready.windowed import WindowedAggregates
from stateflow.pipelines.columnar import ColumnarOperator
from stateflow.pipelines.ready import RunningAggregate, WindowAggregate
from stateflow.pipelines.windows import Session


def runnable(operator: ColumnarOperator) -> ColumnarOperator:
    """The operator itself, unless it is one that a pipeline only declares."""
    match operator:
        case RunningAggregate():
            return RunningAggregates(operator)
        case WindowAggregate(window=Session()):
            return SessionAggregates(operator)
        case WindowAggregate():
            return WindowedAggregates(operator)
    return operator

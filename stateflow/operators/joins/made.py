"""Makes the operators that a task runs from a pipeline's declarations: joins and enrichment, and all of `operators/ready`."""

from __future__ import annotations

from collections.abc import Set

from stateflow.operators.joins.asof import AsofJoined
from stateflow.operators.joins.enriched import Enriched
from stateflow.operators.joins.in_sessions import JoinedInSessions
from stateflow.operators.joins.interval import IntervalJoined
from stateflow.operators.joins.latest import LatestJoined
from stateflow.operators.joins.windowed import WindowJoined
from stateflow.operators.ready import made
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.enrichment import Enrich
from stateflow.pipelines.ready.joins import AsofJoin, IntervalJoin, LatestJoin, WindowJoin
from stateflow.pipelines.ready.windows import Session


def runnable(operator: ColumnarOperator, read: Set[str]) -> ColumnarOperator:
    """The operator that runs: made from a declaration, or the operator itself. `read` names its outputs that have a reader."""
    runs = _made(operator, read)
    if runs is not operator:
        # User code of its own gets the types that it knows.
        runs.is_wide = True
    return runs


def _made(operator: ColumnarOperator, read: Set[str]) -> ColumnarOperator:
    match operator:
        case IntervalJoin():
            return IntervalJoined(operator, read)
        case AsofJoin():
            return AsofJoined(operator, read)
        case Enrich():
            return Enriched(operator)
        case LatestJoin():
            return LatestJoined(operator)
        case WindowJoin(window=Session()):
            return JoinedInSessions(operator, read)
        case WindowJoin():
            return WindowJoined(operator, read)
    return made.runnable(operator, read)

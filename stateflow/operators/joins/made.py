"""Makes the operators that a task runs from a pipeline's declarations: those of this folder and those of `operators/ready`."""

from __future__ import annotations

from collections.abc import Set

from stateflow.operators.joins.asof import AsofJoined
from stateflow.operators.joins.enriched import Enriched
from stateflow.operators.joins.in_sessions import JoinedInSessions
from stateflow.operators.joins.interval import IntervalJoined
from stateflow.operators.joins.latest import LatestJoined
from stateflow.operators.joins.windowed import WindowJoined
from stateflow.operators.ready.latest import LatestOfEach
from stateflow.operators.ready.running import RunningAggregates
from stateflow.operators.ready.top import TopRows
from stateflow.operators.ready.windows.counted import CountedAggregates
from stateflow.operators.ready.windows.deduplicating import Deduplicated, FirstToCome
from stateflow.operators.ready.windows.late_rows import LateRows, late_rows_of
from stateflow.operators.ready.windows.sessions import SessionAggregates
from stateflow.operators.ready.windows.sliced import SlicedAggregates
from stateflow.operators.ready.windows.window_code import CodePerWindow
from stateflow.operators.ready.windows.windowed import WindowedAggregates
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.enrichment import Enrich
from stateflow.pipelines.ready.joins import AsofJoin, IntervalJoin, LatestJoin, WindowJoin
from stateflow.pipelines.ready.latest import Latest
from stateflow.pipelines.ready.operators import LATE, Deduplicate, RunningAggregate, WindowAggregate
from stateflow.pipelines.ready.window_process import WindowCode
from stateflow.pipelines.ready.windows import Counted, Session
from stateflow.pipelines.top import Top


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
        case RunningAggregate():
            return RunningAggregates(operator)
        case WindowAggregate(window=Session()):
            return SessionAggregates(operator, late_rows_of(operator, read))
        case WindowAggregate(window=Counted()):
            return CountedAggregates(operator, LateRows(wanted=LATE in read))
        case WindowAggregate() if "panes" in operator.states:
            return SlicedAggregates(operator, late_rows_of(operator, read))
        case WindowAggregate():
            return WindowedAggregates(operator, late_rows_of(operator, read))
        case Deduplicate(time=""):
            return FirstToCome(operator)
        case Deduplicate(keep="last", within=None) | Latest():
            return LatestOfEach(operator)
        case Deduplicate():
            return Deduplicated(operator, LateRows(wanted=LATE in read))
        case WindowCode(inner=WindowAggregate() as inner):
            return CodePerWindow(operator, _made(inner, read))
        case Top():
            return TopRows(operator)
    return operator

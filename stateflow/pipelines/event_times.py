"""Finds the column of a stream's event time: the user names it, or the sources of the rows do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stateflow.errors import UsageError
from stateflow.pipelines.graph import GroupedRows, KeyedNode, Node, NodeRows, SourceNode
from stateflow.pipelines.held_back import before_and, behind, of_any_time
from stateflow.pipelines.ready.operators import Deduplicate, ReadyOperator
from stateflow.pipelines.ready.windows import event_time


@dataclass(frozen=True)
class EventTime:
    """The times that an operator goes by."""

    column: str
    """Empty: no event time."""
    held_back: int = 0
    """How far its watermark is behind that of the batch, in microseconds."""


def has_event_time(stream: NodeRows) -> bool:
    return any(isinstance(node, SourceNode) and node.event_time for node in before_and(stream.node))


def time_column(uid: str, stream: NodeRows, named: str = "") -> EventTime:
    """The column of a stream's event time. Refuses a stream whose delay behind the watermark is not known."""
    known = behind(stream)
    names = stream.rows.names if stream.rows is not None else ()
    offered = [name for name in names if isinstance(known.columns.get(name), int)]
    column = _column(uid, stream, named, offered)
    length = known.of(column)
    if isinstance(length, str):
        raise UsageError(f"operator {uid!r} cannot go by the time of column {column!r}: {length}")
    return EventTime(column, length)


def known_time(uid: str, stream: NodeRows, named: str = "") -> EventTime:
    """The same for a step that needs no event time; empty when the stream has none."""
    return time_column(uid, stream, named) if named or has_event_time(stream) else EventTime("")


def ordering_time(uid: str, stream: NodeRows, order_by: Sequence[str]) -> str:
    """The same where event time only tells which row is newer, after `order_by`: nothing is late there. Empty when `order_by` alone
    tells it, for rows that have lost their time."""
    if not has_event_time(stream):
        return ""
    for before, operator in _ready(stream.node):
        if operator.holds_back and not isinstance(operator, Deduplicate):
            if order_by:
                return ""
            raise UsageError(
                f"operator {uid!r}: which of the {operator.holds_back} of operator {before!r} is newer does not show: say "
                "key_by(..., order_by=...), such as order_by='window_end'"
            )
    columns, rows = _of_sources(stream), stream.rows
    if rows is None or (len(columns) == 1 and columns.issubset(rows.names)):
        return _column(uid, stream)
    if order_by:
        return ""
    lost = "have several columns of event time" if len(columns) > 1 else "have lost the event time"
    raise UsageError(
        f"operator {uid!r}: which row of a key is newer does not show, for its rows {lost} ({', '.join(sorted(columns))}): say "
        f"key_by(..., order_by=...) with one of {', '.join(rows.names)}"
    )


def splitting_source(node: Node) -> str:
    """A source of the node's rows that splits off its late rows; empty when there is none."""
    sources = (each for each in before_and(node) if isinstance(each, SourceNode) and each.late is not None)
    return next((source.uid for source in sources), "")


def splitting_operator(node: Node) -> str:
    """An operator before the node that keeps late rows from it; empty when there is none."""
    before = (each for stream in node.inputs for each in _ready(stream.node))
    return next((uid for uid, each in before if each.waits_for_watermark), "")


def time_columns(
    uid: str, left: GroupedRows, right: GroupedRows, left_time: str, right_time: str
) -> tuple[tuple[str, str], int]:
    """The columns of the event times of both inputs, and how far the operator is held back."""
    times = time_column(uid, left.stream, left_time), time_column(uid, right.stream, right_time)
    return (times[0].column, times[1].column), max(each.held_back for each in times)


def held_back(uid: str, inputs: Sequence[GroupedRows], timers: str) -> int:
    """How far the watermark of user code is behind that of a batch. `timers` names what the code has that follows the
    watermark. If that is empty, the code can only ask for the watermark, and without a known length it gets that of the
    batch."""
    streams = [keyed.stream for keyed in inputs]
    length = of_any_time(streams)
    if isinstance(length, int):
        return length
    if not timers or not any(map(has_event_time, streams)):
        return 0
    raise UsageError(
        f"operator {uid!r} has {timers}, and how far the times of its rows are behind the watermark does not show: {length}"
    )


def _column(uid: str, stream: NodeRows, named: str = "", offered: Sequence[str] = ()) -> str:
    return event_time(uid, stream.rows, _of_sources(stream), named, offered)


def _of_sources(stream: NodeRows) -> set[str]:
    """The columns of event time of the sources that the rows come from."""
    return {
        node.event_time
        for node in before_and(stream.node)
        if isinstance(node, SourceNode) and node.event_time
    }


def _ready(node: Node) -> Iterator[tuple[str, ReadyOperator]]:
    """The ready-made operators that a node's rows come from, itself among them."""
    for before in before_and(node):
        if isinstance(before, KeyedNode) and isinstance(before.columnar, ReadyOperator):
            yield before.uid, before.columnar

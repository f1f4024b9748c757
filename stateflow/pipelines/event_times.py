"""Which column of a step's input has the event time: that of the sources that the rows come from."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.pipelines.graph import GroupedRows, KeyedNode, Node, NodeRows, SourceNode
from stateflow.pipelines.ready import ReadyOperator
from stateflow.pipelines.windows import event_time, refuse_what_is_held_back


def has_event_time(stream: NodeRows) -> bool:
    return any(isinstance(node, SourceNode) and node.event_time for node in _before(stream.node))


def time_column(uid: str, stream: NodeRows, named: str = "") -> str:
    """The column of a stream that has its event time."""
    before = list(_before(stream.node))
    for node in before:
        if (
            isinstance(node, KeyedNode)
            and isinstance(node.columnar, ReadyOperator)
            and node.columnar.holds_back
        ):
            refuse_what_is_held_back(uid, node.uid, node.columnar.holds_back)
    names = {node.event_time for node in before if isinstance(node, SourceNode) and node.event_time}
    return event_time(uid, stream.rows, names, named)


def known_time(uid: str, stream: NodeRows) -> str:
    """The same where a step can do without; empty when the stream has no event time."""
    return time_column(uid, stream) if has_event_time(stream) else ""


def time_columns(
    uid: str, left: GroupedRows, right: GroupedRows, left_time: str, right_time: str
) -> tuple[str, str]:
    """The columns of the event times of both inputs."""
    return time_column(uid, left.stream, left_time), time_column(uid, right.stream, right_time)


def _before(node: Node) -> Iterator[Node]:
    """The node, and all nodes that its rows come from."""
    yield node
    for stream in node.inputs:
        yield from _before(stream.node)

"""Which column of a step's input has the event time: that of the sources that the rows come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateflow.errors import UsageError
from stateflow.pipelines.columnar import ColumnarOperator
from stateflow.pipelines.graph import GroupedRows, KeyedNode, Node, NodeRows, SourceNode
from stateflow.pipelines.ready import Deduplicate, ReadyOperator
from stateflow.pipelines.windows import event_time, refuse_what_is_held_back


def has_event_time(stream: NodeRows) -> bool:
    return any(isinstance(node, SourceNode) and node.event_time for node in _before(stream.node))


def time_column(uid: str, stream: NodeRows, named: str = "") -> str:
    """The column of a stream that has its event time. Refuses a stream whose rows are late for what follows."""
    for before, operator in _ready(stream.node):
        if operator.holds_back:
            refuse_what_is_held_back(uid, before, operator.holds_back)
    return _column(uid, stream, named)


def known_time(uid: str, stream: NodeRows) -> str:
    """The same where a step can do without; empty when the stream has no event time."""
    return time_column(uid, stream) if has_event_time(stream) else ""


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
    return _column(uid, stream)


def splitting_source(node: Node) -> str:
    """A source of the node's rows that splits off its late rows; empty when there is none."""
    sources = (each for each in _before(node) if isinstance(each, SourceNode) and each.late is not None)
    return next((source.uid for source in sources), "")


def splitting_operator(node: Node) -> str:
    """An operator before the node that keeps late rows from it; empty when there is none."""
    before = (each for stream in node.inputs for each in _ready(stream.node))
    return next((uid for uid, each in before if isinstance(each, Deduplicate) and each.sides), "")


def time_columns(
    uid: str, left: GroupedRows, right: GroupedRows, left_time: str, right_time: str
) -> tuple[str, str]:
    """The columns of the event times of both inputs."""
    return time_column(uid, left.stream, left_time), time_column(uid, right.stream, right_time)


def comes_when_reached(node: Node) -> bool:
    """Whether rows come to a node from an operator that puts them out when the watermark has reached them."""
    return any(_waits(before) for stream in node.inputs for before in _before(stream.node))


def _waits(node: Node) -> bool:
    """Whether an operator puts out rows in the very batch whose watermark reaches their time: by a timer, say."""
    if not isinstance(node, KeyedNode):
        return False
    if isinstance(node.columnar, ReadyOperator):
        return node.columnar.waits_for_watermark
    if isinstance(node.columnar, ColumnarOperator):
        return node.columnar.fires
    declared = node.process_type.declarations() if node.process_type is not None else None
    return declared is not None and any(timer.time == "event" for timer in declared.timers.values())


def _column(uid: str, stream: NodeRows, named: str = "") -> str:
    names = {
        node.event_time for node in _before(stream.node) if isinstance(node, SourceNode) and node.event_time
    }
    return event_time(uid, stream.rows, names, named)


def _ready(node: Node) -> Iterator[tuple[str, ReadyOperator]]:
    """The ready-made operators that a node's rows come from, itself among them."""
    for before in _before(node):
        if isinstance(before, KeyedNode) and isinstance(before.columnar, ReadyOperator):
            yield before.uid, before.columnar


def _before(node: Node) -> Iterator[Node]:
    """The node, and all nodes that its rows come from."""
    yield node
    for stream in node.inputs:
        yield from _before(stream.node)

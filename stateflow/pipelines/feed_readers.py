"""Who reads the feeds of a pipeline's states."""

from __future__ import annotations

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode


def fed_by(flow: Flow, reader: KeyedNode | SinkNode) -> tuple[tuple[str, str], ...]:
    """The feeds that reach an operator or a sink, by operator and state."""
    return tuple(
        (node.uid, feed.state)
        for node in flow.operators
        for output, feed in node.feeds.items()
        if any(reader in each for each in readers_of(flow, node, output))
    )


def readers_of(flow: Flow, node: Node, output: str) -> tuple[list[SinkNode], list[KeyedNode]]:
    """The sinks and the operators that rows of an output reach without an operator in between."""
    sinks, operators = [], []
    ahead = [reader for reader, rows in flow.consumers(node) if rows.output == output]
    while ahead:
        at = ahead.pop()
        if isinstance(at, SinkNode):
            sinks.append(at)
        elif isinstance(at, KeyedNode):
            operators.append(at)
        else:
            ahead += [reader for reader, _ in flow.consumers(at)]
    return sinks, operators

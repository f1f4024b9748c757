"""Where an operator runs, and where the rows of each of its outputs go: one decision, without Spark.

- `in_sink`: the operator runs in the job of a sink, which writes the main output in the stage that computes it. So it is where that
  sink is the only reader. Between them may be steps that make each row by itself, if Spark alone writes the sink's rows.
- `own_job`: any other operator runs in a job of its own, before the sinks prepare.
- `staged`: all other outputs that have readers go to files. The tasks' acks list the files, and every reader gets that list.

Only a plan of Spark's shows whether steps make each row by itself (`in_one_stage`). The decision takes that as given; what the batches of
a run have seen of it goes from each to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode, TransformNode, UnionNode
from stateflow.pipelines.processes.operator_spec import MAIN


@dataclass(frozen=True)
class Route:
    """The route of one operator's rows."""

    staged: frozenset[str]
    """The outputs that go to files."""
    in_sink: SinkNode | None = None
    """The sink in whose job the operator runs, and to which its main output goes; None: it runs in a job of its own."""
    steps: tuple[Node, ...] = ()
    """Between the operator and that sink, in the order of a row."""

    @property
    def own_job(self) -> bool:
        return self.in_sink is None


Routes = Mapping[str, Route]
"""By the operator's uid."""


def routes_of(flow: Flow) -> dict[str, Route]:
    """The routes of a flow, as long as no batch has shown that steps cause a second stage."""
    return {operator.uid: route_of(flow, operator) for operator in flow.operators}


def route_of(flow: Flow, operator: KeyedNode, *, in_one_stage: bool = True) -> Route:
    """`in_one_stage`: False once a batch has shown that steps take the operator's rows into another stage. They will hardly change."""
    read = flow.read_outputs(operator)
    sides = [reader for reader, rows in flow.consumers(operator) if rows.output != MAIN]
    if all(_only_for_sinks(flow, side) for side in sides) and (way := _way_to_sink(flow, operator)):
        *steps, sink = way
        assert isinstance(sink, SinkNode)
        if not steps or (in_one_stage and sink.sink_kind.written_by_spark):
            return Route(read - {MAIN}, sink, tuple(steps))
    return Route(read)


def _way_to_sink(flow: Flow, operator: KeyedNode) -> list[Node]:
    """The steps to the one sink that reads the main output, and that sink; empty if another operator, or several nodes read it."""
    way: list[Node] = []
    at: Node = operator
    while not isinstance(at, SinkNode):
        readers = [reader for reader, rows in flow.consumers(at) if rows.output == MAIN]
        if len(readers) != 1 or not isinstance(readers[0], SinkNode | TransformNode):
            return []
        way.append(at := readers[0])
    return way


def _only_for_sinks(flow: Flow, reader: Node) -> bool:
    """Whether what it reads ends in sinks alone. An operator would want the rows before the sinks prepare."""
    if isinstance(reader, TransformNode | UnionNode):
        return all(_only_for_sinks(flow, each) for each, _ in flow.consumers(reader))
    return isinstance(reader, SinkNode)

"""Where the rows of each operator go.

- In its sink's job: the operator has one reader, a sink that writes the rows in the stage that computes them. Between an operator and
  a sink whose rows Spark alone writes there may be steps that make each row by itself.
- Through files: any other operator runs in a job of its own. Its tasks write the rows that have readers to files, their acks
  list the files, and every reader gets that list.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode, TransformNode
from stateflow.pipelines.processes.operator_spec import MAIN


@dataclass
class Routes:
    """The routes of a run's batches."""

    flow: Flow
    _apart: set[str] = field(default_factory=set)
    """Uids of operators whose rows a step takes into another stage, as far as batches have shown."""

    def sink_of(self, operator: KeyedNode) -> SinkNode | None:
        """The sink in whose job the operator runs; None: its rows go through files."""
        at: Node = operator
        while True:
            readers = self.flow.consumers(at)
            if len(readers) != 1 or readers[0][1].output != MAIN:
                return None
            reader = readers[0][0]
            if isinstance(reader, SinkNode):
                through_steps = reader.sink_kind.written_by_spark and operator.uid not in self._apart
                return reader if at is operator or through_steps else None
            if not isinstance(reader, TransformNode):
                return None
            at = reader

    def operator_of(self, sink: SinkNode) -> KeyedNode | None:
        """The operator that runs in a sink's job."""
        at = sink.inputs[0].node
        while isinstance(at, TransformNode):
            at = at.inputs[0].node
        return at if isinstance(at, KeyedNode) and self.sink_of(at) is sink else None

    def steps_between(self, operator: KeyedNode) -> list[Node]:
        """The steps between an operator and its sink, in the order of a row."""
        steps: list[Node] = []
        at = self.flow.consumers(operator)[0][0]
        while not isinstance(at, SinkNode):
            steps.append(at)
            at = self.flow.consumers(at)[0][0]
        return steps

    def keep_apart(self, operator: KeyedNode) -> None:
        """From now on the operator's rows go through files: the steps behind it will hardly change."""
        self._apart.add(operator.uid)

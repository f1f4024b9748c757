"""Where the rows of each operator go.

- In its sink's job: the rows have one reader, a sink that writes them in the stage that computes them. Between an operator and
  a sink whose rows Spark alone writes there may be steps that make each row by itself. Side outputs and feeds go to files meanwhile, for
  other sinks.
- Through files: any other operator runs in a job of its own. Its tasks write the rows that have readers to files, their acks
  list the files, and every reader gets that list.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode, TransformNode, UnionNode
from stateflow.pipelines.processes.operator_spec import MAIN


@dataclass
class Routes:
    """The routes of a run's batches."""

    flow: Flow
    _apart: set[str] = field(default_factory=set)
    """Uids of operators whose rows a step takes into another stage, as far as batches have shown."""

    def sink_of(self, operator: KeyedNode) -> SinkNode | None:
        """The sink in whose job the operator runs; None: its rows go through files."""
        sides = [reader for reader, rows in self.flow.consumers(operator) if rows.output != MAIN]
        if not all(map(self._only_for_sinks, sides)):
            return None
        at: Node = operator
        while True:
            readers = self._readers(at)
            if len(readers) != 1:
                return None
            reader = readers[0]
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
        at = self._readers(operator)[0]
        while not isinstance(at, SinkNode):
            steps.append(at)
            at = self._readers(at)[0]
        return steps

    def _readers(self, node: Node) -> list[Node]:
        """Those of its main output."""
        return [reader for reader, rows in self.flow.consumers(node) if rows.output == MAIN]

    def _only_for_sinks(self, reader: Node) -> bool:
        """Whether what it reads ends in sinks alone. An operator would want the rows before the sinks prepare."""
        if isinstance(reader, TransformNode | UnionNode):
            return all(self._only_for_sinks(each) for each, _ in self.flow.consumers(reader))
        return isinstance(reader, SinkNode)

    def keep_apart(self, operator: KeyedNode) -> None:
        """From now on the operator's rows go through files: the steps behind it will hardly change."""
        self._apart.add(operator.uid)

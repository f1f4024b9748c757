"""A pipeline as a graph: its nodes, and the rows between them.

Every source, operator and sink takes its uid first: state, offsets and outputs are found again by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stateflow.errors import UsageError
from stateflow.format.layout import checked_name
from stateflow.pipelines.inputs.input import Input
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.processes.process import Output, Process
from stateflow.pipelines.ready.aggregates import Aggregate
from stateflow.pipelines.rows.row_type import RowType
from stateflow.pipelines.sink_kinds import DELTA_APPEND, SinkKind


@dataclass(frozen=True, eq=False)
class Node:
    """A step of the graph; inputs are outputs of earlier nodes."""

    kind: ClassVar[str] = ""
    """source, operator, sink; empty for a step that has no uid of the user's."""

    uid: str
    inputs: tuple[NodeRows, ...] = ()

    @property
    def named(self) -> str:
        """For messages: steps of several kinds may have one uid."""
        return f"{self.kind} {self.uid!r}" if self.kind else self.uid


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    kind: ClassVar[str] = "source"

    factory: Input = field(kw_only=True)
    rows: RowType | None = None
    event_time: str | None = None
    watermark: int | None = None
    """How far it is behind the newest event time, in microseconds."""
    per_partition: bool = False
    """Whether the newest event time is that of the partition that is furthest behind."""
    late: Output[Any] | None = None


@dataclass(frozen=True, eq=False)
class TransformNode(Node):
    function: Callable[..., Any] = lambda frame: frame


@dataclass(frozen=True, eq=False)
class UnionNode(Node):
    pass


@dataclass(frozen=True)
class StateFeed:
    """The changes of a state as rows."""

    state: str
    rows: RowType


@dataclass(frozen=True, eq=False)
class KeyedNode(Node):
    """An operator; `keyed` repeats how each input is keyed, by no column at all in `process_partition`."""

    kind: ClassVar[str] = "operator"

    keyed: tuple[GroupedRows, ...] = ()
    process: Callable[[], Process[Any]] | None = None
    process_type: type[Process[Any]] | None = None
    columnar: ColumnarOperator | None = None
    """In place of `process`: it gets tables instead of rows."""
    forgets: frozenset[str] = frozenset()
    """Of a columnar operator: see `Process.forgets`."""
    rows: tuple[RowType | None, ...] = ()
    output: RowType | None = None
    sides: Mapping[str, RowType] = field(default_factory=dict)
    on_error: str = "fail"
    dead_letter_threshold: int | None = None
    broadcast: Mapping[str, NodeRows] = field(default_factory=dict)
    parallelism: int = 0
    """How many subtasks the operator has; 0 for as many as the run has by its options."""
    held_back: int = 0
    """How far the operator's watermark is behind that of a batch, in microseconds: see `held_back.py`."""
    feeds: Mapping[str, StateFeed] = field(default_factory=dict)
    """The feeds of its states, by the name of the output that each is."""

    @property
    def outputs(self) -> dict[str, RowType | None]:
        """The rows of all outputs: the main one, those to the side, and the feeds."""
        return {MAIN: self.output, **self.sides, **{name: feed.rows for name, feed in self.feeds.items()}}

    @property
    def has_key(self) -> bool:
        return any(keyed.columns for keyed in self.keyed)


@dataclass(frozen=True, eq=False)
class SinkNode(Node):
    kind: ClassVar[str] = "sink"

    target: Any = None
    sink_kind: SinkKind = DELTA_APPEND
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        return self.sink_kind.mode

    @property
    def place(self) -> str:
        """Where it writes to, in one spelling; empty if that is no place."""
        return self.sink_kind.place(self.target)

    @property
    def output(self) -> str:
        """The same for people."""
        return self.sink_kind.named(self.target)


@dataclass(frozen=True)
class FormerChanges:
    """What the rows were as changes, before `.changes_as_rows`."""

    keys: tuple[str, ...]
    """The columns by which they replaced each other, and those that follow from these: a row has the values of the one before."""
    deletes: bool
    """Whether some of them say that a row is gone."""
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    """The columns that are aggregates, as far as the graph shows it."""
    counted: bool = False
    """Whether later operators count each change by itself."""
    forgets: bool = False
    """Whether the aggregates of a key begin anew when it was forgotten after a `ttl`."""
    operation: str = ""
    """The column that says what each change was; empty when it is not one for all rows."""

    def keys_have(self, columns: Iterable[str]) -> bool:
        """Whether these columns stay as they are when a row is replaced."""
        return set(self.keys).issuperset(columns)

    def moving(self, group: Iterable[str]) -> str:
        """The column of a group that a row may leave when another one replaces it; empty for none."""
        stays = {*self.keys, *(() if self.deletes else (self.operation,))}
        return next((name for name in group if name not in stays), "")


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Rows that a node puts out."""

    flow: Graph
    node: Node
    output: str
    rows: RowType | None
    """None when the columns are known only to Spark."""
    changes: tuple[str, ...] | None = None
    """The columns by which a row replaces the one before; None when rows are only added."""
    operation: str = ""
    """The column that says of each change whether it is an upsert or a delete; empty when none is a delete."""
    former: FormerChanges | None = None
    """What they were as changes, after `.changes_as_rows`; else None."""


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Rows of a node, grouped by key columns; rows of a key come in the order of `order_by`."""

    stream: NodeRows
    columns: tuple[str, ...]
    order_by: tuple[str, ...]


class Graph:
    """The nodes of a pipeline, in the order in which they were declared."""

    def __init__(self, name: str) -> None:
        self.name = checked_name("pipeline", name)
        self.allow_non_restored_state = False
        """Whether whoever runs it lets go of state and sources that it lacks (`compatibility.non_restored`)."""
        self.nodes: list[Node] = []
        self._taken: set[tuple[str, str]] = set()
        """Uids by kind: a record keeps offsets, state and outputs apart, so a source and a sink may share a name."""

    def unnamed(self, kind: str) -> str:
        """The name of a step without a uid in messages."""
        return f"{kind}-{len(self.nodes)}"

    def claim(self, kind: str, uid: str) -> str:
        """Takes a uid for a source, an operator or a sink."""
        if not isinstance(uid, str):
            raise UsageError(
                f"{kind} uid {uid!r} is no text: give the uid first, such as 'totals', and then the rest"
            )
        checked_name(kind, uid)
        if (kind, uid) in self._taken:
            raise UsageError(
                f"{kind} uid {uid!r} is taken: no two {kind}s of a pipeline have the same one, so that each finds what is "
                f"its own again: say another, such as {f'{uid}-2'!r}"
            )
        self._taken.add((kind, uid))
        return uid

    @property
    def sources(self) -> list[SourceNode]:
        return [n for n in self.nodes if isinstance(n, SourceNode)]

    @property
    def jars(self) -> tuple[str, ...]:
        """Names of the bundles of jars that Spark needs beside Delta's, for its sources and its tables."""
        tables = [node.target for node in self.sinks if isinstance(node.target, DeltaTable)]
        return tuple(
            sorted({each.jars for each in (*(node.factory for node in self.sources), *tables)} - {""})
        )

    @property
    def operators(self) -> list[KeyedNode]:
        return [n for n in self.nodes if isinstance(n, KeyedNode)]

    @property
    def sinks(self) -> list[SinkNode]:
        return [n for n in self.nodes if isinstance(n, SinkNode)]

    def put_operator(self, node: KeyedNode, operator: ColumnarOperator) -> None:
        """Lets a node run another operator. It stays the node that others read: a node is known by itself, not by its uid."""
        object.__setattr__(node, "columnar", operator)

    def put_feed(self, node: KeyedNode, output: str, feed: StateFeed) -> None:
        """Lets a node put out the changes of a state, too."""
        object.__setattr__(node, "feeds", {**node.feeds, output: feed})

    def consumers(self, node: Node) -> list[tuple[Node, NodeRows]]:
        """The nodes that read an output of `node`, each with the output."""
        return [(reader, stream) for reader in self.nodes for stream in reader.inputs if stream.node is node]

    def read_outputs(self, node: Node) -> frozenset[str]:
        """The outputs of a node that somebody reads."""
        return frozenset(stream.output for _, stream in self.consumers(node))

    def unread_sides(self, node: SourceNode | KeyedNode) -> list[str]:
        """The side outputs of a source or an operator that nobody reads."""
        read = self.read_outputs(node)
        sides = (
            node.sides if isinstance(node, KeyedNode) else [node.late.name] if node.late is not None else []
        )
        return [name for name in sides if name not in read]


def put_table(node: SourceNode | SinkNode, table: DeltaTable) -> None:
    """Gives a node its table with the place that a catalog has told. It stays the node that others read."""
    object.__setattr__(node, "factory" if isinstance(node, SourceNode) else "target", table)


def declared_columns(node: Node) -> tuple[str, ...]:
    """The columns that the rows of all streams of a union are declared to have; none if some are of no type."""
    names = [each.rows.names if each.rows is not None else () for each in node.inputs]
    return names[0] if all(names) else ()


def sources_of(node: Node) -> set[SourceNode]:
    """Those whose rows come to the node, by whatever way."""
    if isinstance(node, SourceNode):
        return {node}
    return {source for stream in node.inputs for source in sources_of(stream.node)}


def origin(stream: NodeRows) -> str:
    """The uids of the sources and operators that the rows come from, without the steps in between."""
    if stream.node.kind:
        return stream.node.uid
    return " + ".join(origin(each) for each in stream.node.inputs)

"""The streaming leaves of a frame: the streams that a pipeline reads, found in the plan that Spark will run.

A walk through the analysed plan from left to right finds the leaves in the order of Spark's offset lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from pyspark.sql import DataFrame

from stateflow.errors import UsageError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING, SourceLeaves, places_of
from stateflow.pipelines.inputs.tables import of_change_feed
from stateflow.spark.internals.plans import PlanNode, plan_of
from stateflow.spark.internals.sources import StreamRelation, relation_of
from stateflow.spark.sources.delta_offset import DeltaOffset

_NOT_REWINDABLE = {
    "rate": "its values depend on when the query was started",
    "textSocket": "a socket keeps nothing that was read",
    "socket": "a socket keeps nothing that was read",
    "memory": "it lives in the driver's memory only",
}

STATEFUL = {
    "Aggregate": "a streaming aggregation",
    "Deduplicate": "distinct or dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct or dropDuplicates",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
}
"""Nodes of a plan that need more than one row at a time, and what users call them."""

_FOLDER_OF_ITS_OWN = ("schematrackinglocation", "schemalocation")


@dataclass(frozen=True, slots=True)
class LeafDescription:
    """One stream that a frame reads."""

    kind: str
    """`delta`, `file`, `kafka`, what a connector's source says, or `other`"""
    format: str
    """The name it was opened with: delta, parquet, kafka, rate-micro-batch, ..."""
    target: str
    """Path, table or topic, for people."""
    options: Mapping[str, str]
    """The source's options, with lower-case names."""
    relation: StreamRelation = field(repr=False, compare=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name the ids of the topics of Kafka that it names, where brokers tell them."""
    uid: str = ""
    """The source's; `with_places` says this and the numbers."""
    number: int = 0
    """In plan order: of its line and of its folder."""
    place: int = 0
    """Its number within its source: of its line in a record."""

    @property
    def reads_micro_batches(self) -> bool:
        """Whether it is of the newer kind (data source V2), which can tell its initial offset."""
        return self.relation.reads_micro_batches

    def line_in(self, state: Mapping[str, SourceState]) -> str:
        """Its line in a record's sources; NOTHING if they have none of it."""
        recorded = state.get(self.uid)
        if recorded is None or self.place >= len(recorded.lines):
            return NOTHING
        return recorded.lines[self.place]

    def position_in(self, state: Mapping[str, SourceState]) -> DeltaOffset | None:
        """Where a stream of a Delta table stands in a record's sources; None for one that has not begun, and for another kind."""
        line = self.line_in(state)
        return DeltaOffset.parse(line) if self.kind == "delta" and line != NOTHING else None


def check_frame(df: DataFrame, exactly_once: bool = True) -> list[LeafDescription]:
    """The frame's streams in plan order. Refuses a frame that a run could not resume or rewind."""
    leaves: list[LeafDescription] = []
    nodes: list[PlanNode] = []
    for node in plan_of(df).walk():
        if not node.streams:
            continue
        relation = relation_of(node)
        if relation is not None:
            leaf = _described(relation)
            if node in nodes:
                raise UsageError(
                    f"the stream {leaf.target} is used twice in one frame: Spark gives both one offset, "
                    "so open it once for each use"
                )
            nodes.append(node)
            _check_leaf(leaf, exactly_once)
            leaves.append(leaf)
        elif not node.children:
            raise UsageError(
                f"the stream {node.name} has no offsets that can be recorded: use another source"
            )
        else:
            _check_stateless(node)
    if not leaves:
        raise UsageError("the frame is not a stream: open sources with spark.readStream")
    return leaves


def with_places(layout: Sequence[SourceLeaves], leaves: Sequence[LeafDescription]) -> list[LeafDescription]:
    """The leaves of the unioned frame, each with its source and its numbers."""
    places = places_of(layout)
    if len(places) != len(leaves):
        raise UsageError(
            f"the sources {[source.uid for source in layout]} have {len(places)} streams but the unioned frame "
            f"has {len(leaves)}: a source was opened twice or dropped"
        )
    return [
        replace(leaf, uid=uid, number=number, place=place)
        for number, (leaf, (uid, place)) in enumerate(zip(leaves, places, strict=True))
    ]


def by_source(leaves: Sequence[LeafDescription]) -> dict[str, list[LeafDescription]]:
    """The leaves of each source."""
    return {uid: list(own) for uid, own in groupby(leaves, attrgetter("uid"))}


def shape_of(uid: str, leaves: Sequence[LeafDescription]) -> SourceLeaves:
    """What a record's lines of a source have to fit."""
    return SourceLeaves(uid, len(leaves), tuple(leaf.kind for leaf in leaves))


def change_feeds_of(leaves: Sequence[LeafDescription]) -> tuple[int, ...]:
    """For the record of a source its leaves that read the change feed of a Delta table."""
    return tuple(leaf.place for leaf in leaves if leaf.kind == "delta" and of_change_feed(leaf.options))


def topic_ids_of(leaves: Sequence[LeafDescription]) -> dict[str, str]:
    """Those of one source, as a record keeps them."""
    return {f"{leaf.place}/{topic}": id for leaf in leaves for topic, id in leaf.topic_ids.items()}


def _described(relation: StreamRelation) -> LeafDescription:
    options, format_ = relation.options, relation.format
    target = options.get("path") or options.get("subscribe")
    if relation.reads_micro_batches:
        kind = "kafka" if format_ == "kafka" else "other"
        target = target or options.get("subscribepattern") or options.get("assign") or format_
    else:
        name = relation.name
        kind = "file" if name.startswith("FileSource[") else name if name in ("delta", "kafka") else "other"
        target = target or name
    return LeafDescription(kind, format_, relation.table or target, options, relation)


def _check_leaf(leaf: LeafDescription, exactly_once: bool) -> None:
    reason = _NOT_REWINDABLE.get(leaf.format)
    if exactly_once and reason:
        raise UsageError(
            f"a {leaf.format} source cannot be read again from a checkpoint ({reason}): "
            'use another source, or run the pipeline with delivery="at_least_once"'
        )
    for option in _FOLDER_OF_ITS_OWN:
        if option in leaf.options:
            raise UsageError(
                f"the Delta source {leaf.target} sets {option}, which must lie in a checkpoint folder that "
                "stays, but a run's folder is disposable: remove the option"
            )


def _check_stateless(node: PlanNode) -> None:
    operator = STATEFUL.get(node.kind)
    if node.kind == "Join" and all(side.streams for side in node.children):
        operator = "a join of two streams"
    if operator:
        raise UsageError(
            f"{operator} keeps state in Spark's own checkpoint, which a run throws away: "
            "use a keyed operator of the flow, or move it behind the last one"
        )

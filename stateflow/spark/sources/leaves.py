"""The streaming leaves of a frame: the streams that a pipeline reads, found in the plan that Spark will run.

A walk through the analysed plan from left to right finds the leaves in the order of Spark's offset lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from stateflow.errors import UsageError
from stateflow.format.source_offsets import SourceLeaves

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

_RELATIONS = ("StreamingRelation", "StreamingRelationV2")
_FOLDER_OF_ITS_OWN = ("schematrackinglocation", "schemalocation")


@dataclass(frozen=True, slots=True)
class LeafDescription:
    """One stream that a frame reads."""

    kind: str
    """`delta`, `file`, `kafka` or `other`"""
    format: str
    """The name it was opened with: delta, parquet, kafka, rate-micro-batch, ..."""
    target: str
    """Path, table or topic, for people."""
    options: Mapping[str, str]
    """The source's options, with lower-case names."""
    relation: Any = field(repr=False, compare=False)
    """The plan's own node (a JVM object)."""
    reads_micro_batches: bool = False
    """Whether it is of the newer kind (data source V2), which can tell its initial offset."""


def check_frame(df: DataFrame, exactly_once: bool = True) -> list[LeafDescription]:
    """The frame's streams in plan order. Refuses a frame that a run could not resume or rewind."""
    leaves: list[LeafDescription] = []
    relations: list[Any] = []
    for node in plan_nodes(df._jdf.queryExecution().analyzed()):
        if not node.isStreaming():
            continue
        name = node.getClass().getSimpleName()
        if name in _RELATIONS:
            leaf = _described(node, name)
            if any(node.equals(other) for other in relations):
                raise UsageError(
                    f"the stream {leaf.target} is used twice in one frame: Spark gives both one offset, "
                    "so open it once for each use"
                )
            relations.append(node)
            _check_leaf(leaf, exactly_once)
            leaves.append(leaf)
        elif node.children().isEmpty():
            raise UsageError(
                f"the stream {node.nodeName()} has no offsets that can be recorded: use another source"
            )
        else:
            _check_stateless(node, name)
    if not leaves:
        raise UsageError("the frame is not a stream: open sources with spark.readStream")
    return leaves


def leaves_of(
    layout: Sequence[SourceLeaves], leaves: Sequence[LeafDescription]
) -> dict[str, list[LeafDescription]]:
    """The leaves of each source."""
    expected = sum(source.leaves for source in layout)
    if expected != len(leaves):
        raise UsageError(
            f"the sources {[source.uid for source in layout]} have {expected} streams but the unioned frame "
            f"has {len(leaves)}: a source was opened twice or dropped"
        )
    rest = iter(leaves)
    return {source.uid: [next(rest) for _ in range(source.leaves)] for source in layout}


def plan_nodes(plan: Any) -> Iterator[Any]:
    """A plan from the top down and from left to right, as Spark numbers its sources."""
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from plan_nodes(children.apply(position))


def _described(node: Any, name: str) -> LeafDescription:
    if name == "StreamingRelation":
        return _described_v1(node, node)
    if node.v1Relation().isDefined() and not _reads_micro_batches(node):
        return _described_v1(node.v1Relation().get(), node)
    options = {entry.getKey().lower(): entry.getValue() for entry in node.extraOptions().entrySet()}
    format_ = str(node.sourceName())
    target = options.get("path") or options.get("subscribe") or options.get("subscribepattern")
    if node.identifier().isDefined():
        target = node.identifier().get().toString()
    kind = "kafka" if format_ == "kafka" else "other"
    return LeafDescription(kind, format_, target or options.get("assign") or format_, options, node, True)


def _described_v1(relation: Any, node: Any) -> LeafDescription:
    source = relation.dataSource()
    pairs = source.options().iterator()
    options: dict[str, str] = {}
    while pairs.hasNext():
        pair = pairs.next()
        options[pair._1().lower()] = pair._2()
    name, format_ = str(relation.sourceName()), str(source.className())
    kind = "file" if name.startswith("FileSource[") else name if name in ("delta", "kafka") else "other"
    target = options.get("path") or options.get("subscribe") or name
    if source.catalogTable().isDefined():
        target = str(source.catalogTable().get().identifier().unquotedString())
    return LeafDescription(kind, format_, target, options, node)


def _reads_micro_batches(node: Any) -> bool:
    capabilities = [capability.toString() for capability in node.table().capabilities()]
    return "MICRO_BATCH_READ" in capabilities


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


def _check_stateless(node: Any, name: str) -> None:
    operator = STATEFUL.get(name)
    if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
        operator = "a join of two streams"
    if operator:
        raise UsageError(
            f"{operator} keeps state in Spark's own checkpoint, which a run throws away: "
            "use a keyed operator of the flow, or move it behind the last one"
        )

"""Sinks of a pipeline: adds them to its graph, and checks them before Spark is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from stateflow.errors import UsageError
from stateflow.names import OPTIONS, suggestion
from stateflow.pipelines.changes import refuse_changes, refuse_filtered, refuse_other_keys
from stateflow.pipelines.graph import NodeRows, SinkNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.places import between, same_place
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import RowType
from stateflow.pipelines.sink_kinds import kind_of, names_of


def add_sink(stream: NodeRows, uid: str, mode: str, target: Any, options: Mapping[str, Any]) -> None:
    """Ends a stream in a sink of any kind. `Stream.append` and the others are this for the kinds that users know."""
    changes = kind_of(mode).changes
    if changes == "refused":
        refuse_changes(f"sink {uid!r} ({mode})", stream.changes, stream.node.named)
    elif changes == "replace":
        keys = names_of(options.get("keys") or stream.changes)
        refuse_filtered(uid, stream)
        refuse_other_keys(uid, stream, keys)
        options = {**options, "keys": keys}
        if stream.operation:
            options["operation"] = stream.operation
    stream.flow.claim("sink", uid)
    check_sink(uid, mode, target, options, stream.rows)
    _refuse_same_table(uid, target, stream.flow.sinks)
    stream.flow.nodes.append(SinkNode(uid, (stream,), target, mode, options))


def check_sink(
    uid: str, mode: str, target: Any, options: Mapping[str, Any], rows: RowType | None = None
) -> None:
    """Whether such a sink can be; `rows` are the stream's, when they are declared."""
    kind, where = kind_of(mode), f"sink {uid!r} ({mode})"
    given = {name: value for name, value in options.items() if value is not None}
    # The stream says the operation, not the user.
    unknown = sorted(set(given) - kind.options - ({"operation"} if kind.changes == "replace" else set()))
    if unknown:
        meant = suggestion(unknown[0], kind.options, OPTIONS) or ": leave it out"
        raise UsageError(f"{where} does not take {', '.join(unknown)}{meant}")
    if not kind.accepts(target):
        is_path = kind.made_by and target and isinstance(target, str | PathLike)
        instead = f", here sf.{kind.made_by}({str(target)!r})" if is_path else ""
        raise UsageError(f"{where} cannot write to {target!r}: give it {kind.takes}{instead}")
    kind.check(where, target, given, rows)


def _refuse_same_table(uid: str, target: Any, others: Iterable[SinkNode]) -> None:
    """Refuses a table that another sink of the pipeline writes to."""
    if not isinstance(target, DeltaTable):
        return
    for other in others:
        if isinstance(other.target, DeltaTable) and same_place(other.target.path, target.path):
            raise UsageError(
                f"sinks {other.uid!r} and {uid!r} write to one table, {target.path}: give each a path of its own, or union() their rows "
                "before one sink"
            )


def refuse_own_output(sources: Iterable[tuple[str, Any]], sinks: Iterable[tuple[str, Any]]) -> None:
    """UsageError for a source that reads what a sink of its pipeline writes: each run would double the rows."""
    written = [(uid, target) for uid, target in sinks if isinstance(target, DeltaTable)]
    for source, factory in sources:
        for sink, target in written:
            if _reads(factory, target):
                raise UsageError(
                    f"source {source!r} reads {factory.path}, and sink {sink!r} writes to {target.path}, so that every row would come in "
                    "again: give the sink another path"
                )


def _reads(factory: Any, target: DeltaTable) -> bool:
    if isinstance(factory, DeltaTable):
        return same_place(factory.path, target.path)
    if not isinstance(factory, Files):
        return False
    if between(target.path, factory.path) is not None:
        return True
    below = between(factory.path, target.path)
    # Of the folders below its own, Spark reads those of partitions, or all if it is told to.
    return below is not None and (factory.reads_subfolders or all("=" in name for name in below))

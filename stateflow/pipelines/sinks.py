"""Sinks of a pipeline: adds them to its graph, and checks them before Spark is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stateflow.errors import UsageError
from stateflow.names import OPTIONS, suggestion
from stateflow.pipelines.changes import refuse_changes, refuse_filtered, refuse_other_keys
from stateflow.pipelines.graph import Graph, NodeRows, SinkNode
from stateflow.pipelines.inputs.input import Input
from stateflow.pipelines.inputs.places import between
from stateflow.pipelines.rows.row_type import RowType
from stateflow.pipelines.sink_kinds import SinkKind, kind_of, names_of


def add_sink(stream: NodeRows, uid: str, mode: str, target: Any, options: Mapping[str, Any]) -> None:
    """Ends a stream in a sink of any kind. `Stream.append` and the others are this for the kinds that users know."""
    stream.flow.claim("sink", uid)
    kind = kind_of(mode, target, f"sink {uid!r} ({mode})")
    changes = kind.changes
    if changes == "refused":
        refuse_changes(f"sink {uid!r} ({mode})", stream.changes, stream.node.named)
    elif changes == "replace":
        keys = names_of(options.get("keys") or stream.changes)
        refuse_filtered(uid, stream)
        refuse_other_keys(uid, stream, keys)
        options = {**options, "keys": keys}
        if stream.operation:
            options["operation"] = stream.operation
    check_sink(uid, kind, target, options, stream.rows)
    _refuse_same_place(uid, kind, target, stream.flow.sinks)
    stream.flow.nodes.append(SinkNode(uid, (stream,), target, kind, options))


def check_sink(
    uid: str, kind: SinkKind, target: Any, options: Mapping[str, Any], rows: RowType | None = None
) -> None:
    """Whether such a sink can be; `rows` are the stream's, when they are declared."""
    where = f"sink {uid!r} ({kind.mode})"
    given = {name: value for name, value in options.items() if value is not None}
    # The stream says the operation, not the user.
    unknown = sorted(set(given) - kind.options - ({"operation"} if kind.changes == "replace" else set()))
    if unknown:
        meant = suggestion(unknown[0], kind.options, OPTIONS) or ": leave it out"
        raise UsageError(f"{where} does not take {', '.join(unknown)}{meant}")
    kind.check(where, target, given, rows)


def _refuse_same_place(uid: str, kind: SinkKind, target: Any, others: Iterable[SinkNode]) -> None:
    """Refuses a table that another sink of the pipeline writes to."""
    place = kind.place(target)
    for other in others:
        if place and other.place == place:
            raise UsageError(
                f"sinks {other.uid!r} and {uid!r} write to one place, {kind.named(target)}: give each one of its own, or union() their rows "
                "before one sink"
            )
        if place and other.place:
            _refuse_nested(uid, kind, kind.named(target), place, other)


def _refuse_nested(uid: str, kind: SinkKind, named: str, place: str, other: SinkNode) -> None:
    """Refuses what is in the folder of a table: its VACUUM deletes whatever its log does not name."""
    for outer, is_table, table, inner in (
        (other.uid, other.sink_kind.table, other.place, place),
        (uid, kind.table, place, other.place),
    ):
        if is_table and between(table, inner) is not None:
            raise UsageError(
                f"sink {uid!r} writes to {named} and sink {other.uid!r} to {other.output}: VACUUM of the table of sink {outer!r} would delete "
                "the files of the other one, which lies in its folder; give them folders beside each other"
            )


def refuse_one_place(flow: Graph) -> None:
    """The checks of places, once a run knows where the tables are that catalogs name."""
    for number, sink in enumerate(flow.sinks):
        _refuse_same_place(sink.uid, sink.sink_kind, sink.target, flow.sinks[:number])
    refuse_own_output(((node.uid, node.factory) for node in flow.sources), flow.sinks)


def refuse_own_output(sources: Iterable[tuple[str, Input]], sinks: Iterable[SinkNode]) -> None:
    """UsageError for a source that reads what a sink of its pipeline writes: each run would double the rows."""
    written = [sink for sink in sinks if sink.place]
    for source, factory in sources:
        for sink in written:
            if factory.reads(sink.place):
                another = "path" if sink.sink_kind.table and not sink.target.name else "target"
                raise UsageError(
                    f"source {source!r} reads {factory.named}, and sink {sink.uid!r} writes to {sink.output}, so that every "
                    f"row would come in again: give the sink another {another}"
                )

"""Puts operators into the graph: a process, a columnar function, a ready-made operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stateflow.errors import UsageError
from stateflow.pipelines.event_times import held_back
from stateflow.pipelines.graph import Graph, GroupedRows, KeyedNode, NodeRows
from stateflow.pipelines.held_back import has_event_timers
from stateflow.pipelines.keys import check_streams, refuse_own_names
from stateflow.pipelines.processes.columnar import ColumnarOperator, columnar_operator
from stateflow.pipelines.processes.operator_spec import DEAD_LETTER, check_on_error, side_outputs
from stateflow.pipelines.processes.process import (
    KeyedProcess,
    Output,
    PartitionProcess,
    Process,
    type_arguments,
)
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.ready.windows import at_least
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.pipelines.step_checks import own_parallelism
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.declare import ValueState

_Declared = TypeVar("_Declared", bound=ReadyOperator)


def _added(node: KeyedNode) -> KeyedNode:
    _flow(node.keyed).nodes.append(node)
    return node


def _flow(inputs: Sequence[GroupedRows]) -> Graph:
    return inputs[0].stream.flow


def process_node(
    uid: str,
    inputs: tuple[GroupedRows, ...],
    process: Any,
    base: type[Process[Any]],
    output: Any,
    outputs: Sequence[Output[Any]],
    on_error: str,
    threshold: int | None,
    broadcast: Mapping[str, NodeRows],
    parallelism: int | None,
) -> KeyedNode:
    _flow(inputs).claim("operator", uid)
    cls = process if isinstance(process, type) else type(process()) if callable(process) else None
    if cls is None or not issubclass(cls, base):
        raise UsageError(
            f"operator {uid!r}: {getattr(cls, '__name__', repr(process))} is not a {base.__name__}"
        )
    cls.declarations()
    check_streams(f"operator {uid!r}, broadcast", broadcast.values())
    if broadcast and cls.process_broadcast is Process.process_broadcast:
        raise UsageError(
            f"operator {uid!r}: {cls.__name__} has no process_broadcast, so that nothing would read the rows of "
            f"broadcast={sorted(broadcast)}: define process_broadcast(self, name, rows, ctx), or leave broadcast= out"
        )
    check_on_error(uid, on_error)
    arguments = type_arguments(cls)
    declared = output if output is not None else (arguments[-1] if arguments else None)
    if declared in (None, type(None), Any):
        raise UsageError(
            f"operator {uid!r}: say what {cls.__name__} puts out, as {base.__name__}[..., Output] or output=..."
        )
    rows: list[RowType | None] = []
    first = 0 if base is PartitionProcess else 1
    for index, keyed in enumerate(inputs):
        hint = arguments[first + index] if arguments else None
        rows.append(row_type(hint) if hint not in (None, Any, dict) else keyed.stream.rows)
    sides = side_outputs(uid, outputs, on_error)
    node = KeyedNode(
        uid,
        (*(k.stream for k in inputs), *broadcast.values()),
        inputs,
        process=process,
        process_type=cls,
        rows=tuple(rows),
        output=row_type(declared),
        sides=sides,
        on_error=on_error,
        dead_letter_threshold=_own_threshold(uid, threshold, on_error),
        broadcast=dict(broadcast),
        parallelism=own_parallelism(uid, parallelism),
        held_back=held_back(uid, inputs, "event timers" if has_event_timers(cls) else ""),
    )
    return _added(node)


def _own_threshold(uid: str, threshold: int | None, on_error: str) -> int | None:
    """The most keys that a batch may divert; None when the step leaves that to the run, and 0 for no limit."""
    if threshold is None:
        return None
    if on_error != DEAD_LETTER:
        raise UsageError(
            f"operator {uid!r}: dead_letter_threshold has no effect where no key is diverted: leave it out, or give "
            "on_error='dead_letter'"
        )
    return at_least(0, f"operator {uid!r}: dead_letter_threshold is {threshold!r}", threshold)


def columnar_node(
    uid: str,
    inputs: tuple[GroupedRows, ...],
    code: Callable[..., Any] | ColumnarOperator,
    state: Mapping[str, Any] | ColumnLayout | None,
    on_due: Callable[..., Any] | None,
    chunk_rows: int,
    output: Any,
    outputs: Sequence[Output[Any]],
    forgets: Sequence[str],
    parallelism: int | None,
) -> KeyedNode:
    order_by = [name for keyed in inputs for name in keyed.order_by]
    operator = columnar_operator(uid, code, state, on_due, chunk_rows, inputs[0].columns, order_by)
    node = KeyedNode(
        _flow(inputs).claim("operator", uid),
        tuple(keyed.stream for keyed in inputs),
        inputs,
        columnar=operator,
        forgets=frozenset(forgets),
        rows=tuple(keyed.stream.rows for keyed in inputs),
        output=row_type(output),
        sides=side_outputs(uid, outputs, "fail"),
        parallelism=own_parallelism(uid, parallelism),
        held_back=held_back(uid, inputs, "an on_due" if operator.fires else ""),
    )
    return _added(node)


def ready_node(declared: ReadyOperator, inputs: tuple[GroupedRows, ...], held_back: int = 0) -> KeyedNode:
    """`held_back` is how far its watermark is behind that of a batch, in microseconds."""
    for name, layout in declared.states.items():
        layout.check(f"{declared.where}, state {name!r}", inputs[0].columns)
    for rows in (*(each.stream.rows for each in inputs), declared.output):
        refuse_own_names(declared.where, rows.names if rows is not None else ())
    node = KeyedNode(
        _flow(inputs).claim("operator", declared.uid),
        tuple(each.stream for each in inputs),
        inputs,
        columnar=declared,
        rows=tuple(each.stream.rows for each in inputs),
        output=declared.output,
        sides=declared.sides,
        held_back=held_back,
    )
    return _added(node)


def queryable_as(declared: _Declared, queryable: bool) -> _Declared:
    """The operator, whose states `stateflow serve` may answer from."""
    if not isinstance(queryable, bool):
        raise UsageError(f"operator {declared.uid!r}: queryable is {queryable!r}: give it True or False")
    if not queryable:
        return declared
    return replace(
        declared, states={name: replace(layout, queryable=True) for name, layout in declared.states.items()}
    )


def mapped(
    uid: str,
    function: Callable[[Any, Any, Any], tuple[Any, Any]],
    state: Any,
    default: Any,
    ttl: Any,
    queryable: bool,
) -> type[KeyedProcess[Any, Any, Any]]:
    """The process of `map_with_state`."""

    def process(self: Any, key: Any, rows: Any, ctx: Any) -> Any:
        value = self.state.value
        for row in rows:
            out, value = function(key, row, value)
            if out is not None:
                yield out
        if value is None:
            self.state.clear()
        else:
            self.state.value = value

    cls: Any = type(
        f"map_with_state_{uid}",
        (KeyedProcess,),
        {"state": ValueState(state, default=default, ttl=ttl, queryable=queryable), "process": process},
    )
    return cls  # type: ignore[no-any-return]

"""State as a feed: the changes of an operator's state, as rows that sinks and steps take like others."""

from __future__ import annotations

from collections.abc import Mapping

from stateflow.errors import StateflowError, UsageError
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.names import suggestion
from stateflow.pipelines.graph import Graph, KeyedNode, StateFeed
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.rows.row_type import Field, RowType, key_type, named_rows
from stateflow.state.schemas import schema_of_state


def feed_of(graph: Graph, operator: str, state: str) -> tuple[KeyedNode, str]:
    """The operator, which puts out the feed from now on, and the name of that output."""
    node = _operator(graph, operator)
    states = _states(node)
    name = _state(node, state, states)
    output = f"changes-of-{name}"
    if output in node.feeds:
        raise UsageError(
            f"operator {operator!r}: the feed of state {name!r} is taken already: keep the stream that state_changes() has given, and "
            "give it both sinks"
        )
    if output in node.sides:
        raise UsageError(
            f"operator {operator!r}: side output {output!r} is called as the feed of state {name!r} is: rename it"
        )
    graph.put_feed(node, output, StateFeed(name, _rows(node, name, states[name])))
    return node, output


def _operator(graph: Graph, uid: str) -> KeyedNode:
    found = {node.uid: node for node in graph.operators}
    if uid not in found:
        known = (
            f"so far it has {', '.join(map(repr, found)) or 'none'}, and an operator stands before its feed"
        )
        raise UsageError(
            f"state_changes: the pipeline has no operator {uid!r}{suggestion(uid, found) or f': {known}'}"
        )
    node = found[uid]
    if isinstance(node.columnar, ReadyOperator):
        raise UsageError(
            f"state_changes: the states of operator {uid!r} ({node.columnar.kind}) are in a form of its own: take its rows, or keep "
            "the state in a process of your own"
        )
    if not node.has_key:
        raise UsageError(
            f"state_changes: operator {uid!r} has no key, and a feed tells of the state of keys: use .key_by(...).process(...)"
        )
    return node


def _states(node: KeyedNode) -> Mapping[str, StateSchema]:
    if node.columnar is not None:
        return {name: layout.schema() for name, layout in node.columnar.states.items()}
    assert node.process_type is not None
    schemas = {}
    for name, declaration in node.process_type.declarations().states.items():
        try:
            schemas[name] = schema_of_state(declaration)
        except StateflowError as error:
            raise type(error)(f"operator {node.uid!r}, state {name!r}: {error}") from error
    return schemas


def _state(node: KeyedNode, wanted: str, states: Mapping[str, StateSchema]) -> str:
    known = ", ".join(map(repr, states))
    if not states:
        raise UsageError(
            f"state_changes: operator {node.uid!r} has no state of keys, so that nothing of it changes: leave its feed out"
        )
    if not wanted and len(states) > 1:
        raise UsageError(
            f"state_changes: operator {node.uid!r} has the states {known}: say which, such as "
            f"flow.state_changes({node.uid!r}, state={next(iter(states))!r})"
        )
    if wanted and wanted not in states:
        timers = node.process_type.declarations().timers if node.process_type is not None else {}
        if wanted in timers:
            raise UsageError(
                f"state_changes: {wanted!r} of operator {node.uid!r} is a timer, which has no feed: it has the states {known}"
            )
        raise UsageError(
            f"state_changes: operator {node.uid!r} has no state {wanted!r}{suggestion(wanted, states) or f': it has {known}'}"
        )
    return wanted or next(iter(states))


def _rows(node: KeyedNode, state: str, schema: StateSchema) -> RowType:
    # Pipelines without a feed are read without Arrow.
    from stateflow.state.change_rows import ChangeRows, ddl_of

    where = f"operator {node.uid!r}, state {state!r}"
    key = _key(node)
    keys = {name: BY_NAME[kind].spark for name, kind in key}
    fields = tuple(
        Field(column.name, keys.get(column.name) or ddl_of(column.type, where))
        for column in ChangeRows(key, state, schema).schema
    )
    return RowType("StateChange", fields, named_rows("StateChange", [field.name for field in fields]), False)


def _key(node: KeyedNode) -> tuple[tuple[str, str], ...]:
    """The key's columns and their types, which are a feed's columns before Spark is there."""
    keyed, own = node.keyed[0], node.rows[0]
    key = []
    for name in keyed.columns:
        declared = [rows.field(name) for rows in (keyed.stream.rows, own) if rows is not None]
        kind = next((key_type(found.type) for found in declared if found is not None), None)
        if kind is None:
            raise UsageError(
                f"state_changes: the type of key column {name!r} of operator {node.uid!r} is not known before Spark runs, and its feed "
                "has that column: give the source a type=, or the step before key_by() one"
            )
        key.append((name, kind))
    return tuple(key)

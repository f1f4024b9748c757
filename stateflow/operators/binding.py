"""Binds a process instance's declared states to a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from stateflow.errors import StateflowError
from stateflow.format.records import StateSchema
from stateflow.pipelines.processes.process import Process
from stateflow.state.broadcast_map import BoundBroadcast
from stateflow.state.cursor import Cursor
from stateflow.state.declare import (
    AggregatingState,
    BroadcastState,
    Declaration,
    ListState,
    MapState,
    OperatorState,
    ReducingState,
    UnionListState,
    ValueState,
)
from stateflow.state.expiry.index import Expiry
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.many_timers import BoundTimers
from stateflow.state.namespaces import Namespaced
from stateflow.state.operator_lists import BoundOperatorList, BoundUnionList
from stateflow.state.schemas import namespace_types, schema_of_state
from stateflow.state.single_values import (
    BoundAggregatingState,
    BoundReducingState,
    BoundValueState,
    StoredState,
)
from stateflow.state.timers import BoundTimer
from stateflow.state.values.evolution.declared_types import DeclaredType, declared_type, evolved_serializer
from stateflow.state.values.evolution.migrations import migrations_of
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.serializers import Serializer, serializer_for

TIMER_IDS = 2
"""A timer takes two state ids: its queue, and the time per key."""


@dataclass(frozen=True)
class Binding:
    """The bound states of one task."""

    stored: tuple[StoredState[Any], ...]
    """Single-entry states."""
    timers: dict[str, BoundTimer | BoundTimers]
    handlers: dict[str, Any]
    operator: dict[str, Any]
    """Lists, unions and the maps of broadcast state."""
    keyed: tuple[Namespaced, ...] = ()
    """All states and timers of a key."""
    expiring: tuple[Expiry, ...] = ()
    """One per state that has an index of expiries."""

    @cached_property
    def chunked(self) -> tuple[StoredState[Any] | BoundTimer | BoundTimers, ...]:
        """The states and timers that hold a whole chunk of keys, and that one look-up can read for all of them."""
        return (*self.stored, *self.timers.values())


def bind(
    process: Process[Any],
    uid: str,
    cursor: Cursor,
    state_ids: Mapping[str, int],
    evolved: Mapping[str, StateSchema] = MappingProxyType({}),
    indexes: Mapping[str, StateSchema] = MappingProxyType({}),
) -> Binding:
    """Puts bound states in place of the declarations of `process`. `evolved` are those whose type has changed, `indexes` those
    that have an index of expiries."""
    declared = type(process).declarations()
    stored: list[StoredState[Any]] = []
    keyed: list[Namespaced] = []
    expiring: list[Expiry] = []
    for name, declaration in declared.states.items():
        expiry = _expiry(declaration, cursor, state_ids[name], indexes.get(name))
        if expiry is not None and expiry.indexed:
            expiring.append(expiry)
        state = _bound(declaration, uid, cursor, state_ids[name], evolved.get(name), expiry)
        state.declare_namespace(_namespace_codec(declaration))
        if isinstance(state, StoredState):
            stored.append(state)
        keyed.append(state)
        process.__dict__[name] = state
    timers, handlers = {}, {}
    for name, timer in declared.timers.items():
        kind = BoundTimers if timer.many else BoundTimer
        bound = timers[name] = process.__dict__[name] = kind(cursor, uid, name, state_ids[name], timer.time)
        bound.declare_namespace(_namespace_codec(timer))
        keyed.append(bound)
        handlers[name] = getattr(process, timer.handler or "")
    operator: dict[str, Any] = {}
    for name, declaration in declared.operator.items():
        operator[name] = process.__dict__[name] = _elements(declaration, uid)
    cursor.expiring = expiring
    return Binding(tuple(stored), timers, handlers, operator, tuple(keyed), tuple(expiring))


def _elements(declaration: OperatorState[Any], uid: str) -> Any:
    match declaration:
        case BroadcastState():
            return BoundBroadcast(uid, declaration.name, serializer_for(declaration.type))
        case UnionListState():
            return BoundUnionList()
    return BoundOperatorList()


def _expiry(
    declaration: Declaration, cursor: Cursor, state_id: int, schema: StateSchema | None
) -> Expiry | None:
    """None for a state that has no ttl and never had one."""
    if schema is None and declaration.expiry is None:
        return None
    return Expiry(
        declaration.expiry, state_id, now=cursor.now, watermark=cursor.watermark, slot=cursor.slot,
        index_id=schema.expiry_index if schema else 0,
        sweep=schema.expiry_sweep if schema else 0,
        event_time=schema is not None and schema.ttl_time == "event",
    )  # fmt: skip


def _namespace_codec(declaration: Declaration) -> KeyCodec | None:
    return None if declaration.namespace is None else KeyCodec(key_types_for(declaration.namespace))


def _bound(
    declaration: Declaration,
    uid: str,
    cursor: Cursor,
    state_id: int,
    schema: StateSchema | None,
    expiry: Expiry | None,
) -> Any:
    name, ttl = declaration.name, expiry if declaration.expiry is not None else None
    serializer = _serializer(declaration, schema)
    match declaration:
        case ValueState():
            return BoundValueState(cursor, uid, name, state_id, serializer, ttl, default=declaration.default)
        case ReducingState():
            return BoundReducingState(cursor, uid, name, state_id, serializer, ttl, reduce=declaration.reduce)
        case AggregatingState():
            return BoundAggregatingState(
                cursor, uid, name, state_id, serializer, ttl,
                create=declaration.create, add=declaration.add, result=declaration.result,
            )  # fmt: skip
        case ListState():
            return BoundListState(cursor, uid, name, state_id, serializer, ttl)
        case MapState():
            codec = KeyCodec(key_types_for(declaration.key))
            return BoundMapState(cursor, uid, name, state_id, codec, serializer, ttl)
    raise TypeError(f"no binding for {declaration!r}")


def _serializer(declaration: Declaration, schema: StateSchema | None) -> Serializer:
    hint: Any = declaration.type  # type: ignore[attr-defined]
    if schema is None:
        return serializer_for(hint)
    return evolved_serializer(declared_type(hint, declaration.migrate), schema)


def schemas(process_type: type[Process[Any]], uid: str) -> dict[str, StateSchema]:
    """An operator's states as a record has them, still without ids."""
    declared = process_type.declarations()
    out: dict[str, StateSchema] = {}
    for name, declaration in declared.states.items():
        try:
            out[name] = schema_of_state(declaration)
            migrations_of(declaration.migrate)
        except StateflowError as error:
            raise type(error)(f"operator {uid!r}, state {name!r}: {error}") from error
    for name, elements in declared.operator.items():
        try:
            migrations_of(elements.migrate)
        except StateflowError as error:
            raise type(error)(f"operator {uid!r}, state {name!r}: {error}") from error
    for name, timer in declared.timers.items():
        try:
            namespace = namespace_types(timer)
        except StateflowError as error:
            raise type(error)(f"operator {uid!r}, timer {name!r}: {error}") from error
        out[name] = StateSchema(
            id=0, kind="timer", value=timer.time, aliases=timer.aliases, many=timer.many, namespace=namespace
        )
    return out


def type_of(process_type: type[Process[Any]], uid: str, name: str) -> DeclaredType:
    """The type of a state that has values, with the conversion of values of earlier types."""
    declared = process_type.declarations()
    every: dict[str, Any] = {**declared.states, **declared.operator}
    try:
        return declared_type(every[name].type, every[name].migrate)
    except StateflowError as error:
        raise type(error)(f"operator {uid!r}, state {name!r}: {error}") from error

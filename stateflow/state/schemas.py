"""A declared keyed state as a record has it, still without an id."""

from __future__ import annotations

from typing import Any

from stateflow.format.records import StateSchema
from stateflow.state.declare import Declaration, MapState
from stateflow.state.expiry.ttl import ttl_fields
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.serializers import serializer_for


def schema_of_state(declaration: Declaration) -> StateSchema:
    """Refuses types that cannot be kept."""
    kept: Any = declaration
    return StateSchema(
        id=0,
        kind=declaration.kind,
        value=serializer_for(kept.type).schema,
        map_key=",".join(key_types_for(declaration.key)) if isinstance(declaration, MapState) else "",
        queryable=declaration.queryable,
        aliases=declaration.aliases,
        namespace=namespace_types(declaration),
        **ttl_fields(declaration.expiry),
    )


def namespace_types(declaration: Declaration) -> str:
    return "" if declaration.namespace is None else ",".join(key_types_for(declaration.namespace))

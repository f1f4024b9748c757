"""From the key type that a user declares to the names that records keep."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

from stateflow.errors import UsageError
from stateflow.format.scalars import BY_TYPE
from stateflow.state.values.schema import type_name


def key_types_for(hint: Any) -> tuple[str, ...]:
    """The names of a key's parts: one for a plain type, several for a tuple, a named tuple or a dataclass."""
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if not parts or Ellipsis in parts:
            raise UsageError(f"{hint} cannot be a key: name the type of each of its parts")
        return tuple(map(_name, parts))
    fields = getattr(hint, "_fields", None)
    if fields is None and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = tuple(field.name for field in dataclasses.fields(hint))
    if fields:
        hints = get_type_hints(hint)
        return tuple(_name(hints.get(field)) for field in fields)
    return (_name(hint),)


def _name(hint: Any) -> str:
    if hint is float:
        raise UsageError(
            "float cannot be a key: 0.1 + 0.2 would not find the state of 0.3; use int, str or Decimal"
        )
    scalar = BY_TYPE.get(hint)
    if scalar is None or not scalar.is_key:
        raise UsageError(
            f"{type_name(hint)} cannot be a key: use bool, int, str, bytes, date, datetime, Decimal "
            "or a tuple of them"
        )
    return scalar.name

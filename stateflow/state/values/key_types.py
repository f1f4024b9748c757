"""From the key type that a user declares to the codec of its keys."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime
from decimal import Decimal
from typing import Any, get_args, get_origin, get_type_hints

from stateflow.errors import UsageError
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.schema import type_name

_NAMES: dict[Any, str] = {
    bool: "bool",
    int: "int",
    str: "str",
    bytes: "bytes",
    date: "date",
    datetime: "datetime",
    Decimal: "decimal",
}


def key_types_for(hint: Any) -> tuple[str, ...]:
    """The names of a key's parts: one for a plain type, several for a tuple, a named tuple or a dataclass."""
    return _parts(hint)[0]


def key_codec_for(hint: Any) -> KeyCodec:
    types, fields = _parts(hint)
    return KeyCodec(types, fields)


def _parts(hint: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if not parts or Ellipsis in parts:
            raise UsageError(f"{hint} cannot be a key: name the type of each of its parts")
        return tuple(_name(part) for part in parts), ()
    fields = getattr(hint, "_fields", None)
    if fields is None and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = tuple(field.name for field in dataclasses.fields(hint))
    if fields:
        hints = get_type_hints(hint)
        return tuple(_name(hints.get(field)) for field in fields), tuple(fields)
    return (_name(hint),), ()


def _name(hint: Any) -> str:
    if hint is float:
        raise UsageError(
            "float cannot be a key: 0.1 + 0.2 would not find the state of 0.3; use int, str or Decimal"
        )
    if hint not in _NAMES:
        raise UsageError(
            f"{type_name(hint)} cannot be a key: use bool, int, str, bytes, date, datetime, Decimal "
            "or a tuple of them"
        )
    return _NAMES[hint]

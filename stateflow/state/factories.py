"""What makes the first value of a key: each key needs a value of its own, or one that nobody can change."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import msgspec

from stateflow.format.scalars import BY_TYPE

_UNCHANGEABLE = (*BY_TYPE, Enum, Fraction, PurePath, complex, range, type)
_CONTAINERS = (list, dict, set, bytearray)


def unchangeable(value: Any) -> bool:
    """True if one value can serve every key, since nothing in it can be changed in place."""
    if value is None or isinstance(value, _UNCHANGEABLE):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(map(unchangeable, value))
    parameters = getattr(value, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return all(unchangeable(getattr(value, name)) for name in value.__dataclass_fields__)
    if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return all(unchangeable(getattr(value, name)) for name in value.__struct_fields__)
    return False


def shared_by_all(factory: Callable[[], Any]) -> str:
    """What two values of a factory have in common and one key could change for the others, for people; else empty.

    A factory that fails does so where a key needs it, with the key in the error."""
    try:
        one, other = factory(), factory()
    except Exception:
        return ""
    if one is other:
        return "" if unchangeable(one) else f"the same {type(one).__name__}"
    inside = _shared(one, other)
    return "" if inside is None else f"the same {type(inside).__name__} inside of each {type(one).__name__}"


def _shared(one: Any, other: Any) -> Any:
    """The container that two values share; None if there is none."""
    for part, counterpart in zip(_parts(one), _parts(other), strict=False):
        if part is counterpart:
            if isinstance(part, _CONTAINERS):
                return part
        elif (found := _shared(part, counterpart)) is not None:
            return found
    return None


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    names: Any = getattr(value, "__dataclass_fields__", None) or getattr(value, "__struct_fields__", ())
    return [getattr(value, name, None) for name in names]

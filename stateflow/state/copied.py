"""Copies of values that user code may change in place."""

from __future__ import annotations

from copy import deepcopy
from types import NoneType
from typing import Any

from stateflow.format.scalars import BY_TYPE

UNCHANGEABLE = frozenset((*BY_TYPE, NoneType))


def snapshot(value: Any) -> Any:
    """The value, or an equal one that shares nothing mutable with it."""
    kind = type(value)
    if kind in UNCHANGEABLE:
        return value
    if isinstance(value, tuple) and UNCHANGEABLE.issuperset(map(type, value)):
        return value
    if kind is list:
        flat = UNCHANGEABLE.issuperset(map(type, value))
        return value.copy() if flat else list(map(snapshot, value))
    if kind is dict:
        return {name: snapshot(each) for name, each in value.items()}
    return deepcopy(value)

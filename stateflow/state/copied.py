"""Copies of values that user code may change in place."""

from __future__ import annotations

from copy import deepcopy
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any

_UNCHANGEABLE = frozenset({NoneType, bool, int, float, str, bytes, datetime, date, timedelta, Decimal})


def snapshot(value: Any) -> Any:
    """The value, or an equal one that shares nothing mutable with it."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if isinstance(value, tuple) and _UNCHANGEABLE.issuperset(map(type, value)):
        return value
    if kind is list:
        flat = _UNCHANGEABLE.issuperset(map(type, value))
        return value.copy() if flat else list(map(snapshot, value))
    if kind is dict:
        return {name: snapshot(each) for name, each in value.items()}
    return deepcopy(value)

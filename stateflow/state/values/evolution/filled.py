"""Fields that a value of an earlier type lacks, filled with their defaults: else they would be missing when it is stored again.

msgspec leaves such a field of a dataclass to its class. So the code reads the default, and what is stored, shown in tables and
read by a later release with another default is nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.inspect as shape

from stateflow.state.values.serializers import Loads


def leaves_out(node: object) -> bool:
    """Whether values of this part of a type may come without a field."""
    return isinstance(node, shape.DataclassType) and any(
        field.default is not msgspec.NODEFAULT for field in node.fields
    )


def filling(loads: Loads) -> Loads:
    """The same, with all fields."""

    def read(buf: bytes) -> Any:
        value = loads(buf)
        _fill(value)
        return value

    return read


def _fill(value: Any) -> None:
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _fill(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            _fill(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _fill(getattr(value, name))
    elif dataclasses.is_dataclass(value):
        own = getattr(value, "__dict__", None)
        for field in dataclasses.fields(value):
            if own is not None and field.name not in own:
                own[field.name] = getattr(value, field.name)
            _fill(getattr(value, field.name))

"""Casts between decimals and floats by the digits with which they are written: to the nearest float, and to the decimal 606.8 of a
float 606.8.

Arrow's own cast of a decimal misses the nearest float by a bit now and then. Its cast of a float adds digits that nobody has
written: 606.8 becomes 606.799999999999954525 in a `decimal(38,18)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

_TEXT = pa.large_string()
_LARGE: tuple[Callable[[Any], bool], ...] = (pa.types.is_large_list, pa.types.is_large_list_view)
_LISTS = (*_LARGE, pa.types.is_list, pa.types.is_fixed_size_list, pa.types.is_list_view)


def cast_by_digits(values: Any, kind: Any) -> Any:
    """As `values.cast`, also inside of nested values. Floats that no decimal of the type is equal to are left to Arrow, which rounds them, or
    refuses one that is too large."""
    if values.type == kind:
        return values
    texts = with_scalars(values.type, kind, lambda own, other: _TEXT if _is_mixed(own, other) else own)
    try:
        return values.cast(texts).cast(kind)
    except pa.ArrowInvalid:
        return values.cast(kind)


def doubles(numbers: Any) -> Any:
    """The nearest double of each number of an array or a scalar, also of a whole one beyond 2^53, which a safe cast refuses."""
    written = numbers.cast(_TEXT) if pa.types.is_decimal(numbers.type) else numbers
    return written.cast(pa.float64(), safe=False)


def with_scalars(own: Any, other: Any, choose: Callable[[Any, Any], Any]) -> Any:
    """The type `own` with other scalars, as deep as they go: `choose` gets each of them and what `other` has in its place."""
    if pa.types.is_dictionary(own):
        chosen = with_scalars(own.value_type, other, choose)
        return own if chosen == own.value_type else chosen
    if pa.types.is_struct(own) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in other}
        return pa.struct(
            [f.with_type(with_scalars(f.type, kinds[f.name], choose)) if f.name in kinds else f for f in own]
        )
    if pa.types.is_map(own) and pa.types.is_map(other):
        key = with_scalars(own.key_type, other.key_type, choose)
        return pa.map_(key, with_scalars(own.item_type, other.item_type, choose))
    if is_list(own) and is_list(other):
        item = with_scalars(own.value_type, other.value_type, choose)
        make = pa.large_list if any(is_large(own) for is_large in _LARGE) else pa.list_
        return own if item == own.value_type else make(own.value_field.with_type(item))
    return choose(own, other)


def is_list(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in _LISTS)


def _is_mixed(one: Any, other: Any) -> bool:
    """Whether one is a decimal and the other one a float."""
    pair = (one, other)
    return any(map(pa.types.is_decimal, pair)) and any(map(pa.types.is_floating, pair))

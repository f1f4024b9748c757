"""Casts between decimals and floats by the digits with which they are written: to the nearest float, and to the decimal 606.8 of a
float 606.8.

Arrow's own cast of a decimal misses the nearest float by a bit now and then. Its cast of a float adds digits that nobody has
written: 606.8 becomes 606.799999999999954525 in a `decimal(38,18)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.state.values.arrow.nested_casts import cast_parts

_TEXT = pa.large_string()
_LARGE: tuple[Callable[[Any], bool], ...] = (pa.types.is_large_list, pa.types.is_large_list_view)
_LISTS = (*_LARGE, pa.types.is_list, pa.types.is_fixed_size_list, pa.types.is_list_view)


def cast_by_digits(values: Any, kind: Any) -> Any:
    """As `values.cast`, also inside of nested values. A float that no decimal of the type is equal to is left to Arrow, which rounds it, or
    refuses one that is too large."""
    if values.type == kind:
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([cast_by_digits(chunk, kind) for chunk in values.chunks], kind)
    if pa.types.is_dictionary(values.type):
        return cast_by_digits(values.dictionary_decode(), kind)
    cast = cast_parts(values, kind, lambda part, own, _: cast_by_digits(part, own))
    if cast is not None:
        return cast
    if not _is_mixed(values.type, kind):
        return values.cast(kind)
    texts = values.cast(_TEXT)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        rounded = values.cast(kind)
        # A rounded number that is read as the same float has no fewer digits than are written.
        as_written = pc.equal(cast_by_digits(rounded, values.type), values)
        return pc.if_else(as_written, texts, rounded.cast(_TEXT)).cast(kind)


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

"""Casts of nested columns, part by part. Arrow's own cast of them also casts what lies behind a null, which is nobody's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Cast = Callable[[Any, Any, str], Any]
"""Gets a part, the type that it is to have, and its place: `.x` for a field of a record, `[]`, `.key` or `.value`."""


def cast_parts(array: Any, wanted: Any, cast: Cast) -> Any | None:
    """An array with the wanted type; None unless both types are records, lists or maps.

    A field that the array lacks becomes null, and one that the type lacks is lost.
    """
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    given = array.type
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return _struct(array, wanted, cast)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        dense = array.drop_null()
        keys, items = of_map(dense)
        parts = (cast(keys, wanted.key_type, ".key"), cast(items, wanted.item_type, ".value"))
        return _spread(pa.MapArray.from_arrays(_offsets(dense), *parts, type=wanted), array)
    if _is_list(given) and _is_list(wanted):
        dense = array.drop_null()
        items = cast(dense.flatten(), wanted.value_type, "[]")
        kind = pa.LargeListArray if pa.types.is_large_list(wanted) else pa.ListArray
        return _spread(kind.from_arrays(_offsets(dense), items, type=wanted), array)
    return None


def of_map(array: Any) -> tuple[Any, Any]:
    """The keys and the values of its maps, without those behind a null and those before and behind a slice."""
    dense = array.drop_null()
    begin, end = dense.offsets[0].as_py(), dense.offsets[-1].as_py()
    return dense.keys.slice(begin, end - begin), dense.items.slice(begin, end - begin)


def _struct(array: Any, wanted: Any, cast: Cast) -> Any:
    names = [field.name for field in array.type]
    # What `flatten` gives has the nulls of the records.
    parts = dict(zip(names, array.flatten(), strict=True))
    fields = [
        cast(parts[field.name], field.type, f".{field.name}")
        if field.name in parts
        else pa.nulls(len(array), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=array.is_null())


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _offsets(dense: Any) -> Any:
    offsets = dense.offsets.to_numpy()
    return pa.array(offsets - offsets[0])


def _spread(dense: Any, array: Any) -> Any:
    """With the nulls that were dropped."""
    if not array.null_count:
        return dense
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return dense.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

"""Casts columns that other programs made to the types of a state's table, unless values would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError

_KINDS: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_boolean,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_duration,
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
    lambda kind: pa.types.is_integer(kind) or pa.types.is_decimal(kind),
)


def fitted(column: Any, wanted: pa.DataType, where: str) -> Any:
    """The column as an array of the wanted type; `where` names it in errors."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(column.type):
        return fitted(column.dictionary_decode(), wanted, where)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        return _struct(column, wanted, where)
    if pa.types.is_map(wanted) and pa.types.is_map(column.type):
        return _map(column, wanted, where)
    if pa.types.is_list(wanted) and _is_list(column.type):
        return _list(column, wanted, where)
    return _plain(column, wanted, where)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain(column: Any, wanted: Any, where: str) -> Any:
    if pa.types.is_duration(wanted) and pa.types.is_int64(column.type):
        # What readers of Parquet that know no spans of time make of them.
        return column.cast(wanted)
    if not any(kind(wanted) and kind(column.type) for kind in _KINDS):
        raise UsageError(f"{where} holds {column.type} where {wanted} belongs: cast it")
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        raise UsageError(
            f"{where} holds timestamps without a time zone, so they name no instants: give it one"
        )
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"{where} holds {column.type} that does not fit {wanted}: {error}") from None


def _mask(column: Any) -> Any:
    return column.is_null() if column.null_count else None


def _struct(column: Any, wanted: Any, where: str) -> Any:
    names = [field.name for field in column.type]
    known = [field.name for field in wanted]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{where} has a field {unknown[0]!r}, which its type does not have: its fields are {', '.join(known)}"
        )
    children = [
        fitted(column.field(names.index(field.name)), field.type, f"{where}.{field.name}")
        if field.name in names
        else pa.nulls(len(column), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_mask(column))


def _list(column: Any, wanted: Any, where: str) -> Any:
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    # Without nulls no entry has items of its own behind it.
    dense = column.drop_null()
    offsets = dense.offsets.to_numpy()
    items = fitted(dense.values.slice(offsets[0], offsets[-1] - offsets[0]), wanted.value_type, f"{where}[]")
    made = pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), items, type=wanted)
    return _spread(made, column)


def _map(column: Any, wanted: Any, where: str) -> Any:
    dense = column.drop_null()
    offsets = dense.offsets.to_numpy()
    begin, count = offsets[0], offsets[-1] - offsets[0]
    keys = fitted(dense.keys.slice(begin, count), wanted.key_type, f"{where}.key")
    items = fitted(dense.items.slice(begin, count), wanted.item_type, f"{where}.value")
    return _spread(pa.MapArray.from_arrays(pa.array(offsets - begin), keys, items, type=wanted), column)


def _spread(dense: Any, column: Any) -> Any:
    """With the nulls that were dropped."""
    if not column.null_count:
        return dense
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return dense.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

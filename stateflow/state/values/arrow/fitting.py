"""Casts columns that other programs made to the types of a state's table, unless values would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.state.values.arrow.nested_casts import cast_parts

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
        _refuse_unknown(column.type, wanted, where)
    cast = cast_parts(column, wanted, lambda part, kind, place: fitted(part, kind, f"{where}{place}"))
    return _plain(column, wanted, where) if cast is None else cast


def _refuse_unknown(given: Any, wanted: Any, where: str) -> None:
    known = [field.name for field in wanted]
    unknown = [field.name for field in given if field.name not in known]
    if unknown:
        raise UsageError(
            f"{where} has a field {unknown[0]!r}, which its type does not have: its fields are {', '.join(known)}"
        )


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

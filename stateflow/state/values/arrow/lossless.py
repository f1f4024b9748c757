"""Makes Arrow arrays of user code's values, and refuses values that Arrow would change without a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.state.values.arrow.packed_instants import micros_of

MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError)
"""What Arrow raises for values that are not of a column's type."""
_WHOLE, _DATED, _LISTS = {int, NoneType}, {date, NoneType}, frozenset({list, NoneType})


def array_of(values: Sequence[Any], kind: Any) -> Any:
    """Values of user code as an Arrow array; what does not fit raises one of `MISFITS`."""
    if pa.types.is_nested(kind):
        _check_parts(values, kind)
        values = [_plain(value) for value in values]
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        with suppress(ValueError, OverflowError, TypeError):
            return micros_of(values).cast(kind)
    _check(values, kind)
    return pa.array(values, type=kind, from_pandas=False)


def misfits(values: Sequence[Any], kind: Any) -> Iterator[tuple[int, Exception]]:
    """The values that do not fit, by their places, each with the reason."""
    for place, value in enumerate(values):
        try:
            array_of([value], kind)
        except MISFITS as error:
            yield place, error


def _check_parts(values: Sequence[Any], kind: Any) -> None:
    """Arrow would take a text apart into its letters, a dict into pairs, and a set in whatever order it comes."""
    if pa.types.is_list(kind):
        if not _LISTS.issuperset(map(type, values)):
            for value in values:
                _check_list(value)
        if pa.types.is_nested(kind.value_type):
            _check_parts([item for value in values if value is not None for item in value], kind.value_type)
    elif pa.types.is_map(kind):
        if pa.types.is_nested(kind.item_type):
            there = [value for value in values if value is not None]
            pairs = [
                pair for value in there for pair in (value.items() if isinstance(value, dict) else value)
            ]
            _check_parts([item for _, item in pairs], kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            if pa.types.is_nested(field.type):
                _check_parts([_member(value, field.name) for value in values], field.type)


def _check_list(value: Any) -> None:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{value!r} is one value and no list: put it into a list")
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order; use sorted(...)")
    if isinstance(value, dict):
        raise TypeError("it is a dict and no list; use list(...) of its keys or values")


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _check(values: Sequence[Any], kind: Any) -> None:
    if pa.types.is_integer(kind):
        _check_whole(values)
    elif pa.types.is_timestamp(kind):
        _check_instants(values)
    elif pa.types.is_date(kind):
        _check_dates(values)
    elif pa.types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in value]
        _check([key for key, _ in pairs], kind.key_type)
        _check([item for _, item in pairs], kind.item_type)
    elif pa.types.is_list(kind):
        _check([item for value in values if value is not None for item in value], kind.value_type)
    elif pa.types.is_struct(kind):
        there = [dict(value) for value in values if value is not None]
        for field in kind:
            _check([value.get(field.name) for value in there], field.type)


def _check_whole(values: Sequence[Any]) -> None:
    """Arrow would cut the fraction off."""
    if set(map(type, values)) <= _WHOLE:
        return
    for value in values:
        if isinstance(value, (float, Decimal, np.floating)) and value != int(value):
            raise ValueError("it has a fraction; round it, or declare the column as float")


def _check_instants(values: Sequence[Any]) -> None:
    """Arrow would read a time without a zone as UTC, but it may be local time; and a number as microseconds since 1970."""
    for value in values:
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError("it has no time zone; use datetime(..., tzinfo=UTC)")
        if isinstance(value, (int, np.integer)):
            raise TypeError("it is a number; use datetime(..., tzinfo=UTC)")


def _check_dates(values: Sequence[Any]) -> None:
    """Arrow would cut the time of day off, and take a number for days since 1970."""
    if set(map(type, values)) <= _DATED:
        return
    for value in values:
        if isinstance(value, (int, np.integer)):
            raise TypeError("it is a number; use date(...)")
        if isinstance(value, datetime):
            raise ValueError("it has a time of day; use its .date(), or declare the column as datetime")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        names = getattr(value, "__struct_fields__", None) or [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        return {name: _plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: _plain(v) for name, v in value._asdict().items()}
    if isinstance(value, dict):
        return [(k, _plain(v)) for k, v in value.items()] if value else []
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value

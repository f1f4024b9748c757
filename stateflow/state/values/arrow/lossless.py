"""Makes Arrow arrays of user code's values, and refuses values that Arrow would change without a word."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.state.values.arrow.packed_instants import micros_of

MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError)
"""What Arrow raises for values that are not of a column's type."""
_WHOLE, _DATED = {int, NoneType}, {date, NoneType}
_Take = Callable[[Any], Any]


def array_of(values: Sequence[Any], kind: Any) -> Any:
    """Values of user code as an Arrow array; what does not fit raises one of `MISFITS`."""
    if (take := _taker(kind)) is not None:
        values = [None if value is None else take(value) for value in values]
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


@cache
def _taker(kind: Any) -> _Take | None:
    """Makes of a list, a dict or a record of user code what Arrow takes as one of this type; None for types that are not nested."""
    if pa.types.is_list(kind):
        return partial(_list, _taker(kind.value_type))
    if pa.types.is_map(kind):
        return partial(_pairs, _taker(kind.key_type), _taker(kind.item_type))
    if pa.types.is_struct(kind):
        within = [(field.name, take) for field in kind if (take := _taker(field.type)) is not None]
        return partial(_record, tuple(field.name for field in kind), within)
    return None


def _list(take: _Take | None, value: Any) -> Any:
    """Arrow would take a text apart into its letters, a dict into pairs, and a set in whatever order it comes."""
    if type(value) is not list:
        _check_list(value)
    return list(value) if take is None else _each(take, value)


def _pairs(take_key: _Take | None, take: _Take | None, value: Any) -> Any:
    """From a dict; or from pairs, for keys that are records, which are no keys of a dict."""
    pairs = list(value.items() if isinstance(value, dict) else value)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError("it is no dict: give one, or a list of tuples of a key and a value")
    keys, items = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    first = keys if take_key is None else _each(take_key, keys)
    return list(zip(first, items if take is None else _each(take, items), strict=True))


def _each(take: _Take, values: Any) -> list[Any]:
    return [None if value is None else take(value) for value in values]


def _record(names: tuple[str, ...], within: list[tuple[str, _Take]], value: Any) -> dict[str, Any]:
    """By the names, which Arrow does not compare: it makes a null of a field that it does not find, and loses another."""
    record = dict(value) if isinstance(value, dict) else _fields(value, names)
    check_names(record, names)
    for name, take in within:
        if record[name] is not None:
            record[name] = take(record[name])
    return record


def check_names(given: Collection[Any], wanted: Collection[str]) -> None:
    """ValueError unless a record's fields are those of its column, in whatever order."""
    if len(given) != len(wanted) or not all(name in given for name in wanted):
        raise ValueError(
            f"its fields are {', '.join(map(str, given)) or 'none'}, and those of the column's record {', '.join(wanted)}; give each of these "
            "a value, or None"
        )


def _fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    of_tuple = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    if of_tuple is not None:
        return dict(zip(of_tuple, value, strict=True))
    cls: Any = type(value)
    found = _names_of(cls, names)
    if not found:
        raise TypeError(f"it is no record: give an object or a dict with {', '.join(names)}")
    return {name: getattr(value, name) for name in found}


@cache
def _names_of(cls: Any, wanted: tuple[str, ...]) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        names: tuple[str, ...] = cls.__struct_fields__
        return names
    # What a class computes by itself is no field of a row type, unless somebody names it.
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return tuple(field.name for field in fields if field.init or field.name in wanted)


def _check_list(value: Any) -> None:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{value!r} is one value and no list: put it into a list")
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order; use sorted(...)")
    if isinstance(value, dict):
        raise TypeError("it is a dict and no list; use list(...) of its keys or values")


def _check(values: Sequence[Any], kind: Any) -> None:
    if pa.types.is_integer(kind):
        _check_whole(values)
    elif pa.types.is_timestamp(kind):
        _check_instants(values)
    elif pa.types.is_date(kind):
        _check_dates(values)
    elif pa.types.is_float32(kind):
        _check_floats(values)
    elif pa.types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in value]
        _check([key for key, _ in pairs], kind.key_type)
        _check([item for _, item in pairs], kind.item_type)
    elif pa.types.is_list(kind):
        _check([item for value in values if value is not None for item in value], kind.value_type)
    elif pa.types.is_struct(kind):
        there = [value for value in values if value is not None]
        for field in kind:
            _check([value[field.name] for value in there], field.type)


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


def _check_floats(values: Sequence[Any]) -> None:
    """Arrow would make an infinity of a number that 32 bits cannot hold."""
    numbers = pa.array(values, pa.float64(), from_pandas=False)
    with np.errstate(over="ignore"):
        narrow = numbers.to_numpy(zero_copy_only=False).astype(np.float32)
    for place in np.flatnonzero(np.isinf(narrow)).tolist():
        if math.isfinite(values[place]):
            raise ValueError("it is beyond what a float of 32 bits holds; declare the column as double")


def _check_dates(values: Sequence[Any]) -> None:
    """Arrow would cut the time of day off, and take a number for days since 1970."""
    if set(map(type, values)) <= _DATED:
        return
    for value in values:
        if isinstance(value, (int, np.integer)):
            raise TypeError("it is a number; use date(...)")
        if isinstance(value, datetime):
            raise ValueError("it has a time of day; use its .date(), or declare the column as datetime")

"""Refuses casts of Arrow columns that Arrow makes without a word, though values are changed or lost by them.

What Arrow refuses by itself, such as a fraction in a column of whole numbers, is left to it.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.state.values.arrow.digits import cast_by_digits, is_list
from stateflow.state.values.arrow.lossless import check_names
from stateflow.state.values.arrow.nested_casts import of_map

_DIGITS = 38
"""Those of the longest decimals that Spark has."""


def check_cast(column: pa.ChunkedArray, wanted: Any) -> None:
    """ValueError or TypeError, with the reason and the next step, for a column that a cast to the wanted type would change."""
    if column.type == wanted:
        return
    # A column without rows is looked at, too: it says sooner that the code is wrong.
    for chunk in column.chunks or [pa.array([], column.type)]:
        _check(chunk, wanted)


def _check(array: Any, wanted: Any) -> None:
    given = array.type
    if given == wanted or pa.types.is_null(given):
        return
    if pa.types.is_dictionary(given):
        _check(array.dictionary, wanted)
    elif pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = [field.name for field in given]
        check_names(names, [field.name for field in wanted])
        # What `flatten` gives has the nulls of the records, behind which Arrow may keep any values.
        children = dict(zip(names, array.flatten(), strict=True))
        for field in wanted:
            _check(children[field.name], field.type)
    elif pa.types.is_map(given) and pa.types.is_map(wanted):
        keys, items = of_map(array)
        _check(keys, wanted.key_type)
        _check(items, wanted.item_type)
    elif is_list(given) and is_list(wanted):
        if pa.types.is_list_view(given) or pa.types.is_large_list_view(given):
            # Arrow's cast of them takes their sizes for offsets, and loses values.
            raise TypeError("it has views of lists; use pa.array(column.to_pylist()), which has lists")
        _check(array.flatten(), wanted.value_type)
    else:
        _check_plain(array, wanted)


def _check_plain(array: Any, wanted: Any) -> None:
    given = array.type
    if pa.types.is_date(wanted):
        if pa.types.is_timestamp(given):
            raise ValueError(
                "it has a time of day; use its .cast(pa.date32()), or declare the column as timestamp"
            )
        if pa.types.is_integer(given):
            raise TypeError(
                "it is a number; use its .cast(pa.int32()).cast(pa.date32()) if it counts days since 1970"
            )
    elif pa.types.is_timestamp(wanted) and pa.types.is_integer(given):
        raise TypeError(
            "it is a number, which names no unit; use its .cast(pa.int64()).cast(pa.timestamp('s', 'UTC')) if it counts seconds "
            "since 1970"
        )
    elif _is_point(given) and (pa.types.is_integer(wanted) or pa.types.is_floating(wanted)):
        raise TypeError(
            "it is a time, and a number names no unit; use its .cast(pa.timestamp('s')).cast(pa.int64()) if seconds since 1970 are meant"
        )
    elif pa.types.is_boolean(wanted) and not pa.types.is_boolean(given):
        raise TypeError("it is no bool; use its .cast(pa.bool_()) if all but 0 is meant to be true")
    elif pa.types.is_decimal(wanted) and pa.types.is_floating(given):
        _check_digits(array, wanted)
    elif pa.types.is_floating(wanted) and pa.types.is_decimal(given):
        _check_written_alike(array, wanted)
    elif pa.types.is_floating(wanted) and not pa.types.is_integer(given):
        _check_finite(array, wanted)


def _is_point(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _check_digits(array: Any, wanted: Any) -> None:
    """Arrow would round."""
    rounded = array.filter(pc.not_equal(cast_by_digits(cast_by_digits(array, wanted), array.type), array))
    if len(rounded):
        raise ValueError(
            f"{rounded[0].as_py()!r} has more digits than a {wanted}; use pc.round of it with ndigits={wanted.scale}, or declare a type "
            "that holds it, such as double"
        )


def _check_written_alike(array: Any, wanted: Any) -> None:
    """Arrow would round. A float is written with as few digits as tell it from others: 1.1 is the same number in both types."""
    texts = cast_by_digits(array, wanted).cast(pa.string())
    with suppress(pa.ArrowInvalid):  # a text that the decimals do not hold is none of theirs
        if texts.cast(array.type).equals(array):
            return
    for value, text in zip(array.to_pylist(), texts.to_pylist(), strict=True):
        if value is not None and Decimal(text) != value:
            raise ValueError(
                f"{value} has more digits than a float of {wanted.bit_width} bits holds; declare the column as {_declared(array.type)}, or "
                f"use its .cast(pa.string()).cast(pa.float{wanted.bit_width}()) if a rounded number is meant"
            )


def _declared(kind: Any) -> str:
    """How an output declares a column that holds decimals of this type."""
    return f"decimal({kind.precision},{kind.scale})" if kind.precision <= _DIGITS else "string"


def _check_finite(array: Any, wanted: Any) -> None:
    """Arrow would make an infinity of a number that the type cannot hold, and 0 of one that is nearer to it than all that it holds."""
    given = array.type
    if pa.types.is_floating(given) and given.bit_width <= wanted.bit_width:
        return
    cast = array.cast(wanted)
    infinite, zero = pc.is_inf(cast), pc.equal(cast, pa.scalar(0, wanted))
    if not pc.any(pc.or_(infinite, zero)).as_py():
        return
    if pa.types.is_floating(given):
        meant = pc.or_(pc.and_(infinite, pc.is_inf(array)), pc.equal(array, pa.scalar(0, given)))
    else:
        texts = array.cast(pa.large_string())
        written = pc.match_substring(texts, "inf", ignore_case=True)
        meant = pc.if_else(infinite, written, pc.invert(pc.match_substring_regex(texts, "^[^eE]*[1-9]")))
    beyond = array.filter(pc.and_not(pc.or_(infinite, zero), meant))
    if len(beyond):
        raise ValueError(
            f"{beyond[0].as_py()!r} is beyond what a float of {wanted.bit_width} bits holds; declare a type that holds it, such as "
            f"{'double' if wanted.bit_width < 64 else 'string'}"
        )

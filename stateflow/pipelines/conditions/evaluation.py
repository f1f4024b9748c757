"""Evaluates conditions over columns: true or false for each row, or null where SQL knows neither.

Spark in ANSI mode would give these answers, but that a division by zero is null: one row cannot stop a job with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.pipelines.conditions.expression import Expression
from stateflow.pipelines.conditions.like_patterns import parts
from stateflow.state.values.arrow.digits import doubles

Column = Callable[[str], Any]

_ARITHMETIC = ("+", "-", "*", "/", "%")
_SWAPPED = {">": "<", ">=": "<="}


def holds(condition: Expression, column: Column, rows: int) -> Any:
    """A mask of the rows for which it is true; `column` gives the columns by name. OverflowError for arithmetic that fails in Spark, too."""
    found = _value(condition, column)
    if isinstance(found, pa.Scalar):  # of a condition without columns
        return np.full(rows, found.as_py() is True)
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def _value(expression: Expression, column: Column) -> Any:
    match expression.operation:
        case "column":
            found = column(expression.value)
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        case "literal":
            return _literal(expression.value)
        case "AND" | "OR":
            return _either(expression, column)
    arguments = [_value(argument, column) for argument in expression.arguments]
    match expression.operation:
        case "NOT":
            return pc.invert(_boolean(arguments[0]))
        case "IS NULL":
            return pc.is_null(arguments[0])
        case "LIKE":
            return pc.match_substring_regex(arguments[0].cast(pa.large_string()), _regex(expression.value))
    work = _computed if expression.operation in _ARITHMETIC else _compared
    try:
        return work(expression.operation, *arguments)
    except pa.ArrowInvalid as error:
        types = " and ".join(str(side.type) for side in arguments)
        raise OverflowError(
            f"{_shown(expression)} in a condition does not fit {types}: begin it with 1e0 * to compute with doubles"
        ) from error


def _either(expression: Expression, column: Column) -> Any:
    """The right side may overflow only in rows that the left side leaves open: as in Spark, the left one guards it."""
    left_side, right_side = expression.arguments
    join = pc.and_kleene if expression.operation == "AND" else pc.or_kleene
    left = _boolean(_value(left_side, column))
    try:
        right = _boolean(_value(right_side, column))
    except OverflowError:
        if isinstance(left, pa.Scalar):
            raise
        is_open = pc.fill_null(pc.equal(left, expression.operation == "AND"), True)
        some = _boolean(_value(right_side, lambda name: column(name).filter(is_open)))
        right = pc.replace_with_mask(pa.nulls(len(left), pa.bool_()), is_open, some)
    return join(left, right)


def _literal(value: Any) -> Any:
    """Spark has 32 bits for a whole number that they hold."""
    narrow = type(value) is int and -(1 << 31) <= value < 1 << 31
    return pa.scalar(value, pa.int32() if narrow else None)


def _shown(expression: Expression) -> str:
    if expression.operation in ("column", "literal"):
        return str(expression.value)
    return f" {expression.operation} ".join(
        _shown(side) if side.operation in ("column", "literal") else f"({_shown(side)})"
        for side in expression.arguments
    )


_IN_FLOAT = (pa.float32(), pa.int8(), pa.int16())
"""Two of these make a `float` of Spark's, and no double."""


def _boolean(value: Any) -> Any:
    return value if value.type == pa.bool_() else value.cast(pa.bool_())


def _computed(operation: str, left: Any, right: Any) -> Any:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None)
    if operation == "/" or any(pa.types.is_floating(side.type) for side in (left, right)):
        narrow = operation != "/" and all(side.type in _IN_FLOAT for side in (left, right))
        left, right = (side.cast(pa.float32()) if narrow else doubles(side) for side in (left, right))
    elif any(pa.types.is_decimal(side.type) for side in (left, right)):
        left, right = _short_decimal(left), _short_decimal(right)
    if operation in "/%":
        # As TRY_DIVIDE: divided by zero is null, and fails no batch.
        zero = pc.equal(right, pa.scalar(0, right.type))
        right = pc.if_else(zero, pa.scalar(None, right.type), right)
    match operation:
        case "+":
            return pc.add_checked(left, right)
        case "-":
            return pc.subtract_checked(left, right)
        case "*":
            return pc.multiply_checked(left, right)
        case "/":
            return pc.divide(left, right)
    return _remainder(left, right)


def _remainder(left: Any, right: Any) -> Any:
    """It has the sign of the dividend."""
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        # The least number divided by -1 overflows; what is left of a division by either is 0.
        right = pc.if_else(pc.equal(right, pa.scalar(-1, right.type)), pa.scalar(1, right.type), right)
        return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
    remainder: Callable[[Any, Any], Any]
    if pa.types.is_floating(left.type):
        remainder, kind = _float_remainder, left.type
    else:
        scale = max(left.type.scale, right.type.scale)
        whole = min(side.type.precision - side.type.scale for side in (left, right))
        remainder, kind = _exact_remainder, pa.decimal128(max(whole + scale, 1), scale)
    sides = [side for side in (left, right) if not isinstance(side, pa.Scalar)]
    pairs = zip(*(_values(side, len(sides[0]) if sides else 1) for side in (left, right)), strict=True)
    # Arrow has no kernel for it.
    found = pa.array(
        [None if one is None or other is None else remainder(one, other) for one, other in pairs], kind
    )
    return found if sides else found[0]


def _values(side: Any, count: int) -> list[Any]:
    return [side.as_py()] * count if isinstance(side, pa.Scalar) else side.to_pylist()


def _float_remainder(left: float, right: float) -> float:
    return math.nan if math.isinf(left) else math.fmod(left, right)


def _exact_remainder(left: Decimal, right: Decimal) -> Decimal:
    with localcontext(prec=76):
        return left % right


_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def _short_decimal(value: Any) -> Any:
    """A whole number with as few digits as it may have: Arrow would give it 19, and a product may have 38."""
    if pa.types.is_decimal(value.type):
        return value
    if isinstance(value, pa.Scalar) and value.is_valid:
        return pa.scalar(Decimal(value.as_py()))
    return value.cast(pa.decimal128(_DIGITS[value.type], 0))


def _compared(operation: str, left: Any, right: Any) -> Any:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    if any(pa.types.is_floating(side.type) for side in (left, right)):
        left, right = doubles(left), doubles(right)
        return _floats(operation, left, right)
    match operation:
        case "=":
            return pc.equal(left, right)
        case "<>":
            return pc.not_equal(left, right)
        case "<":
            return pc.less(left, right)
        case "<=":
            return pc.less_equal(left, right)
        case ">":
            return pc.greater(left, right)
    return pc.greater_equal(left, right)


def _floats(operation: str, left: Any, right: Any) -> Any:
    """NaN equals itself and is above every number, as in Spark."""
    if operation in _SWAPPED:
        operation, left, right = _SWAPPED[operation], right, left
    nan, other = pc.is_nan(left), pc.is_nan(right)
    equal = pc.or_(pc.equal(left, right), pc.and_(nan, other))
    below = pc.or_(pc.less(left, right), pc.and_(pc.invert(nan), other))
    match operation:
        case "=":
            return equal
        case "<>":
            return pc.invert(equal)
        case "<":
            return below
    return pc.or_(below, equal)


def _regex(pattern: str) -> str:
    others = {"%": "(?s:.*)", "_": "(?s:.)"}
    return "^" + "".join(others[one] if open_ else re.escape(one) for one, open_ in parts(pattern)) + "$"

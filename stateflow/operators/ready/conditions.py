"""Evaluates conditions over columns: true or false for each row, or null where SQL knows neither."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.pipelines.conditions import Expression
from stateflow.pipelines.like_patterns import parts

Column = Callable[[str], Any]

_SWAPPED = {">": "<", ">=": "<="}


def holds(condition: Expression, column: Column, rows: int) -> Any:
    """A mask of the rows for which it is true; `column` gives the columns by name."""
    found = _value(condition, column)
    if isinstance(found, pa.Scalar):  # of a condition without columns
        return np.full(rows, found.as_py() is True)
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def _value(expression: Expression, column: Column) -> Any:
    match expression.operation:
        case "column":
            return column(expression.value)
        case "literal":
            return pa.scalar(expression.value)
    arguments = [_value(argument, column) for argument in expression.arguments]
    match expression.operation:
        case "AND":
            return pc.and_kleene(*map(_boolean, arguments))
        case "OR":
            return pc.or_kleene(*map(_boolean, arguments))
        case "NOT":
            return pc.invert(_boolean(arguments[0]))
        case "IS NULL":
            return pc.is_null(arguments[0])
        case "LIKE":
            return pc.match_substring_regex(arguments[0], _regex(expression.value))
        case "+" | "-" | "*" | "/" | "%":
            return _computed(expression.operation, *arguments)
    return _compared(expression.operation, *arguments)


def _boolean(value: Any) -> Any:
    return value if value.type == pa.bool_() else value.cast(pa.bool_())


def _computed(operation: str, left: Any, right: Any) -> Any:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None)
    if operation == "/" or any(pa.types.is_floating(side.type) for side in (left, right)):
        left, right = left.cast(pa.float64()), right.cast(pa.float64())
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
    # The remainder has the sign of the dividend.
    whole = pc.divide(left, right)
    if pa.types.is_floating(whole.type):
        whole = pc.trunc(whole)
    return pc.subtract(left, pc.multiply(whole, right))


def _compared(operation: str, left: Any, right: Any) -> Any:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    if any(pa.types.is_floating(side.type) for side in (left, right)):
        left, right = left.cast(pa.float64()), right.cast(pa.float64())
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

"""Conditions of aggregates and plain values as Spark's SQL, where Spark means exactly what `pipelines/conditions/evaluation` means."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from stateflow.format.instants import days_since_epoch, micros_since_epoch
from stateflow.format.scalars import FLOATS, INTEGERS
from stateflow.pipelines.conditions.expression import Expression
from stateflow.pipelines.rows.row_type import Field, RowType, quoted, text_in_sql

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_COMPARED = ("bigint", "double", "string", "boolean", "date", "timestamp")
"""The type in which both sides are compared. For a whole number beside a float, and for decimals of two widths, Spark and the
kernel may disagree."""


class NotInSparkError(Exception):
    """Spark may give another result, or fail where the kernel does not."""


def condition_sql(condition: Expression, rows: RowType) -> str:
    """Null counts as false for both. Arithmetic is left out: what overflows is decided differently."""
    match condition.operation:
        case "column" if condition.kind == "boolean":
            return quoted(condition.value)
        case "AND" | "OR":
            left, right = (condition_sql(argument, rows) for argument in condition.arguments)
            return f"({left} {condition.operation} {right})"
        case "NOT":
            return f"(NOT {condition_sql(condition.arguments[0], rows)})"
        case "IS NULL" if condition.arguments[0].operation == "column":
            return f"({quoted(condition.arguments[0].value)} IS NULL)"
        case "LIKE" if condition.arguments[0].operation == "column" and "\\" not in condition.value:
            return f"({quoted(condition.arguments[0].value)} LIKE {text_in_sql(condition.value)})"
        case operation if operation in _COMPARISONS:
            return _compared(operation, condition.arguments, rows)
    raise NotInSparkError(condition.operation)


def _compared(operation: str, sides: tuple[Expression, ...], rows: RowType) -> str:
    left, right = sides = tuple(map(_negated, sides))
    columns = [_type(side, rows) for side in sides if side.operation == "column"]
    if not columns or any(side.operation not in ("column", "literal") for side in sides):
        raise NotInSparkError(operation)
    values = [side.value for side in sides if side.operation == "literal"]
    kind = left.kind
    if kind == "number":
        if all(column in FLOATS for column in columns):
            kind = "double"
        elif all(column in INTEGERS for column in columns) and all(type(value) is int for value in values):
            kind = "bigint"
    if (
        left.kind != right.kind
        or kind not in _COMPARED
        or (kind == "boolean" and operation not in ("=", "<>"))
    ):
        raise NotInSparkError(operation)
    return f"({f' {operation} '.join(_side(side, kind) for side in sides)})"


def _negated(side: Expression) -> Expression:
    """The number, where the text is a number with a minus: the parser reads that as a difference from zero."""
    match side:
        case Expression("-", _, (Expression("literal", _, _, 0), Expression("literal", "number", _, value))):
            return Expression("literal", "number", value=-value)
    return side


def _type(column: Expression, rows: RowType) -> str:
    found = rows.field(column.value)
    assert found is not None, "the condition was checked when it was read"
    return found.type


def _side(side: Expression, kind: str) -> str:
    if side.operation == "column":
        return f"cast({quoted(side.value)} as {kind})"
    if kind == "double":
        return literal(float(side.value), kind)
    return literal(side.value, kind)


def literal(value: Any, kind: str) -> str:
    """A value of Python's as a constant of Spark's type `kind`."""
    match value:
        case bool() if kind == "boolean":
            return "true" if value else "false"
        case int() if kind in INTEGERS and not isinstance(value, bool) and -(1 << 63) < value < 1 << 63:
            return f"cast({value} as {kind})"
        case float() if kind in FLOATS:
            return f"cast('{value!r}' as {kind})"
        case Decimal() if kind.startswith("decimal") and value.is_finite():
            return f"cast('{value:f}' as {kind})"
        case str() if kind == "string":
            return text_in_sql(value)
        case bytes() if kind == "binary":
            return f"X'{value.hex()}'"
        case datetime() if kind == "timestamp" and value.tzinfo is not None:
            return f"timestamp_micros({micros_since_epoch(value)})"
        case date() if kind == "date" and not isinstance(value, datetime):
            return f"date_from_unix_date({days_since_epoch(value)})"
    raise NotInSparkError(f"{value!r} as {kind}")


def default_sql(field: Field) -> str:
    """What stands for a null of a field that has a default."""
    default = field.default
    assert default is not None
    if default.factory is not None:
        raise NotInSparkError(field.name)
    value = default.value
    if field.type in FLOATS and type(value) is int:
        value = float(value)
    return literal(value, field.type)

"""What a bisection looks for: a condition in the part of SQL that `where=` takes, or a Python function.

A condition has `value` and `previous`, the value in the checkpoint before; of a value with fields each field by its name, and
as `previous_FIELD`. As in SQL, a comparison with nothing is neither true nor false, and does not hold.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from stateflow.errors import UsageError, UserCodeError, placed
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.pipelines.conditions.expression import Expression, condition_of
from stateflow.pipelines.conditions.like_patterns import parts
from stateflow.pipelines.rows.row_type import Field, RowType
from stateflow.state.values import schema_text

PREVIOUS = "previous"
_OTHERWISE = {
    "--first": "give a Python function, as FILE:FUNCTION",
    "--expect": "give the right value, with --expect-value",
}
"""What serves where a condition does not."""


@dataclass(frozen=True)
class Predicate:
    """Whether something is wrong with a value."""

    text: str
    holds: Callable[[Any, Any], bool]
    """holds(value, previous)"""
    uses_previous: bool


def condition(text: str, schema: StateSchema, what: str = "--first") -> Predicate:
    """The condition over values of a state; `what` names it. UsageError names what there is."""
    fields = _fields(schema)
    otherwise = _OTHERWISE.get(what, _OTHERWISE["--first"])
    if not fields:
        raise UsageError(
            f"values of kind {schema.kind} with the type {schema.value} have no columns for a condition: {otherwise}"
        )
    rows = RowType(
        "the state",
        tuple(
            Field(name, kind)
            for prefix in ("", f"{PREVIOUS}_")
            for name, kind in ((_name(prefix, name), kind) for name, kind in fields)
        ),
        make=tuple,
        typed=False,
    )
    expression = condition_of(what, text, rows, otherwise)
    names = set(expression.columns())
    struct = [name for name, _ in fields] != ["value"] or _is_struct(schema)

    def holds(value: Any, previous: Any) -> bool:
        row: Mapping[str, Any] = {
            **_row("", value, struct),
            **_row(f"{PREVIOUS}_", previous, struct),
        }
        return evaluated(expression, row) is True

    return Predicate(text, holds, any(name.startswith(PREVIOUS) for name in names))


def _is_struct(schema: StateSchema) -> bool:
    return schema.kind != "timer" and not list(_of_tree("value", schema_text.read_schema(schema.value)))


def _name(prefix: str, name: str) -> str:
    return PREVIOUS if prefix and name == "value" else f"{prefix}{name}"


def _row(prefix: str, value: Any, struct: bool) -> dict[str, Any]:
    if struct and isinstance(value, dict):
        return {f"{prefix}{name}": one for name, one in value.items()}
    return {_name(prefix, "value"): value}


def _fields(schema: StateSchema) -> list[tuple[str, str]]:
    """Names and Spark's types of what a condition can use."""
    if schema.kind == "timer":
        return [] if schema.many else [("value", "timestamp")]
    if schema.kind in ("list", "columns") or schema.by or schema.timed:
        return []
    try:
        tree = schema_text.read_schema(schema.value)
    except schema_text.UnreadableText:
        return []
    return list(_of_tree("value", tree)) or list(_of_struct(tree))


def _of_tree(name: str, tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, schema_text.OptionalText):
        tree = tree.item
    if isinstance(tree, schema_text.ScalarText) and tree.name in BY_NAME:
        yield name, BY_NAME[tree.name].spark


def _of_struct(tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, schema_text.OptionalText):
        tree = tree.item
    if isinstance(tree, schema_text.StructText):
        for field in tree.fields:
            yield from _of_tree(field.name, field.type)


def function(name: str, call: Callable[..., Any]) -> Predicate:
    """A Python function of the value, or of the value and the one in the checkpoint before."""
    try:
        count = len(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        count = 0
    if count not in (1, 2):
        raise UsageError(
            f"{name} takes {count} arguments: it has to take the value, or the value and the previous one"
        )

    def holds(value: Any, previous: Any) -> bool:
        try:
            return bool(call(value) if count == 1 else call(value, previous))
        except Exception as error:
            nothing = "; where there is nothing it gets None" if value is None or previous is None else ""
            raise UserCodeError(f"{name} failed: {placed(error)}{nothing}") from error

    return Predicate(name, holds, count == 2)


_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluated(expression: Expression, row: Mapping[str, Any]) -> Any:
    """The value of an expression for one row; None is SQL's NULL."""
    match expression.operation:
        case "literal":
            return expression.value
        case "column":
            return row.get(expression.value)
    arguments = [evaluated(argument, row) for argument in expression.arguments]
    match expression.operation:
        case "AND":
            return False if False in arguments else None if None in arguments else True
        case "OR":
            return True if True in arguments else None if None in arguments else False
        case "NOT":
            return None if arguments[0] is None else not arguments[0]
        case "IS NULL":
            return arguments[0] is None
    if None in arguments:
        return None
    if expression.operation == "LIKE":
        return re.fullmatch(_pattern(expression.value), arguments[0], re.S) is not None
    left, right = _alike(*arguments)
    if compare := _COMPARED.get(expression.operation):
        return compare(left, right)
    return _computed(expression.operation, left, right)


def _pattern(like: str) -> str:
    wild = {"%": ".*", "_": "."}
    return "".join(wild[c] if special else re.escape(c) for c, special in parts(like))


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Decimals beside a float are floats."""
    if isinstance(left, float) and isinstance(right, Decimal):
        return left, float(right)
    if isinstance(left, Decimal) and isinstance(right, float):
        return float(left), right
    return left, right


def _computed(operation: str, left: Any, right: Any) -> Any:
    match operation:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if right == 0:
        return None
    if operation == "/":
        return left / right
    # The sign is that of the left side, as in Spark.
    return left - right * int(left / right)


__all__ = ["Predicate", "condition", "evaluated", "function"]

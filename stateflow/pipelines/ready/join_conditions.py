"""Further conditions of joins: SQL over the columns of both rows, which have the names that fields of the output have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.conditions.expression import Expression, condition_of
from stateflow.pipelines.ready.joined_columns import KEY, LEFT, RIGHT, Filled
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import Field, RowType

_QUALIFIED = re.compile(r"'(?:[^'\\]|''|\\.)*'|`[^`]*`|\b([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


@dataclass(frozen=True)
class JoinCondition:
    """The condition that two rows fulfil to be partners, beside their key and their times. A null does not fulfil it."""

    text: str
    expression: Expression
    sources: tuple[Filled, ...]
    """Where its columns come from."""

    def columns_of(self, side: str) -> frozenset[str]:
        return frozenset(source.column for source in self.sources if source.of == side)


def join_condition(uid: str, where: Any, left: KeyedRows, right: KeyedRows) -> JoinCondition | None:
    if where == "":
        return None
    if not isinstance(where, str):
        raise UsageError(
            f'join {uid!r}: where is {where!r}: give a condition as text, such as where="left_price < right_price"'
        )
    _refuse_qualified(uid, where, left, right)
    named = _named(left, right)
    fields = tuple(field for field, _ in named.values())
    rows = RowType("its pair of rows", fields, lambda *values: values, typed=False)
    expression = condition_of(f"join {uid!r}", where, rows)
    sources = {name: named[name][1] for name in expression.columns()}
    return JoinCondition(" ".join(where.split()), expression, tuple(sources.values()))


def _named(left: KeyedRows, right: KeyedRows) -> dict[str, tuple[Field, Filled]]:
    """By name, every column that a condition may use: under its own name if only one row has it or if it is the key of both,
    and always with `left_` or `right_` in front."""
    sides = (LEFT, left), (RIGHT, right)
    named: dict[str, tuple[Field, Filled]] = {}
    for (side, keyed), other in zip(sides, (right, left), strict=True):
        for field in keyed.known().fields:
            is_key = field.name in keyed.columns
            if other.known().field(field.name) is None or (is_key and field.name in other.columns):
                named.setdefault(field.name, (field, _source(field.name, side, keyed, left, field)))
    for side, keyed in sides:
        for field in keyed.known().fields:
            name = f"{side}_{field.name}"
            called = Field(name, field.type, field.hint)
            named.setdefault(name, (called, _source(name, side, keyed, left, field)))
    return named


def _source(name: str, side: str, keyed: KeyedRows, left: KeyedRows, field: Field) -> Filled:
    if field.name in keyed.columns:
        return Filled(name, KEY, left.columns[keyed.columns.index(field.name)])
    return Filled(name, side, field.name)


def _refuse_qualified(uid: str, where: str, left: KeyedRows, right: KeyedRows) -> None:
    """Refuses `left.price`, as in SQL, and says what the column is called."""
    for found in _QUALIFIED.finditer(where):
        if not found[1]:
            continue
        side = {"l": LEFT, "left": LEFT, "r": RIGHT, "right": RIGHT}.get(found[1].lower())
        known = left if side == LEFT else right
        means = f"{side}_{found[2]}" if side and known.known().field(found[2]) is not None else ""
        raise UsageError(
            f"join {uid!r}: {found[0]} in where={where!r}: write {means or 'left_x or right_x'}"
            f"{'' if means else ' for the column x of a row'}, as a field of the output would be called"
        )

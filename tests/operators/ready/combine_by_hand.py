"""Combines rows as `operators/combining` says, one row at a time and without Spark: tests compare with it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.combined import ROWS, part_name
from stateflow.operators.combining import Combining, combining_of, piece_of
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.pipelines.ready.operators import RunningAggregate, WindowAggregate

HALF = (1 << 32) - 1


def combined(declared: RunningAggregate | WindowAggregate, rows: pa.Table) -> pa.Table:
    how = combining_of(declared, frozenset())
    assert how is not None
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    micros = rows.column(how.time).cast(pa.int64()).to_pylist() if how.time else [None] * rows.num_rows
    for row, at in zip(rows.to_pylist(), micros, strict=True):
        groups[(*(row[name] for name in how.key), _piece(declared, at))].append(row)
    made = [_row(declared, how, group, members) for group, members in groups.items()]
    return pa.Table.from_pylist(made, arrow_schema_of(how.combined))


def _piece(declared: RunningAggregate | WindowAggregate, at: int | None) -> int | None:
    if at is None or not isinstance(declared, WindowAggregate):
        return None
    length, offset = piece_of(declared.window) or (0, 0)
    return at - (at - offset) % length + length - 1


def _row(declared: Any, how: Combining, group: Any, members: list[dict[str, Any]]) -> dict[str, Any]:
    row = dict(zip((*how.key, how.time), group, strict=True))
    for each in declared.aggregates:
        type_ = field.type if (field := declared.rows.field(each.aggregate.column)) else ""
        for number, value in enumerate(_parts(each, type_, members)):
            row[part_name(each.name, number)] = value
    return {**row, ROWS: len(members)}


def _parts(each: Aggregated, type_: str, members: list[dict[str, Any]]) -> list[Any]:
    aggregate = each.aggregate
    if aggregate.where:
        assert aggregate.where == "paid", "no other condition is known here"
        members = [row for row in members if row["paid"]]
    values = [row[aggregate.column] for row in members] if aggregate.column else [1] * len(members)
    values = [value for value in values if value is not None]

    def of(function: Callable[[list[Any]], Any]) -> Any:
        return function(values) if values else None

    match aggregate.kind:
        case "count":
            return [len(values)]
        case "sum" if type_ == "bigint":
            return [of(lambda vs: sum(v & HALF for v in vs)), of(lambda vs: sum(v >> 32 for v in vs))]
        case "sum":
            return [of(lambda vs: sum(vs, Decimal(0) if each.scale is not None else 0))]
        case "mean":
            zero = Decimal(0) if each.scale is not None else 0.0
            return [of(lambda vs: sum(vs, zero)), len(values)]
        case "min":
            return [of(lambda vs: min(vs, key=_above_all_if_nan))]
        case "max":
            return [of(lambda vs: max(vs, key=_above_all_if_nan))]
    raise AssertionError(aggregate.kind)


def _above_all_if_nan(value: Any) -> Any:
    return (isinstance(value, float) and math.isnan(value), value)

"""What Spark can sum up of a batch before the exchange: a row per key and piece of time in the place of many.

Only aggregates whose partials Spark's SQL gives exactly as the kernels of `operators/ready` do are combined; an operator is
combined when all of its aggregates are. Sums of floats depend on the order of the rows in their last digits, combined or not.

    count           count
    sum, integers   the sum; of 64 bits two, of the upper and the lower half, so that no order of rows overflows
    sum, floats     the sum as a double
    sum, decimals   the sum, as long as its type has room for every batch
    mean            the sum, and the count
    min, max        of what Spark sums up in place: not of text and bytes, for which it would sort the rows
"""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import dataclass

from stateflow.operators.combined import ROWS, part_name
from stateflow.operators.condition_sql import NotInSparkError, condition_sql, literal
from stateflow.pipelines.aggregates import FLOATS, INTEGERS, Aggregated
from stateflow.pipelines.columnar import ColumnarOperator
from stateflow.pipelines.ready import LATE, RunningAggregate, WindowAggregate
from stateflow.pipelines.rows import Field, RowType, quoted
from stateflow.pipelines.windows import Cumulative, Sliding, Window

_HALF = (1 << 32) - 1
_MOST_DIGITS = 28
"""Of decimals that are summed: their sum has ten digits more, and 38 at most."""


@dataclass(frozen=True)
class Combining:
    """How an operator's rows are combined. All texts are Spark's SQL."""

    rows: RowType
    """The columns that are read."""
    defaults: tuple[tuple[str, str], ...]
    """By name, what stands for a null in some of them."""
    key: tuple[str, ...]
    time: str
    """The column of event time; empty: the operator has none."""
    piece: str
    """The last instant of the piece of time that a row is in. Windows hold a piece as a whole or not at all."""
    parts: tuple[str, ...]
    """What is computed of the rows that are alike in key and piece, in the order of the last columns of `combined`."""
    combined: RowType
    """The columns of the combined rows."""


def combining_of(operator: ColumnarOperator | None, read: Set[str]) -> Combining | None:
    """None when the operator has to see each row; `read` are its outputs that have a reader."""
    if not isinstance(operator, RunningAggregate | WindowAggregate) or operator.diverts:
        return None
    time, piece = "", ""
    if isinstance(operator, WindowAggregate):
        length = piece_of(operator.window)
        if length is None or LATE in read or operator.time in operator.key_columns:
            return None
        time, piece = operator.time, _piece_sql(operator.time, *length)
    rows = operator.needed(read)
    try:
        defaults = tuple(
            (field.name, _default(field))
            for field in rows.fields
            if field.default is not None and field.name not in operator.key_columns
        )
        parts = [part for each in operator.aggregates for part in _parts(each, operator.rows)]
    except NotInSparkError:
        return None
    parts.append((ROWS, "bigint", "count(1)"))
    ours = [field for field in rows.fields if field.name in (*operator.key_columns, time)]
    combined = tuple(Field(field.name, field.type) for field in ours)
    combined += tuple(Field(name, kind) for name, kind, _ in parts)
    return Combining(
        rows,
        defaults,
        operator.key_columns,
        time,
        piece,
        tuple(f"{sql} as {quoted(name)}" for name, _, sql in parts),
        RowType("Row", combined, dict, False),
    )


def piece_of(window: Window) -> tuple[int, int] | None:
    """The length and the offset of the pieces of time that each window consists of; None: its bounds depend on the rows."""
    match window:
        case Sliding(size, every, offset):
            return math.gcd(size, every), offset
        case Cumulative(_, every, offset):
            return every, offset
    return None


def _piece_sql(time: str, length: int, offset: int) -> str:
    at = f"unix_micros({quoted(time)})"
    return f"timestamp_micros({at} - pmod({at} - {offset}L, {length}L) + {length - 1}L)"


def _default(field: Field) -> str:
    default = field.default
    assert default is not None
    if default.factory is not None:
        raise NotInSparkError(field.name)
    value = default.value
    if field.type in FLOATS and type(value) is int:
        value = float(value)
    return literal(value, field.type)


def _parts(each: Aggregated, rows: RowType) -> list[tuple[str, str, str]]:
    """Name, type and SQL of what is computed for an aggregate."""
    column, kind = each.aggregate.column, each.aggregate.kind
    condition = "" if each.condition is None else f" FILTER (WHERE {condition_sql(each.condition, rows)})"
    found = rows.field(column)
    parts = [(f"count({quoted(column) if column else 1})", "bigint")] if kind == "count" else []
    if found is not None:
        parts = parts or _of_column(kind, quoted(column), found.type)
    if not parts:
        raise NotInSparkError(kind)
    return [(part_name(each.name, n), type_, sql + condition) for n, (sql, type_) in enumerate(parts)]


def _of_column(kind: str, column: str, type_: str) -> list[tuple[str, str]]:
    is_decimal = type_.startswith("decimal")
    match kind:
        case "sum" if type_ == "bigint":
            return [(f"sum({column} & {_HALF}L)", "bigint"), (f"sum(shiftright({column}, 32))", "bigint")]
        case "sum" if type_ in INTEGERS:
            return [(f"sum(cast({column} as bigint))", "bigint")]
        case "sum" | "mean" if is_decimal and (sum_type := _sum_type(type_)):
            parts = [(f"sum({column})", sum_type)]
        case "sum" if type_ in FLOATS:
            parts = [(f"sum(cast({column} as double))", "double")]
        case "mean" if type_ in (*INTEGERS, *FLOATS):
            parts = [(f"sum(cast({column} as double))", "double")]
        case "min" | "max" if type_ in FLOATS:
            return [(f"{kind}(cast({column} as double))", "double")]
        case "min" | "max" if type_ in (*INTEGERS, "boolean", "date", "timestamp") or is_decimal:
            return [(f"{kind}({column})", type_)]
        case _:
            return []
    return [*parts, (f"count({column})", "bigint")] if kind == "mean" else parts


def _sum_type(type_: str) -> str:
    match = re.fullmatch(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", type_)
    digits, behind = (int(match[1]), int(match[2] or 0)) if match else (10, 0)
    return f"decimal({digits + 10},{behind})" if digits <= _MOST_DIGITS else ""

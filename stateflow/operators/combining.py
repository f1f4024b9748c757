"""Sums that Spark makes of a batch before the exchange: a row per key and piece of time in place of many.

Only aggregates whose partials Spark's SQL gives exactly as the kernels of `operators/ready` do are combined; an operator is
combined when all of its aggregates are. Sums of floats depend on the order of the rows in their last digits, combined or not.

    count           count
    sum, integers   the sum; of 64 bits two, of the upper and the lower half, so that no order of rows overflows
    sum, floats     the sum as a double
    sum, decimals   the sum, as long as its type has room for every batch
    mean            the sum, and the count
    min, max        of what Spark sums up in place: not of text and bytes, for which it would sort the rows
    count_distinct  running: a row per different value of each column that is counted, with the conditions that it met
"""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import dataclass

from stateflow.format.scalars import FLOATS, INTEGERS
from stateflow.operators.combined import COUNTED, MARKS, ROWS, counts_by_column, part_name, value_name
from stateflow.operators.condition_sql import NotInSparkError, condition_sql, default_sql
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.pipelines.ready.operators import LATE, RunningAggregate, WindowAggregate
from stateflow.pipelines.ready.windows import Cumulative, Sliding, Window
from stateflow.pipelines.rows.row_type import Field, RowType, quoted

_HALF = (1 << 32) - 1
_MOST_DIGITS = 28
"""Most digits of decimals that are summed: their sum has ten digits more, and at most 38."""
_MOST_COLUMNS = 4
"""Whose different values are counted: each row is looked up once for each of them, and with more of them that costs more than
exchanging the row."""
_MOST_COUNTS = 62
"""Most counts over one column: the bits of a number that is not negative."""


@dataclass(frozen=True)
class Combining:
    """How an operator's rows are combined. All texts are Spark's SQL."""

    rows: RowType
    """The columns that are read."""
    defaults: tuple[tuple[str, str], ...]
    """By name of the column: the value that stands for a null."""
    key: tuple[str, ...]
    time: str
    """The column of event time; empty: the operator has none."""
    piece: str
    """SQL for the last instant of the piece of time that holds the row. A window holds a piece as a whole, or nothing of it."""
    parts: tuple[str, ...]
    """SQL of what is computed over the rows of one key and piece, in the order of the last columns of `combined`."""
    combined: RowType
    """The columns of the combined rows."""
    counted: tuple[tuple[str, str, str], ...] = ()
    """The columns whose different values are counted: name, type, and a number with a bit for each count that the row is for.
    Each row comes once per such column, and `parts` belong to the rows of the first column."""


def combining_of(operator: ColumnarOperator | None, read: Set[str]) -> Combining | None:
    """How to combine the rows; None when the operator has to see each row. `read` names its outputs that have a reader."""
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
            (field.name, default_sql(field))
            for field in rows.fields
            if field.default is not None and field.name not in operator.key_columns
        )
        counted = _counted(operator)
        first = f"{COUNTED} = 0" if counted else ""
        parts = [
            part
            for each in operator.aggregates
            if each.value is None
            for part in _parts(each, operator.rows, first)
        ]
    except NotInSparkError:
        return None
    parts.append((ROWS, "bigint", f"count(1){_filter(first)}"))
    ours = [field for field in rows.fields if field.name in (*operator.key_columns, time)]
    combined = tuple(Field(field.name, field.type) for field in ours)
    if counted:
        parts.insert(0, (MARKS, "bigint", f"bit_or({MARKS})"))
        values = (Field(value_name(n), type_) for n, (_, type_, _) in enumerate(counted))
        combined += (Field(COUNTED, "int"), *values)
    combined += tuple(Field(name, kind) for name, kind, _ in parts)
    return Combining(
        rows,
        defaults,
        operator.key_columns,
        time,
        piece,
        tuple(f"{sql} as {quoted(name)}" for name, _, sql in parts),
        RowType("Row", combined, dict, False),
        counted,
    )


def _counted(operator: RunningAggregate | WindowAggregate) -> tuple[tuple[str, str, str], ...]:
    counted, by_column = [], counts_by_column(operator.aggregates)
    if len(by_column) > _MOST_COLUMNS:
        raise NotInSparkError(operator.uid)
    for column, counts in by_column.items():
        found = operator.rows.field(column)
        # Of a window the values would have to tell their piece of time.
        if found is None or len(counts) > _MOST_COUNTS or isinstance(operator, WindowAggregate):
            raise NotInSparkError(column)
        bits = (
            f"{1 << n}L"
            if each.condition is None
            else f"if({condition_sql(each.condition, operator.rows)}, {1 << n}L, 0L)"
            for n, each in enumerate(counts)
        )
        counted.append((column, found.type, " | ".join(bits)))
    return tuple(counted)


def _filter(*conditions: str) -> str:
    present = [condition for condition in conditions if condition]
    return f" FILTER (WHERE {' AND '.join(present)})" if present else ""


def piece_of(window: Window) -> tuple[int, int] | None:
    """The length and the offset of the pieces of time that each window consists of; None: its bounds depend on the rows."""
    match window:
        case Sliding(size, every, offset) | Cumulative(size, every, offset):
            return math.gcd(size, every), offset
    return None


def _piece_sql(time: str, length: int, offset: int) -> str:
    at = f"unix_micros({quoted(time)})"
    return f"timestamp_micros({at} - pmod({at} - {offset}L, {length}L) + {length - 1}L)"


def _parts(each: Aggregated, rows: RowType, first: str) -> list[tuple[str, str, str]]:
    """Name, type and SQL of an aggregate's partials, over rows that meet the condition `first`."""
    column, kind = each.aggregate.column, each.aggregate.kind
    condition = _filter(first, "" if each.condition is None else f"({condition_sql(each.condition, rows)})")
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

"""Aggregates as users declare them: `sf.count()`, `sf.sum("amount")`. What each keeps, and what comes out of it.

An aggregate is computed from *partials*: a few columns per group of rows. Partials of two groups merge into those of both,
so that a batch costs what its rows cost. Nulls do not count, as in SQL; an aggregate of nothing but nulls is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.rows import Field, RowType, spark_type

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")
KEPT_AS: Mapping[str, type[Any]] = {
    **dict.fromkeys(INTEGERS, int),
    **dict.fromkeys(FLOATS, float),
    "string": str,
    "binary": bytes,
    "boolean": bool,
    "date": int,
    "timestamp": datetime,
}
"""The type of the state column that keeps a value of a column; a date is kept as its day since 1970."""

_NUMBERS = "a number"
_EXACT = "a whole number, a string, a binary, a boolean, a date or a timestamp"
_ORDERED = "a number, a string, a binary, a boolean, a date or a timestamp"


@dataclass(frozen=True)
class OwnCode:
    """The functions of an aggregate that users write."""

    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    state: Any
    output: Any


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of an operator. `column` is empty for the count of all rows."""

    kind: str
    column: str = ""
    where: str = ""
    """A boolean column: only rows in which it is true count."""
    code: OwnCode | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the rows decides."""
        return self.kind in ("first", "last")


def count(column: str = "", *, where: str = "") -> Aggregate:
    """How many rows there are, or how many of them have a value in `column`."""
    return Aggregate("count", column, where)


def sum(column: str, *, where: str = "") -> Aggregate:
    """The sum of a number. Whole numbers are summed exactly: a sum beyond 64 bits is an error."""
    return Aggregate("sum", column, where)


def min(column: str, *, where: str = "") -> Aggregate:
    """The smallest value. NaN is larger than every number, as in Spark."""
    return Aggregate("min", column, where)


def max(column: str, *, where: str = "") -> Aggregate:
    """The largest value. NaN is larger than every number, as in Spark."""
    return Aggregate("max", column, where)


def mean(column: str, *, where: str = "") -> Aggregate:
    """The arithmetic mean, as a float."""
    return Aggregate("mean", column, where)


def variance(column: str, *, where: str = "") -> Aggregate:
    """The sample variance, as `VARIANCE` of Spark and Flink: null for fewer than two values."""
    return Aggregate("variance", column, where)


def stddev(column: str, *, where: str = "") -> Aggregate:
    """The sample standard deviation, as `STDDEV` of Spark and Flink: null for fewer than two values."""
    return Aggregate("stddev", column, where)


def first(column: str, *, where: str = "") -> Aggregate:
    """The first value by the key's `order_by`. Of rows that come at the same place, the smallest value."""
    return Aggregate("first", column, where)


def last(column: str, *, where: str = "") -> Aggregate:
    """The last value by the key's `order_by`. Of rows that come at the same place, the largest value."""
    return Aggregate("last", column, where)


def count_distinct(column: str, *, where: str = "") -> Aggregate:
    """How many different values there are, exactly. Each value is an entry of state, so that a batch costs what its own values
    cost."""
    return Aggregate("count_distinct", column, where)


def aggregate(
    column: str,
    *,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    state: Any,
    output: Any = None,
    where: str = "",
) -> Aggregate:
    """An aggregate of your own: `add(accumulator, value) -> accumulator` for every value that is not null, in no order, and
    `merge` for two accumulators. `state` is the type of the accumulator, `output` that of the result, if it is another one.
    """
    code = OwnCode(create, add, merge, result or _itself, state, state if output is None else output)
    return Aggregate("aggregate", column, where, code)


def _itself(accumulator: Any) -> Any:
    return accumulator


@dataclass(frozen=True)
class Aggregated:
    """An aggregate over columns whose types are known."""

    name: str
    """Of the column that it puts out."""
    aggregate: Aggregate
    result: str
    """Spark's type of what comes out."""
    partials: Mapping[str, type[Any]]
    """The state columns that it keeps, with their types."""
    order: tuple[str, ...] = ()
    """The columns that order the rows; one that begins with a minus descends."""
    value: type[Any] | None = None
    """The type of the values that it must know one by one."""


def aggregated(where: str, name: str, aggregate: Any, rows: RowType, order: tuple[str, ...]) -> Aggregated:
    """Checks an aggregate against the rows that it is given; `where` names the operator."""
    if not isinstance(aggregate, Aggregate):
        raise UsageError(f"{where}: {name}={aggregate!r} is not an aggregate: say one such as sf.count()")
    if aggregate.where:
        condition = _column(where, name, aggregate.where, rows)
        if condition.type != "boolean":
            raise UsageError(
                f"{where}: the condition of {name!r}, column {aggregate.where!r} ({condition.type}), is no "
                "boolean: compute a boolean column with transform()"
            )
    kind = aggregate.kind
    if kind == "count":
        if aggregate.column:
            _column(where, name, aggregate.column, rows)
        return Aggregated(name, aggregate, "bigint", {name: int})
    column = _column(where, name, aggregate.column, rows)
    if kind == "count_distinct":
        value = KEPT_AS.get(column.type)
        if value is None or value is float:
            raise UsageError(
                f"{where}: {name!r} counts the distinct values of column {column.name!r} ({column.type}), and takes {_EXACT}: cast "
                "the column with transform()"
            )
        return Aggregated(name, aggregate, "bigint", {name: int}, value=value)
    if aggregate.code is not None:
        result, _ = spark_type(aggregate.code.output, f"{where}: the result of {name!r}")
        return Aggregated(name, aggregate, result, {name: bytes})
    numbers = kind in ("sum", "mean", "variance", "stddev")
    if column.type not in ((*INTEGERS, *FLOATS) if numbers else KEPT_AS):
        raise UsageError(
            f"{where}: {name!r} is the {kind} of column {column.name!r} ({column.type}), and takes "
            f"{_NUMBERS if numbers else _ORDERED}: cast the column with transform()"
        )
    whole = column.type in INTEGERS
    match kind:
        case "sum":
            return Aggregated(
                name, aggregate, "bigint" if whole else "double", {name: int if whole else float}
            )
        case "mean":
            return Aggregated(name, aggregate, "double", {f"{name}_sum": float, f"{name}_n": int})
        case "variance" | "stddev":
            return Aggregated(
                name, aggregate, "double", {f"{name}_n": int, f"{name}_mean": float, f"{name}_m2": float}
            )
    value = KEPT_AS[column.type]
    if not aggregate.is_ordered:
        return Aggregated(name, aggregate, column.type, {name: value})
    if not order:
        raise UsageError(
            f"{where}: {name!r} is the {kind} of its rows, which have no order: say key_by(..., order_by=...)"
        )
    keys = {}
    for index, by in enumerate(order):
        place = _column(where, name, by.removeprefix("-"), rows)
        if place.type not in KEPT_AS:
            raise UsageError(
                f"{where}: {name!r} is ordered by column {place.name!r}, ({place.type}): order by {_ORDERED}"
            )
        keys[f"{name}_by{index}"] = KEPT_AS[place.type]
    return Aggregated(name, aggregate, column.type, {name: value, **keys}, order)


def _column(where: str, name: str, column: str, rows: RowType) -> Field:
    field = rows.field(column)
    if field is None:
        raise UsageError(
            f"{where}: {name!r} needs column {column!r}, but {rows.name} has none; it has {', '.join(rows.names)}"
        )
    return field


def fits(type_: str, field: str) -> bool:
    """Whether a column of the type `type_` can be put into a field of the type `field`: the same type, or a wider one."""
    for widths in (INTEGERS, FLOATS):
        if type_ in widths and field in widths:
            return widths.index(type_) <= widths.index(field)
    return type_ == field

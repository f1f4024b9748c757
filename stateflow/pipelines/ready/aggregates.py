"""Aggregates as users declare them: `sf.count()`, `sf.sum("amount")`. What each keeps, and what comes out of it.

An aggregate is computed from *partials*: a few columns per group of rows. Partials of two groups merge into those of both,
so that a batch costs what its rows cost. Nulls do not count, as in SQL; an aggregate of nothing but nulls is null.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.scalars import BY_TYPE, COLUMN_TYPES, FLOATS, INTEGERS
from stateflow.names import OPTIONS, suggestion, with_options
from stateflow.pipelines.code.signatures import takes
from stateflow.pipelines.conditions.expression import Expression, condition_of, is_name
from stateflow.pipelines.ready.stored_forms import PLAIN, form_of, is_ambiguous, packed_form
from stateflow.pipelines.ready.windows import at_least
from stateflow.pipelines.rows.row_type import Field, RowType, spark_type
from stateflow.pipelines.rows.type_text import same_type, size_of
from stateflow.state.factories import shared_by_all
from stateflow.state.values.serializers import serializer_for

KEPT_AS: Mapping[str, type[Any]] = {
    column.name: int if column.name == "date" else column.type
    for column in COLUMN_TYPES
    if column.name not in ("decimal", "timestamp_ltz", "timestamp_ntz")
}
"""The type of the state column that keeps a value of a column; a date is kept as its day since 1970."""

_NUMBERS = "a number"
_EXACT = "a whole number, a decimal, a string, a binary, a boolean, a date or a timestamp"
_ORDERED = "a number, a string, a binary, a boolean, a date or a timestamp"
_MOST_DIGITS = 38


def kept_as(type_: str) -> type[Any] | None:
    """The type of the state column that keeps a value of a column; a decimal is kept as bytes that sort as it does."""
    return bytes if type_.startswith("decimal") else KEPT_AS.get(type_)


@dataclass(frozen=True)
class OwnCode:
    """The functions of an aggregate that users write."""

    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    state: Any
    output: Any
    of_state: bool = False
    """True if `result` does not say its type: then the state's type stands for it."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of an operator. `column` is empty for the count of all rows."""

    kind: str
    column: str = ""
    where: str = ""
    """A boolean column, or a condition in SQL: only rows that fulfil it count."""
    code: OwnCode | None = None
    share: float = 0.0
    """Of a quantile: 0.5 is the median."""
    accuracy: float = 0.0
    """Of a quantile: how far it may be off, as a share of the exact one."""
    limit: int = 0
    """How many values come out, at most."""
    counts: bool = False
    """Of the most frequent values: whether their counts come out, too."""

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the rows decides."""
        return self.kind in ("first", "last", "collect")


@with_options
def count(column: str = "", *, where: str = "") -> Aggregate:
    """How many rows there are, or how many of them have a value in `column`."""
    return Aggregate("count", column, where)


@with_options
def sum(column: str, *, where: str = "") -> Aggregate:
    """The sum of a number. Whole numbers are summed exactly: a sum beyond 64 bits is an error."""
    return Aggregate("sum", column, where)


@with_options
def min(column: str, *, where: str = "") -> Aggregate:
    """The smallest value. NaN is larger than every number, as in Spark."""
    return Aggregate("min", column, where)


@with_options
def max(column: str, *, where: str = "") -> Aggregate:
    """The largest value. NaN is larger than every number, as in Spark."""
    return Aggregate("max", column, where)


@with_options
def mean(column: str, *, where: str = "") -> Aggregate:
    """The arithmetic mean, as a float."""
    return Aggregate("mean", column, where)


@with_options
def variance(column: str, *, where: str = "") -> Aggregate:
    """The sample variance, as `VARIANCE` of Spark and Flink: null for fewer than two values."""
    return Aggregate("variance", column, where)


@with_options
def stddev(column: str, *, where: str = "") -> Aggregate:
    """The sample standard deviation, as `STDDEV` of Spark and Flink: null for fewer than two values."""
    return Aggregate("stddev", column, where)


@with_options
def first(column: str, *, where: str = "") -> Aggregate:
    """The first value by the key's `order_by`. Of rows that come at the same place, the smallest value."""
    return Aggregate("first", column, where)


@with_options
def last(column: str, *, where: str = "") -> Aggregate:
    """The last value by the key's `order_by`. Of rows that come at the same place, the largest value."""
    return Aggregate("last", column, where)


@with_options
def count_distinct(column: str, *, approximate: bool = False, where: str = "") -> Aggregate:
    """How many different values there are, exactly. Each value is an entry of state, so that a batch costs what its own values
    cost. `approximate=True` keeps a sketch of at most 4 KB instead, with a standard error of 1.6 %."""
    return Aggregate("approximate_count_distinct" if approximate else "count_distinct", column, where)


@with_options
def quantile(column: str, share: float, *, accuracy: float = 0.01, where: str = "") -> Aggregate:
    """The smallest value that at least `share` of the values do not exceed: `quantile("ms", 0.95)`. What comes out is off by at
    most `accuracy` of it; with `accuracy=0` it is exact, and every different value is kept."""
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UsageError(f"quantile({column!r}, {share!r}): give it a share from 0 to 1, such as 0.95")
    if not isinstance(accuracy, int | float) or not (accuracy == 0 or 1e-4 <= accuracy < 1):
        raise UsageError(
            f"quantile({column!r}, accuracy={accuracy!r}): give it a share such as 0.01, at least 0.0001, or 0 for exact"
        )
    return Aggregate("quantile", column, where, share=float(share), accuracy=float(accuracy))


@with_options
def top_values(column: str, n: int, *, counts: bool = False, where: str = "") -> Aggregate:
    """The `n` most frequent values, the most frequent first; of those that are as frequent, the smallest. With `counts=True` each
    is a struct of `value` and `count`. All different values are kept."""
    return Aggregate(
        "top_values", column, where, limit=at_least(1, f"top_values: {n!r} values", n), counts=counts
    )


@with_options
def collect(column: str, limit: int, *, where: str = "") -> Aggregate:
    """The first `limit` values by the key's `order_by`, as a list."""
    return Aggregate("collect", column, where, limit=at_least(1, f"collect: {limit!r} values", limit))


@with_options
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
    functions = {
        "create": (create, 0),
        "add": (add, 2),
        "merge": (merge, 2),
        "result": (result or _itself, 1),
    }
    for name, (function, count) in functions.items():
        if not callable(function) or not takes(function, count) or iscoroutinefunction(function):
            values = ("no value", "one value", "two values")[count]
            raise UsageError(
                f"sf.aggregate({column!r}): {name} is {function!r}: give a function of {values} that is not async"
            )
    if shared := shared_by_all(create):
        raise UsageError(
            f"sf.aggregate({column!r}): create gives {shared} every time, which all keys would share: make a new one in it, such as "
            "create=list or create=lambda: [0, 0]"
        )
    unsaid = output is None
    code = OwnCode(
        create,
        add,
        merge,
        result or _itself,
        state,
        state if unsaid else output,
        unsaid and result is not None,
    )
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
    """Spark's type of the result."""
    partials: Mapping[str, type[Any]]
    """The state columns that it keeps, with their types."""
    order: tuple[str, ...] = ()
    """The columns that order the rows; one that begins with a minus descends."""
    value: type[Any] | None = None
    """The type of the values that are counted one by one."""
    condition: Expression | None = None
    kept: tuple[str, ...] = ()
    """For an aggregate that keeps values in one column: their scalar types, first the value's, then those of the order."""
    scale: int | None = None
    """For a sum of decimals: the digits behind the point."""
    as_floats: bool = False
    form: str = ""
    """What the values mean that it keeps, where the state's columns do not say it; empty where it keeps none."""

    @property
    def needs(self) -> set[str]:
        """The columns that it reads."""
        condition = () if self.condition is None else self.condition.columns()
        return {self.aggregate.column, *condition, *(by.removeprefix("-") for by in self.order)} - {""}


_ELSEWHERE = {
    "emit": "a running aggregate puts out a row per key and batch; emit= is of .window(...).aggregate()",
    "late": "give it to .window(..., late=)",
    "lateness": "give it to .window(..., lateness=)",
    "ttl": "a window is forgotten when it is closed; ttl= is of .key_by(...).aggregate()",
    "order_by": "give it to .key_by(..., order_by=)",
}
"""Options of other steps that people try to give to an aggregate."""
_OPTIONS = ("emit", "on_error", "queryable", "ttl")
"""Options of the steps that aggregate."""


def aggregated(where: str, name: str, aggregate: Any, rows: RowType, order: tuple[str, ...]) -> Aggregated:
    """Checks an aggregate against the rows that it is given; `where` names the operator."""
    if name in _ELSEWHERE and not isinstance(aggregate, Aggregate):
        raise UsageError(f"{where} has no option {name}: {_ELSEWHERE[name]}")
    if not isinstance(aggregate, Aggregate):
        if meant := suggestion(name, _OPTIONS, OPTIONS):
            raise UsageError(f"{where} has no option {name}{meant}")
        raise UsageError(f"{where}: {name}={aggregate!r} is not an aggregate: say one such as sf.count()")
    found = _typed(where, name, aggregate, rows, order)
    found = replace(found, form=_form(found, rows))
    return (
        replace(found, condition=condition_of_rows(where, name, aggregate.where, rows))
        if aggregate.where
        else found
    )


_KEEP_VALUES = frozenset({"sum", "mean", "min", "max", "first", "last", "count_distinct"})
_PACK_VALUES = frozenset({"collect", "top_values", "approximate_count_distinct"})


def _form(found: Aggregated, rows: RowType) -> str:
    kind = found.aggregate.kind
    if kind not in _KEEP_VALUES | _PACK_VALUES:
        return ""
    fields = (rows.field(name.removeprefix("-")) for name in (found.aggregate.column, *found.order))
    types = [field.type for field in fields if field is not None]
    if kind in _PACK_VALUES:
        return ", ".join(map(packed_form, types))
    return ", ".join(form_of(type_) or PLAIN for type_ in types) if any(map(is_ambiguous, types)) else ""


def condition_of_rows(where: str, name: str, text: str, rows: RowType) -> Expression:
    """The `where=` of an aggregate."""
    if not isinstance(text, str):
        raise UsageError(
            f"{where}: where= of {name!r} is {text!r}: give it a column, or a condition in SQL such as 'amount > 100'"
        )
    if is_name(text):
        column = _column(where, name, text, rows)
        if column.type != "boolean":
            raise UsageError(
                f"{where}: the condition of {name!r}, column {text!r} ({column.type}), is no boolean: say what it must be, "
                f'as in "{text} > 0"'
            )
        return Expression("column", "boolean", value=text)
    return condition_of(f"{where}, {name!r}", text, rows)


def _typed(where: str, name: str, aggregate: Aggregate, rows: RowType, order: tuple[str, ...]) -> Aggregated:
    kind = aggregate.kind
    if kind == "count":
        if aggregate.column:
            _column(where, name, aggregate.column, rows)
        return Aggregated(name, aggregate, "bigint", {name: int})
    column = _column(where, name, aggregate.column, rows)
    if aggregate.code is not None:
        result, _ = spark_type(aggregate.code.output, f"{where}: the result of {name!r}")
        try:
            serializer_for(aggregate.code.state)
        except UsageError as error:
            raise UsageError(f"{where}, state of {name!r}: {error}") from None
        return Aggregated(name, aggregate, result, {name: bytes})
    value = kept_as(column.type)
    match kind:
        case "sum" | "mean" | "variance" | "stddev" | "quantile":
            return _numeric(where, name, aggregate, column)
        case "count_distinct" | "top_values":
            if value is None or value is float:
                verb = "counts the distinct values" if kind == "count_distinct" else "counts the values"
                raise UsageError(
                    f"{where}: {name!r} {verb} of column {column.name!r} ({column.type}), and takes {_EXACT}: cast the column "
                    "with transform()"
                )
            if kind == "count_distinct":
                return Aggregated(name, aggregate, "bigint", {name: int}, value=value)
            item = f"struct<value:{column.type},count:bigint>" if aggregate.counts else column.type
            return Aggregated(name, aggregate, f"array<{item}>", {name: bytes}, kept=(BY_TYPE[value].name,))
    if value is None:
        raise UsageError(
            f"{where}: {name!r} is the {kind} of column {column.name!r} ({column.type}), and takes {_ORDERED}: cast the column "
            "with transform()"
        )
    if kind == "approximate_count_distinct":
        return Aggregated(name, aggregate, "bigint", {f"{name}_sketch": bytes})
    if not aggregate.is_ordered:
        return Aggregated(name, aggregate, column.type, {name: value})
    return _in_order(where, name, aggregate, column, rows, order)


def _numeric(where: str, name: str, aggregate: Aggregate, column: Field) -> Aggregated:
    kind, digits = aggregate.kind, size_of(column.type)
    if digits is None and column.type not in (*INTEGERS, *FLOATS):
        raise UsageError(
            f"{where}: {name!r} is the {kind} of column {column.name!r} ({column.type}), and takes {_NUMBERS}: cast the column "
            "with transform()"
        )
    match kind:
        case "sum" if digits is not None:
            result = f"decimal({builtins.min(digits[0] + 10, _MOST_DIGITS)},{digits[1]})"
            return Aggregated(name, aggregate, result, {name: bytes}, scale=digits[1])
        case "mean" if digits is not None:
            parts: dict[str, type[Any]] = {f"{name}_sum": bytes, f"{name}_n": int}
            return Aggregated(name, aggregate, _type_of_mean(*digits), parts, scale=digits[1])
        case "sum":
            whole = column.type in INTEGERS
            return Aggregated(
                name, aggregate, "bigint" if whole else "double", {name: int if whole else float}
            )
        case "mean":
            return Aggregated(name, aggregate, "double", {f"{name}_sum": float, f"{name}_n": int})
        case "quantile":
            # What is in a bucket depends on the accuracy: another one begins anew.
            within = f"{aggregate.accuracy:g}".replace(".", "_").replace("-", "_")
            return Aggregated(name, aggregate, "double", {f"{name}_within_{within}": bytes}, as_floats=True)
    moments: dict[str, type[Any]] = {f"{name}_n": int, f"{name}_mean": float, f"{name}_m2": float}
    return Aggregated(name, aggregate, "double", moments, as_floats=digits is not None)


def _in_order(
    where: str, name: str, aggregate: Aggregate, column: Field, rows: RowType, order: tuple[str, ...]
) -> Aggregated:
    if not order:
        raise UsageError(
            f"{where}: {name!r} is the {aggregate.kind} of its rows, which have no order: say key_by(..., order_by=...)"
        )
    kinds = [_kept_kind(column.type)]
    for by in order:
        place = _column(where, name, by.removeprefix("-"), rows)
        if kept_as(place.type) is None:
            raise UsageError(
                f"{where}: {name!r} is ordered by column {place.name!r}, ({place.type}): order by {_ORDERED}"
            )
        kinds.append(_kept_kind(place.type))
    if aggregate.kind == "collect":
        return Aggregated(
            name,
            aggregate,
            f"array<{column.type}>",
            {name: bytes},
            order,
            kept=tuple(BY_TYPE[each].name for each in kinds),
        )
    keys = {f"{name}_by{index}": kind for index, kind in enumerate(kinds[1:])}
    return Aggregated(name, aggregate, column.type, {name: kinds[0], **keys}, order)


def _kept_kind(type_: str) -> type[Any]:
    kind = kept_as(type_)
    assert kind is not None, "the caller has checked it"
    return kind


def _type_of_mean(precision: int, scale: int) -> str:
    """As in Spark: four digits more behind the point, as far as 38 digits go; at least six stay."""
    precision, scale = precision + 4, scale + 4
    if precision > _MOST_DIGITS:
        scale = builtins.max(_MOST_DIGITS - (precision - scale), builtins.min(scale, 6))
        precision = _MOST_DIGITS
    return f"decimal({precision},{scale})"


def _column(where: str, name: str, column: str, rows: RowType) -> Field:
    field = rows.field(column)
    if field is None:
        raise UsageError(
            f"{where}: {name!r} needs column {column!r}, but {rows.name} has none; it has {', '.join(rows.names)}"
        )
    return field


def fits(type_: str, field: str) -> bool:
    """Whether a field of the type `field` can hold a column of the type `type_`: it is the same type or a wider one."""
    for widths in (INTEGERS, FLOATS):
        if type_ in widths and field in widths:
            return widths.index(type_) <= widths.index(field)
    mine, other = size_of(type_), size_of(field)
    if mine is not None and other is not None:
        return mine[1] <= other[1] and mine[0] - mine[1] <= other[0] - other[1]
    return same_type(type_, field)

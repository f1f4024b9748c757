"""The part of a state table that the conditions of a query leave. Spark pushes conditions down from 4.1 on; older ones lack
these classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from stateflow.spark.state_tables.selection import EVERYTHING, Selection, both, of_groups, of_values
from stateflow.spark.state_tables.tables import Table


def selected(filters: Iterable[Filter], table: Table) -> Selection:
    """The part of a table that can satisfy all the filters."""
    key, most = table.operator.key, table.operator.max_parallelism
    columns = {name for name, _ in key}
    equal: dict[str, list[Any]] = {}
    selection = EVERYTHING
    for each in filters:
        if isinstance(each, Not) and isinstance(each.child, EqualTo) and isinstance(each.child.value, bool):
            each = EqualTo(each.child.attribute, not each.child.value)  # how Spark writes `flag = false`
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) != 1:
            continue
        name = path[0]
        if name == table.codec.names["key_group"]:
            selection = both(selection, _groups(each, most))
        values = _values(each)
        if name in columns and values is not None:
            values_so_far = equal.get(name)
            equal[name] = values if values_so_far is None else [v for v in values_so_far if v in values]
    return of_values(equal, key, most, selection)


_CALENDARS_AGREE = date(1583, 1, 1)
"""Days before this Spark hands over by another calendar than tables have them in."""


def _values(condition: Filter) -> list[Any] | None:
    """The values that the condition allows; None when it does not list values, or others than were meant. A null equals nothing."""
    match condition:
        case EqualTo() | EqualNullSafe():
            values = [condition.value]
        case In():
            values = [value for value in condition.value if value is not None]
        case _:
            return None
    return None if any(map(_may_be_another_day, values)) else values


def _may_be_another_day(value: Any) -> bool:
    day = value.date() if isinstance(value, datetime) else value
    return isinstance(day, date) and day < _CALENDARS_AGREE


_COMPARED: Mapping[type[Filter], Callable[[int, Any], bool]] = {
    LessThan: lambda group, value: group < value,
    LessThanOrEqual: lambda group, value: group <= value,
    GreaterThan: lambda group, value: group > value,
    GreaterThanOrEqual: lambda group, value: group >= value,
}


def _groups(condition: Filter, max_parallelism: int) -> Selection:
    values = _values(condition)
    if values is not None:
        return of_groups(group for group in range(max_parallelism) if group in values)
    holds = _COMPARED.get(type(condition))
    if holds is None:
        return EVERYTHING
    bound = getattr(condition, "value", None)
    return of_groups(group for group in range(max_parallelism) if holds(group, bound))

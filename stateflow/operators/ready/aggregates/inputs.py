"""The columns of a batch's rows in the form that aggregates need; columns that two aggregates share are made once."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa

from stateflow.operators.ready.aggregates.kept_columns import kept
from stateflow.operators.ready.aggregates.partials import CountedRows
from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.pipelines.conditions.evaluation import holds
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.state.values.arrow.digits import doubles

_Form = Literal["kept", "float", "as it is"]
"""The input that an aggregate needs from a column."""


class Inputs:
    def __init__(self, rows: pa.Table, groups: Groups) -> None:
        self.groups = groups
        self._rows = rows
        self._columns: dict[tuple[str, str], Any] = {}
        self._masks: dict[str, Any] = {}
        self._values: dict[tuple[str, str, str], tuple[Any, Any, Any]] = {}

    def of(self, each: Aggregated) -> CountedRows:
        ids, column, counts = self._counting(each)
        order = []
        for by in each.order:
            place = self._column(by.removeprefix("-"))
            order.append((place if counts is None else place.filter(counts), by.startswith("-")))
        return CountedRows(ids, column, tuple(order))

    def column(self, each: Aggregated) -> Any:
        """The values of all rows, those that do not count among them."""
        return self._column(each.aggregate.column, _form(each))

    def meets(self, each: Aggregated) -> Any:
        """A mask of the rows in which its condition is true; None: it has no condition."""
        if each.condition is None:
            return None
        where = each.aggregate.where
        if where not in self._masks:
            self._masks[where] = holds(each.condition, self._plain, self._rows.num_rows)
        return self._masks[where]

    def _counting(self, each: Aggregated) -> tuple[Any, Any, Any]:
        """The groups and the values of the rows that count, and a mask of these rows: None when all do."""
        name, form = each.aggregate.column, _form(each)
        known = (name, each.aggregate.where, form)
        if known not in self._values:
            mask = self.meets(each)
            column = self._column(name, form) if name else None
            if column is not None and column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
            ids, counts = self.groups.ids, None
            if mask is not None:
                counts = pa.array(mask)
                ids = ids[mask]
                column = column.filter(counts) if column is not None else None
            self._values[known] = (ids, column, counts)
        return self._values[known]

    def _column(self, name: str, form: _Form = "kept") -> Any:
        if (name, form) not in self._columns:
            column = self._plain(name)
            if form == "kept":
                column = kept(column)
            elif form == "float":
                column = doubles(column)
            self._columns[name, form] = column
        return self._columns[name, form]

    def _plain(self, name: str) -> Any:
        if (name, "as it is") not in self._columns:
            self._columns[name, "as it is"] = whole(self._rows[name])
        return self._columns[name, "as it is"]


def _form(each: Aggregated) -> _Form:
    """User code gets the values of the rows: a date, and not the number by which state keeps it."""
    if each.aggregate.code is not None:
        return "as it is"
    return "float" if each.as_floats else "kept"

"""All aggregates of one operator together: from rows to partials, from partials to what the operator puts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import StateflowError
from stateflow.operators.ready.distinct import Seen
from stateflow.operators.ready.groups import Groups, whole
from stateflow.operators.ready.own import Own
from stateflow.operators.ready.partials import Kernel, OverflowedSum, Values, kernel_of
from stateflow.pipelines.aggregates import Aggregated
from stateflow.state.keys.arrow_types import ARROW


class Accumulator:
    """The partials are a table with a row per group; its columns are those of the operator's state."""

    def __init__(self, where: str, aggregates: Sequence[Aggregated]) -> None:
        self._where = where
        self._aggregates = [(each, _kernel(each)) for each in aggregates]

    def create(self, rows: pa.Table, groups: Groups, keys: pa.Table, seen: Seen | None = None) -> pa.Table:
        """The partials of the rows; `keys` has a row per group. `seen` knows the values that were counted before."""
        inputs = _Inputs(rows, groups)
        columns: dict[str, Any] = {}
        for each, kernel in self._aggregates:
            try:
                values = inputs.of(each)
                if each.value is not None:
                    assert seen is not None, "the operator has no state for single values"
                    values = seen.unseen(each, values, keys)
                parts = kernel.create(values, groups)
            except OverflowedSum as error:
                raise self._overflowed(each, keys, error) from None
            columns.update(zip(each.partials, parts, strict=True))
        return _table(columns, groups.size)

    def merge(self, one: pa.Table, other: pa.Table, keys: pa.Table) -> pa.Table:
        """The partials of both, group by group; null in a row that one of them does not have."""
        columns: dict[str, Any] = {}
        for each, kernel in self._aggregates:
            left, right = ([whole(side[name]) for name in each.partials] for side in (one, other))
            try:
                parts = kernel.merge(left, right)
            except OverflowedSum as error:
                raise self._overflowed(each, keys, error) from None
            columns.update(zip(each.partials, parts, strict=True))
        return _table(columns, len(keys))

    def combine(self, partials: pa.Table, others: pa.Table, into: Any, keys: pa.Table) -> pa.Table:
        """Merges each row of `others` into the row of `partials` that `into` names; it may name one several times, and
        none with a number below zero."""
        rows = np.flatnonzero(into >= 0)
        rows = rows[np.argsort(into[rows], kind="stable")]
        while len(rows):
            targets = into[rows]
            is_first = np.ones(len(rows), dtype=bool)
            is_first[1:] = targets[1:] != targets[:-1]
            chosen, places = pa.array(rows[is_first]), targets[is_first]
            before = partials.take(pa.array(places))
            merged = self.merge(others.take(chosen), before, keys.take(pa.array(places)))
            partials = _replaced(partials, merged, places)
            rows = rows[~is_first]
        return partials

    def reduce(self, partials: pa.Table, into: Any, keys: pa.Table) -> pa.Table:
        """The partials of groups, each made of all rows of a group; `into` are the groups of the rows. Neighbours merge two
        by two, so that there are as many rounds as a group's size has digits, in twos."""
        order = np.argsort(into, kind="stable")
        names = [name for each, _ in self._aggregates for name in each.partials]
        partials = partials.select(names).take(pa.array(order))
        into, keys = into[order], keys.take(pa.array(order))
        while True:
            begins = np.ones(len(into), dtype=bool)
            begins[1:] = into[1:] != into[:-1]
            if bool(begins.all()):
                return partials
            starts = np.flatnonzero(begins)
            place = np.arange(len(into)) - np.repeat(starts, np.diff(np.append(starts, len(into))))
            kept = np.flatnonzero(place % 2 == 0)
            paired = kept[np.append(place[1:] % 2 == 1, False)[kept]]
            left = pa.array(paired)
            merged = self.merge(partials.take(left), partials.take(pa.array(paired + 1)), keys.take(left))
            partials = _replaced(partials, merged, paired).take(pa.array(kept))
            into, keys = into[kept], keys.take(pa.array(kept))

    def results(self, partials: pa.Table) -> dict[str, Any]:
        """The columns that come out, by name."""
        out = {}
        for each, kernel in self._aggregates:
            result = kernel.result([whole(partials[name]) for name in each.partials])
            out[each.name] = result.cast(pa.int32()).view(pa.date32()) if each.result == "date" else result
        return out

    def _overflowed(self, each: Aggregated, keys: pa.Table, error: OverflowedSum) -> StateflowError:
        key = ", ".join(f"{name}={keys[name][error.group].as_py()!r}" for name in keys.column_names)
        return StateflowError(
            f"{self._where}: {each.name!r}, the sum of {each.aggregate.column!r}, is beyond 64 bits for {key}: "
            f"give the operator a new uid and sum the column as a double, cast with transform()"
        )


class _Inputs:
    """The columns of the rows as the aggregates want them; what two of them share is made once."""

    def __init__(self, rows: pa.Table, groups: Groups) -> None:
        self._rows = rows
        self._groups = groups
        self._columns: dict[str, Any] = {}
        self._values: dict[tuple[str, str], tuple[Any, Any, Any]] = {}

    def of(self, each: Aggregated) -> Values:
        ids, column, counts = self._counting(each.aggregate.column, each.aggregate.where)
        order = []
        for by in each.order:
            place = self._column(by.removeprefix("-"))
            order.append((place if counts is None else place.filter(counts), by.startswith("-")))
        return Values(ids, column, tuple(order))

    def _counting(self, name: str, where: str) -> tuple[Any, Any, Any]:
        """The groups and the values of the rows that count, and a mask of these rows: None when all do."""
        if (name, where) not in self._values:
            mask: Any = None
            if where:
                condition = self._column(where)
                mask = condition.fill_null(False).to_numpy(zero_copy_only=False)
            column = self._column(name) if name else None
            if column is not None and column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
            ids, counts = self._groups.ids, None
            if mask is not None:
                counts = pa.array(mask)
                ids = ids[mask]
                column = column.filter(counts) if column is not None else None
            self._values[name, where] = (ids, column, counts)
        return self._values[name, where]

    def _column(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = _kept(whole(self._rows[name]))
        return self._columns[name]


def _kept(column: Any) -> Any:
    """The column in the type that the state keeps."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind) and kind != ARROW["datetime"]:
        return column.cast(ARROW["datetime"])
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    return column


def _kernel(each: Aggregated) -> Kernel:
    kept_as = next(iter(each.partials.values()))
    if each.aggregate.code is not None:
        return Own(each.aggregate.code, each.result)
    return kernel_of(each.aggregate.kind, kept_as, [by.startswith("-") for by in each.order])


def _replaced(table: pa.Table, rows: pa.Table, places: Any) -> pa.Table:
    """The table with other rows in some places."""
    source = np.arange(table.num_rows)
    source[places] = table.num_rows + np.arange(len(places))
    return pa.concat_tables([table, rows]).take(pa.array(source))


def _table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    if columns:
        return pa.table(dict(columns))
    return pa.table({"": np.empty(rows)}).select([])

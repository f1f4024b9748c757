"""All aggregates of one operator together: from rows to partials, from partials to output rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import StateflowError, UserCodeError, placed
from stateflow.operators.arrow_types import arrow_type
from stateflow.operators.combined import COUNTED, is_combined
from stateflow.operators.engine import REPEATED
from stateflow.operators.ready.aggregates.collected import Collected, Frequencies
from stateflow.operators.ready.aggregates.combined_partials import given_parts
from stateflow.operators.ready.aggregates.decimals import DecimalMean, DecimalSum
from stateflow.operators.ready.aggregates.distinct import Seen, counted_before, counted_in
from stateflow.operators.ready.aggregates.distinct_sketch import DistinctSketch
from stateflow.operators.ready.aggregates.inputs import Inputs
from stateflow.operators.ready.aggregates.kept_columns import restored
from stateflow.operators.ready.aggregates.own import Own
from stateflow.operators.ready.aggregates.partials import CountedRows, Kernel, kernel_of
from stateflow.operators.ready.aggregates.quantiles import Quantile
from stateflow.operators.ready.aggregates.row_frames import EncodedRows, heading
from stateflow.operators.ready.grouping.failed_groups import (
    FailedCode,
    FailedGroups,
    Failure,
    OverflowedMean,
    OverflowedSum,
)
from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.operators.ready.grouping.keys import columns_of
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.pipelines.ready.operators import WINDOW_END, WINDOW_START


class Accumulator:
    """The partials are a table with a row per group; its columns are those of the operator's state."""

    def __init__(self, where: str, aggregates: Sequence[Aggregated], *, diverts: bool = False) -> None:
        """With `diverts` rows that cannot be aggregated raise `FailedGroups`, which names every such group; otherwise they
        raise an error for people."""
        self._where = where
        self._diverts = diverts
        self._aggregates = [(each, _kernel(each)) for each in aggregates]
        self._distinct = [each for each in aggregates if each.value is not None]
        self._plain: Accumulator | None = None
        """The aggregates that do not count different values, if any does."""
        if self._distinct:
            others = [each for each in aggregates if each.value is None]
            self._plain = Accumulator(where, others, diverts=diverts)

    def create(self, rows: pa.Table, groups: Groups, keys: pa.Table, seen: Seen | None = None) -> pa.Table:
        """The partials of the rows; `keys` has a row per group. `seen` knows the values that were counted before."""
        if is_combined(rows):
            if self._plain is None:
                return self._given(rows, groups, keys)
            return self._given_values(self._plain, rows, groups, keys, seen)
        inputs = Inputs(rows, groups)
        columns: dict[str, Any] = {}
        unseen: dict[str, CountedRows] = {}
        if self._distinct:
            assert seen is not None, "the operator has no state for single values"
            unseen = seen.unseen(counted_in(self._distinct, inputs), keys)
        for each, kernel in self._aggregates:
            values = unseen[each.name] if each.name in unseen else inputs.of(each)
            parts = self._named(each, keys, kernel.create, values, groups)
            columns.update(zip(each.partials, parts, strict=True))
        return _table(columns, groups.size)

    def _given(self, rows: pa.Table, groups: Groups, keys: pa.Table) -> pa.Table:
        """The partials that combined rows bring."""
        of_rows = keys.take(pa.array(groups.ids))
        partials = self._partials(rows, of_rows)
        if groups.size == rows.num_rows:
            return partials.take(pa.array(groups.firsts))
        return self.reduce(partials, groups.ids, of_rows)

    def _partials(self, rows: pa.Table, of_rows: pa.Table) -> pa.Table:
        """Those of each combined row."""
        columns: dict[str, Any] = {}
        for each, _ in self._aggregates:
            columns.update(
                zip(each.partials, self._named(each, of_rows, given_parts, each, rows), strict=True)
            )
        return _table(columns, rows.num_rows)

    def _given_values(
        self, plain: Accumulator, rows: pa.Table, groups: Groups, keys: pa.Table, seen: Seen | None
    ) -> pa.Table:
        """The same of rows that bring the different values of columns. Those of the first column have the partials of the others."""
        assert seen is not None, "the operator has no state for single values"
        columns: dict[str, Any] = {}
        if plain._aggregates:
            # A group has some row, whichever columns the rows of its table are for.
            chosen = rows[COUNTED].to_numpy() == 0
            chosen[groups.firsts] = True
            ids = groups.ids[chosen]
            of_rows = keys.take(pa.array(ids))
            reduced = plain.reduce(plain._partials(rows.filter(pa.array(chosen)), of_rows), ids, of_rows)
            columns.update(columns_of(reduced))
        unseen = seen.unseen(counted_before(self._distinct, rows, groups), keys)
        for each, kernel in self._aggregates:
            if each.name in unseen:
                columns.update(zip(each.partials, kernel.create(unseen[each.name], groups), strict=True))
        return _table(columns, groups.size)

    def merge(self, one: pa.Table, other: pa.Table, keys: pa.Table) -> pa.Table:
        """The partials of both tables side by side, group by group; null where one of them lacks the group."""
        columns: dict[str, Any] = {}
        for each, kernel in self._aggregates:
            left, right = ([whole(side[name]) for name in each.partials] for side in (one, other))
            parts = self._named(each, keys, kernel.merge, left, right)
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
            try:
                merged = self.merge(others.take(chosen), before, keys.take(pa.array(places)))
            except FailedGroups as failed:
                raise failed.renumbered(places) from None
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
            try:
                merged = self.merge(partials.take(left), partials.take(pa.array(paired + 1)), keys.take(left))
            except FailedGroups as failed:
                raise failed.renumbered(into[paired]) from None
            partials = _replaced(partials, merged, paired).take(pa.array(kept))
            into, keys = into[kept], keys.take(pa.array(kept))

    def results(self, partials: pa.Table, keys: pa.Table) -> dict[str, Any]:
        """The columns that come out, by name."""
        out = {}
        for each, kernel in self._aggregates:
            parts = [whole(partials[name]) for name in each.partials]
            result = self._named(each, keys, kernel.result, parts)
            out[each.name] = restored(result, arrow_type(each.result))
        return out

    def _named(self, each: Aggregated, keys: pa.Table, code: Callable[..., Any], *given: Any) -> Any:
        """The kernel's result. An error names the operator, the aggregate and the key."""
        try:
            return code(*given)
        except OverflowedSum as overflow:
            kind, again = "sum", "sum"
            room = "38 digits" if each.result.startswith("decimal") else "64 bits"
            if isinstance(overflow, OverflowedMean):
                kind, again, room = "mean", "average", each.result
            what = f"{each.name!r}, the {kind} of {each.aggregate.column!r}"
            beyond = OverflowError(f"the {kind} is beyond {room}")
            if self._diverts:
                raise FailedGroups({group: Failure(what, beyond) for group in overflow.groups}) from None
            wider = "double" if each.result.startswith("decimal") else "decimal(38,0)"
            raise StateflowError(
                f"{self._where}: {what}, is beyond {room} for {_key(keys, overflow.groups[0])}: divert such rows with "
                f"on_error='dead_letter', or give the operator a new uid and {again} the column as a {wider}, cast with transform()"
            ) from None
        except FailedCode as failed:
            failures = {
                group: Failure(f"{function}() of {each.name!r}", error)
                for group, (function, error) in failed.failures.items()
            }
            if self._diverts:
                raise FailedGroups(failures) from None
            group, first = next(iter(failures.items()))
            raise UserCodeError(
                f"{self._where}: {first.what} failed for {_key(keys, group)}: {placed(first.error)}: {REPEATED}, or divert such "
                "rows with on_error='dead_letter'"
            ) from first.error


def _key(keys: pa.Table, group: int) -> str:
    """The key, and the window where the table has its bounds."""
    bounds = [name for name in (WINDOW_START, WINDOW_END) if name in keys.column_names]
    names = [name for name in keys.column_names if len(bounds) < 2 or name not in bounds]
    key = ", ".join(f"{name}={keys[name][group].as_py()!r}" for name in names)
    return key if len(bounds) < 2 else f"{key} and {window_text(keys, group)}"


def window_text(windows: pa.Table, at: int) -> str:
    """One of the windows, for people."""
    start, end = (windows[name][at].as_py().isoformat() for name in (WINDOW_START, WINDOW_END))
    return f"the window from {start} to {end}"


def _kernel(each: Aggregated) -> Kernel:
    aggregate, kept_as = each.aggregate, next(iter(each.partials.values()))
    descends = [by.startswith("-") for by in each.order]
    if aggregate.code is not None:
        return Own(aggregate.code, each.result)
    match aggregate.kind:
        case "approximate_count_distinct":
            return DistinctSketch()
        case "quantile":
            return Quantile(aggregate.share, aggregate.accuracy)
        case "collect":
            return Collected(aggregate.limit, descends, each.kept, arrow_type(each.result))
        case "rows":
            return EncodedRows(heading(each.kept))
        case "top_values":
            return Frequencies(aggregate.limit, each.kept[0], arrow_type(each.result))
        case "sum" if each.scale is not None:
            return DecimalSum()
        case "mean" if each.scale is not None:
            return DecimalMean(each.scale, arrow_type(each.result))
    return kernel_of(aggregate.kind, kept_as, descends)


def _replaced(table: pa.Table, rows: pa.Table, places: Any) -> pa.Table:
    """The table with other rows in some places."""
    source = np.arange(table.num_rows)
    source[places] = table.num_rows + np.arange(len(places))
    return pa.concat_tables([table, rows]).take(pa.array(source))


def _table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    if columns:
        return pa.table(dict(columns))
    return pa.table({"": np.empty(rows)}).select([])

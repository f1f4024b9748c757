"""The first rows of each key, and how that list changes from batch to batch.

`rows` has what is in the list by its place. Where the last of several alike rows counts, a row can get worse and another one
come back. Then `rows` has all rows, and a place is only a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.keys import columns_of, grouped_by_key
from stateflow.operators.ready.grouping.latest_rows import LatestRows
from stateflow.operators.ready.grouping.ordered_values import codes, in_order, ranks
from stateflow.operators.ready.windows.stored_rows import StoredRows
from stateflow.pipelines.changes import DELETE, OPERATION, UPSERT
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.operators import stored_name
from stateflow.pipelines.top import PLACE, Top

_ROW = "_sf_row"


class TopRows(ColumnarOperator):
    def __init__(self, declared: Top) -> None:
        self.states = declared.states
        self._declared = declared
        self._key = declared.key
        self._stored = StoredRows(declared.uid, declared.rows, declared.kept)
        self._by = [_column(by) for by in declared.by]
        self._last_by = [_column(by) for by in declared.last_by if by.removeprefix("-") in declared.kept]
        assert declared.changes is not None
        self._latest = LatestRows(declared.key, declared.changes)

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        groups, keys = grouped_by_key(rows, self._key)
        before = states["rows"].entries(keys, row=_ROW)
        listed = _Listed(
            pa.concat_tables([before.select(self._stored.names), self._stored.of_rows(rows)]),
            np.concatenate((whole(before[_ROW]).to_numpy(), groups.ids)),
            before.num_rows,
            self._declared,
        )
        chosen = listed.chosen(self._by, self._last_by)
        ranked = listed.ranked(chosen, self._by)
        places = whole(before[PLACE]).to_numpy()
        # A place is the rank that was put out. Where it is none, rows that are alike in `by` are of other kinds, which order them.
        old = listed.ranked(np.arange(before.num_rows), self._by) if self._last_by else places
        self._keep(states["rows"], listed, chosen, ranked, places, keys)
        yield from self._latest.put(self._changes(listed, old, ranked, keys), rows)

    def _keep(
        self, state: Any, listed: _Listed, chosen: Any, ranked: Any, places: Any, keys: pa.Table
    ) -> None:
        """Writes the rows that are new, or stand at another place."""
        if self._last_by:
            kept, at = listed.numbered(chosen, places)
        else:
            kept = np.flatnonzero(ranked >= 0)
            at = ranked[kept]
            if len(beyond := listed.beyond(places, ranked)):
                gone = pa.table({PLACE: places[beyond]})
                state.delete(keys.take(pa.array(listed.ids[beyond])), by=gone)
        was = np.full(len(ranked), -1, dtype=np.int64)
        was[: len(places)] = places
        moved = was[kept] != at
        kept, at = kept[moved], at[moved]
        owners = keys.take(pa.array(listed.ids[kept]))
        state.put(owners, listed.rows.take(pa.array(kept)), by=pa.table({PLACE: at}))

    def _changes(self, listed: _Listed, old: Any, ranked: Any, keys: pa.Table) -> pa.Table:
        was = np.full(len(ranked), -1, dtype=np.int64)
        was[: len(old)] = old
        new = np.flatnonzero((ranked >= 0) & (ranked != was))
        gone = np.flatnonzero((was >= 0) & (ranked < 0))
        if self._declared.per:
            # What another row of its kind follows is replaced by it.
            gone = gone[~np.isin(listed.alike[gone], listed.alike[np.flatnonzero(ranked >= 0)])]
        else:
            gone = listed.beyond(old, ranked)  # each place before has its next row
        rows = np.concatenate((gone, new))
        at = pa.array(rows)
        owners = keys.take(pa.array(listed.ids[rows]))
        stored = listed.rows.take(at)
        out = self._stored.rows(pa.table(columns_of(owners, stored)))
        out = out.append_column(self._declared.rank, pa.array(np.concatenate((was[gone], ranked[new])) + 1))
        operations = [pa.repeat(DELETE, len(gone)), pa.repeat(UPSERT, len(new))]
        return out.append_column(OPERATION, pa.chunked_array(operations, pa.string()))

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Iterator[pa.Table]:
        yield from self._latest.rest()


class _Listed:
    """The rows of a batch behind those that were kept. `ids` are indices into the keys of the batch."""

    def __init__(self, rows: pa.Table, ids: Any, old: int, declared: Top) -> None:
        self.rows, self.ids = rows, ids
        self._old = old
        self._n = declared.n
        self._codes: dict[str, Any] = {}
        self._kinds = bool(declared.per)
        if declared.per:
            per = [pa.array(self._code(stored_name(name))) for name in declared.per]
            self.alike = grouped([pa.array(ids), *per], len(ids)).ids
        else:
            self.alike = np.arange(len(ids))
        """Rows of a number are alike in `per`."""
        # What a release does not change comes first: no two rows of a list are alike in that.
        self._content = dict.fromkeys((*map(stored_name, declared.per), *rows.column_names))

    def _code(self, name: str) -> Any:
        if name not in self._codes:
            self._codes[name] = codes(whole(self.rows[name]))
        return self._codes[name]

    def _order(self, rows: Any, first: Any, by: Sequence[tuple[str, bool]], *, last: bool = False) -> Any:
        """The rows by `first`, then by columns, then by their content: the smallest first, or with `last` the largest."""
        ordered, begins = self._by_columns(rows, first, by, last=last)
        # Most rows have a place of their own. To rank the content of all of them would take longer than the rest.
        return self._settled(ordered, begins, _tied(begins), last=last)

    def _by_columns(
        self, rows: Any, first: Any, by: Sequence[tuple[str, bool]], *, last: bool
    ) -> tuple[Any, Any]:
        """The rows in order, but for those that are alike in these columns; and which of them begin such a run."""
        sign = -1 if last else 1
        all_codes = [first, *(self._code(name) * (-sign if descends else sign) for name, descends in by)]
        order, begins = in_order([code[rows] for code in all_codes])
        return rows[order], begins

    def _settled(self, ordered: Any, begins: Any, tied: Any, *, last: bool = False) -> Any:
        """The same with the `tied` ones by their content."""
        if len(tied):
            among = pa.array(ordered[tied])
            sign = -1 if last else 1
            content = [ranks(whole(self.rows[name].take(among))) * sign for name in self._content]
            ordered[tied] = ordered[tied][np.lexsort((*reversed(content), np.cumsum(begins)[tied]))]
        return ordered

    def chosen(self, by: Sequence[tuple[str, bool]], last_by: Sequence[tuple[str, bool]]) -> Any:
        """One row of each kind. Of two rows with the same content the stored one stays: sorting keeps its place."""
        rows = np.arange(len(self.ids))
        if not self._kinds:
            return rows
        ordered = (
            self._order(rows, self.alike, last_by, last=True)
            if last_by
            else self._order(rows, self.alike, by)
        )
        kinds = self.alike[ordered]
        begins = np.ones(len(ordered), dtype=bool)
        begins[1:] = kinds[1:] != kinds[:-1]
        return ordered[begins]

    def ranked(self, rows: Any, by: Sequence[tuple[str, bool]]) -> Any:
        """For every row its rank from 0 on among `rows` of its key; below zero for one that is not in the list."""
        ordered, begins = self._by_columns(rows, self.ids, by, last=False)
        counts = np.bincount(self.ids[ordered], minlength=int(self.ids.max(initial=-1)) + 1)
        place = np.arange(len(ordered)) - (np.cumsum(counts) - counts)[self.ids[ordered]]
        # What is tied behind the list needs no order.
        tied = _tied(begins)
        first = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        ordered = self._settled(ordered, begins, tied[place[first[tied]] < self._n])
        out = np.full(len(self.ids), -1, dtype=np.int64)
        inside = place < self._n
        out[ordered[inside]] = place[inside]
        return out

    def beyond(self, places: Any, ranked: Any) -> Any:
        """The rows that were kept at places behind the end of today's list, which is shorter when rows have expired."""
        ids = self.ids[: self._old]
        lengths = np.bincount(self.ids[ranked >= 0], minlength=int(ids.max(initial=-1)) + 1)
        return np.flatnonzero(places >= lengths[ids])

    def numbered(self, chosen: Any, places: Any) -> tuple[Any, Any]:
        """The rows, and for each the number of its kind; new kinds of a key are numbered on."""
        number = np.full(int(self.alike.max(initial=-1)) + 1, -1, dtype=np.int64)
        number[self.alike[: self._old]] = places
        new = chosen[number[self.alike[chosen]] < 0]
        new = new[np.argsort(self.ids[new], kind="stable")]
        keys = int(self.ids.max(initial=-1)) + 1
        next_free = np.zeros(keys, dtype=np.int64)
        np.maximum.at(next_free, self.ids[: self._old], places + 1)
        counts = np.bincount(self.ids[new], minlength=keys)
        index = np.arange(len(new)) - (np.cumsum(counts) - counts)[self.ids[new]]
        number[self.alike[new]] = next_free[self.ids[new]] + index
        return chosen, number[self.alike[chosen]]


def _tied(begins: Any) -> Any:
    """The places of rows in runs of several."""
    return np.flatnonzero(~begins | ~np.append(begins[1:], True))


def _column(by: str) -> tuple[str, bool]:
    return stored_name(by.removeprefix("-")), by.startswith("-")

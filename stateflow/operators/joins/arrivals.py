"""The rows of both inputs of a join that may have partners: late rows and rows without a key are taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.row_blocks import RowBlocks, Rows
from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.keys import key_column, one_of_each
from stateflow.operators.ready.windows.assigning import event_times
from stateflow.operators.ready.windows.windowed import NEVER
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joins import LATE_LEFT, LATE_RIGHT, JoinOperator, Side
from stateflow.pipelines.ready.operators import LATE_ROWS, PARTLY_LATE_ROWS

Produced = Iterator[pa.Table | tuple[str, pa.Table]]


@dataclass(frozen=True)
class Came:
    """Rows of one input that may have partners."""

    rows: Rows
    owners: Any
    """For each row the number of its key."""
    places: Any = None
    """Where each row is in the input, as it came."""

    def take(self, chosen: Any) -> Came:
        """`chosen` says of each row whether it stays."""
        at = np.flatnonzero(chosen)
        return Came(self.rows.take(at), self.owners[at], self.places[at])


@dataclass(frozen=True)
class Arrivals:
    keys: pa.Table
    """The keys of all rows that may have partners, each once; columns as the left input calls them."""
    left: Came
    right: Came
    without_key: tuple[tuple[pa.Table, Rows], tuple[pa.Table, Rows]]
    """By input: the rows with a null in their key, which have no partners, beside that key."""
    late: tuple[pa.Table, pa.Table]
    """By input: the rows that are late."""


class Arriving:
    def __init__(
        self,
        declared: JoinOperator,
        layouts: tuple[RowBlocks, ...],
        lasts: Callable[[Any], Any] | None = None,
        lasts_alone: Callable[[Any], Any] | None = None,
    ) -> None:
        """`lasts` gives for each time the last watermark at which its row is not late; without it that is the time itself.
        `lasts_alone` does the same for rows without a key, where that differs."""
        self._declared = declared
        self._lasts = lasts or (lambda times: times)
        self._lasts_alone = lasts_alone
        self._layouts = layouts

    def of(self, left: pa.Table, right: pa.Table, closed: int) -> Arrivals:
        """Rows whose time is after `closed` are not late."""
        declared, key = self._declared, self._declared.key
        tables, times, places, late, bare = [], [], [], [], []
        for side, layout, table in zip(
            (declared.left, declared.right), self._layouts, (left, right), strict=True
        ):
            at, in_time = self._times(side, table, closed)
            place = np.flatnonzero(in_time)
            if not bool(in_time.all()):
                late.append(table.filter(pa.array(~in_time)))
                table, at = table.filter(pa.array(in_time)), at[in_time]
            else:
                late.append(table.slice(0, 0))
            columns = [
                key_column(table[name], name, kind) for name, (_, kind) in zip(side.key, key, strict=True)
            ]
            has_key = np.ones(len(at), dtype=bool)
            for column in columns:
                if column.null_count:
                    has_key &= column.is_valid().to_numpy(zero_copy_only=False)
            rows = Rows(at, np.zeros(len(at), dtype=bool), _kept(table, layout))
            keys = pa.table({name: column for (name, _), column in zip(key, columns, strict=True)})
            without = np.flatnonzero(~has_key)
            if self._lasts_alone is not None and len(without):
                over = self._lasts_alone(at[without]) <= closed
                late[-1] = pa.concat_tables([late[-1], table.take(pa.array(without[over]))])
                without = without[~over]
            bare.append((keys.take(pa.array(without)), rows.take(without)))
            if not bool(has_key.all()):
                there = np.flatnonzero(has_key)
                keys, rows, place = keys.take(pa.array(there)), rows.take(there), place[there]
            places.append(place)
            tables.append(keys)
            times.append(rows)
        together = pa.concat_tables(tables)
        columns = [whole(column) for column in together.columns]
        groups = grouped(columns, len(together))
        keys = one_of_each(columns, key, groups.firsts)
        split = len(times[0])
        return Arrivals(
            keys, Came(times[0], groups.ids[:split], places[0]), Came(times[1], groups.ids[split:], places[1]),
            (bare[0], bare[1]), (late[0], late[1]),
        )  # fmt: skip

    def _times(self, side: Side, table: pa.Table, closed: int) -> tuple[Any, Any]:
        """The times of rows, and which of the rows are not late."""
        if side.time:
            at, valid = event_times(table, side.time)
            return at, valid & (self._lasts(at) > closed)
        at = np.zeros(table.num_rows, dtype=np.int64)
        if side.order:
            at, valid = event_times(table, side.order)
            at = np.where(valid, at, NEVER)
        return at, np.ones(table.num_rows, dtype=bool)


@dataclass(frozen=True)
class LateSides:
    """Counts late rows. Puts the late rows of an input out if somebody reads them."""

    wanted: frozenset[str]

    def count_partly(self, rows: int, ctx: ColumnarContext) -> None:
        if rows:
            ctx.metrics.counter(PARTLY_LATE_ROWS).inc(rows)

    def put(self, late: tuple[pa.Table, pa.Table], ctx: ColumnarContext) -> Iterator[tuple[str, pa.Table]]:
        for name, rows in zip((LATE_LEFT, LATE_RIGHT), late, strict=True):
            if rows.num_rows:
                ctx.metrics.counter(LATE_ROWS).inc(rows.num_rows)
                if name in self.wanted:
                    yield name, rows


def _kept(table: pa.Table, layout: RowBlocks) -> pa.Table:
    return table.select(layout.schema.names).cast(layout.schema)

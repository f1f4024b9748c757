"""Which of the rows of a key counts: by time, and among rows of one time by their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.row_blocks import Rows
from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.grouping.winners import winners


def one_per_time(rows: Rows, owners: Any, order_by: Sequence[str] = ()) -> Any:
    """The places of one row for each key and time: the last by `order_by`, and of these the one with the largest values,
    column after column."""
    groups = grouped([pa.array(owners), pa.array(rows.at)], len(rows))
    if groups.size == len(rows):
        return np.arange(len(rows))
    return winners([*_ordered(rows, order_by), *_content(rows)], groups.ids, groups)


def newest(rows: Rows, owners: Any, size: int, order_by: Sequence[str] = ()) -> Any:
    """The place of the newest row of each of `size` keys: the last by `order_by`, then by time. Each key has a row."""
    if order_by:
        groups = grouped([pa.array(owners)], len(rows))
        last = np.empty(size, dtype=np.int64)
        order = [*_ordered(rows, order_by), (pa.array(rows.at), False), *_content(rows)]
        last[owners[groups.firsts]] = winners(order, groups.ids, groups)
        return last
    places = one_per_time(rows, owners)
    order = places[np.lexsort((rows.at[places], owners[places]))]
    last = np.empty(size, dtype=np.int64)
    # Of several assignments to one place numpy keeps the last one.
    last[owners[order]] = order
    return last


def _ordered(rows: Rows, order_by: Sequence[str]) -> list[tuple[Any, bool]]:
    """The columns that order the rows, each with whether its smallest value is the last."""
    return [(whole(rows.columns[by.removeprefix("-")]), by.startswith("-")) for by in order_by]


def _content(rows: Rows) -> list[tuple[Any, bool]]:
    return [(whole(column), False) for column in rows.columns.columns]

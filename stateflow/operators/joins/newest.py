"""Which of the rows of a key counts: by time, and among rows of one time by their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.joins.row_blocks import Rows
from stateflow.operators.ready.groups import grouped, whole
from stateflow.operators.ready.winners import winners


def one_per_time(rows: Rows, owners: Any) -> Any:
    """The places of one row for each key and time: the one with the largest values, column after column."""
    groups = grouped([pa.array(owners), pa.array(rows.at)], len(rows))
    if groups.size == len(rows):
        return np.arange(len(rows))
    order = [(_comparable(whole(column)), False) for column in rows.columns.columns]
    return winners(order, groups.ids, groups)


def newest(rows: Rows, owners: Any, size: int) -> Any:
    """The place of the newest row of each of `size` keys, of which each has one."""
    places = one_per_time(rows, owners)
    order = places[np.lexsort((rows.at[places], owners[places]))]
    last = np.empty(size, dtype=np.int64)
    # Of several assignments to one place numpy keeps the last one.
    last[owners[order]] = order
    return last


def _comparable(column: Any) -> Any:
    """The column itself, or numbers in the order of its values."""
    if not pa.types.is_decimal(column.type):
        return column
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return pa.array(ranks).take(encoded.indices)

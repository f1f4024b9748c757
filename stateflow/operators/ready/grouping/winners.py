"""The one row of each group that comes first by some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.operators.ready.grouping.ordered_values import largest, lower, ordered, same, smallest

Order = Sequence[tuple[Any, bool]]
"""Arrow arrays, each with whether its smallest value wins. Null is below all values, NaN above all numbers."""


def winners(order: Order, ids: Any, groups: Groups) -> Any:
    """The index of the winning row of each group, below zero where a group has no row; `ids` are the groups of the rows.

    Each column leaves only the rows that are best in it. What is alike in all columns wins by its place.
    """
    left = np.arange(len(ids))
    if len(left) > groups.size or bool((groups.counts(ids) != 1).any()):
        for column, least in order:
            left = left[_best(column.take(pa.array(left)), ids[left], groups, least=least)]
    found = np.full(groups.size, -1, dtype=np.int64)
    found[ids[left[::-1]]] = left[::-1]
    return found


def _best(column: Any, ids: Any, groups: Groups, *, least: bool) -> Any:
    """Which rows have the best value of their group."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = ordered(column.drop_null()).numbers
    there = ids[valid]
    best = (smallest if least else largest)(values, there, groups.size)
    has_null = groups.counts(ids[~valid]) > 0
    is_null = has_null if least else has_null & (groups.counts(there) == 0)
    keep = np.empty(len(ids), dtype=bool)
    keep[~valid] = is_null[ids[~valid]]
    keep[valid] = same(values, best[there]) & ~is_null[there]
    return keep


def displaces(before: Order, after: Sequence[Any]) -> Any:
    """Row by row, whether `before` has no row, or `after` wins against it. The first column of a row is never null."""
    missing = before[0][0].is_null().to_numpy(zero_copy_only=False)
    return takes_over(before, [whole(column) for column in after]) | missing


def takes_over(before: Order, after: Sequence[Any]) -> Any:
    """Row by row, whether `after` wins against `before`."""
    wins = np.zeros(len(after[0]) if after else 0, dtype=bool)
    undecided = ~wins
    for (left, least), right in zip(before, after, strict=True):
        below, above = lower(left, right), lower(right, left)
        better, worse = (above, below) if least else (below, above)
        wins |= undecided & better
        undecided &= ~better & ~worse
    return wins

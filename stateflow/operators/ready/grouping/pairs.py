"""The different values that each group has in a batch, and which conditions they were met under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.groups import Groups, of_codes, whole

MOST_CONDITIONS = 64
_NEAR = 1 << 32
"""Numbers that differ by less than this need not be ranked: with the number of a group they fit into 64 bits."""


@dataclass(frozen=True)
class Pairs:
    """A row for each value of a group."""

    owners: Any
    """The groups."""
    values: Any
    """As an Arrow array."""
    marks: Any
    """Bit n: there is a row with the value that meets the n-th condition. None: each meets all of them."""

    def in_order(self, order: Any) -> Pairs:
        """The same in another order, which None leaves as it is."""
        if order is None:
            return self
        marks = None if self.marks is None else self.marks[order]
        return Pairs(self.owners[order], self.values.take(pa.array(order)), marks)

    def among(self, condition: int) -> Any:
        """A mask of the values that a row has which meets a condition; None when all do."""
        if self.marks is None:
            return None
        return (self.marks >> self.marks.dtype.type(condition)) & self.marks.dtype.type(1) == 1


def pairs_of(ids: Any, size: int, column: Any, conditions: Sequence[Any]) -> Pairs:
    """`ids` are the groups of the rows, and `conditions` masks of them: at most `MOST_CONDITIONS`, and None where all rows
    count. A null is no value."""
    return reduced(ids, size, column, _marks(conditions, len(ids)))


def reduced(ids: Any, size: int, column: Any, marks: Any) -> Pairs:
    """The same, where `marks` has the conditions of each row, as bits; None: each row meets all of them."""
    column = whole(column)
    counts = None if marks is None else marks != 0
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        counts = valid if counts is None else counts & valid
    if counts is not None and not bool(counts.all()):
        ids, column = ids[counts], column.filter(pa.array(counts))
        marks = None if marks is None else marks[counts]
    pairs = _grouped(ids, size, column)
    if marks is not None:
        every, marks = marks, np.zeros(pairs.size, dtype=marks.dtype)
        np.bitwise_or.at(marks, pairs.ids, every)
    return Pairs(ids[pairs.firsts], column.take(pa.array(pairs.firsts)), marks)


def _marks(conditions: Sequence[Any], rows: int) -> Any:
    """The conditions that each row meets, as bits; None: all rows meet all of them."""
    if all(mask is None for mask in conditions):
        return None
    kind = np.min_scalar_type((1 << len(conditions)) - 1).type
    marks = np.zeros(rows, dtype=kind)
    for n, mask in enumerate(conditions):
        bit = kind(1 << n)
        marks |= bit if mask is None else mask * bit
    return marks


def _grouped(ids: Any, size: int, column: Any) -> Groups:
    """The pairs of group and value. Most of them differ, and then sorting is several times faster than a hash table."""
    codes, count = _codes(column)
    codes = ids * count + codes if size > 1 else codes
    if size * count > 2 * len(codes) + 1024:
        codes, size, count = *_ranked(codes), 1
    return of_codes(codes, size * count)


def _codes(column: Any) -> tuple[Any, int]:
    """A number for each value, and an upper bound of the numbers."""
    if pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type):
        values = column.view(pa.int64()).to_numpy()
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        return (values - low, high - low + 1) if high - low < _NEAR else _ranked(values)
    encoded = column.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def _ranked(codes: Any) -> tuple[Any, int]:
    """The place of each number among the different ones, and how many these are."""
    order = np.argsort(codes)
    found = codes[order]
    places = np.zeros(len(codes), dtype=np.int64)
    places[order[1:]] = np.cumsum(found[1:] != found[:-1])
    return places, int(places.max(initial=0)) + 1

"""Which rows belong together: a number per row, and one row per group. Nothing here makes an object per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LARGEST_CODE = 1 << 62


@dataclass(frozen=True)
class Groups:
    """The groups of a table's rows."""

    ids: Any
    """The group of each row, as int64."""
    size: int
    firsts: Any
    """The index of one row of each group."""

    def counts(self, ids: Any) -> Any:
        """The number of rows of each group; `ids` are the rows' groups."""
        return np.bincount(ids, minlength=self.size)


def grouped(columns: Sequence[Any], rows: int) -> Groups:
    """Rows that are alike in all columns form a group. No column has nulls."""
    codes, size = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        more, count = _codes(column)
        if size * count > _LARGEST_CODE:
            codes, size = _dense(codes, size)
        codes, size = (codes * count + more, size * count) if size > 1 else (more, count)
    return of_codes(codes, size)


def of_codes(codes: Any, size: int) -> Groups:
    """Rows of the same number form a group. The numbers are below `size`, and few of these are missing."""
    codes, size = _dense(codes, size)
    firsts = np.zeros(size, dtype=np.int64)
    # Of several assignments to one place numpy keeps the last one: backwards that is a group's first row.
    firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return Groups(codes, size, firsts)


def _codes(column: Any) -> tuple[Any, int]:
    """A number for each value, and an upper bound of the numbers."""
    array = whole(column)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    if pa.types.is_integer(array.type) and len(array):
        values = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        low, high = int(values.min()), int(values.max())
        if high - low <= 2 * len(values) + 1024:
            return values - low, high - low + 1
    if pa.types.is_floating(array.type):
        array = pc.add(array, pa.scalar(0.0, array.type))  # zero has two signs, which are alike
    encoded = array.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def _dense(codes: Any, size: int) -> tuple[Any, int]:
    """The same groups, numbered without gaps."""
    if size > 2 * len(codes) + 1024:
        encoded = pa.array(codes).dictionary_encode()
        return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
    is_there = np.bincount(codes, minlength=size) > 0
    if bool(is_there.all()):
        return codes, size
    numbers = np.cumsum(is_there) - 1
    return numbers[codes], int(numbers[-1]) + 1


def whole(column: Any) -> Any:
    """The column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

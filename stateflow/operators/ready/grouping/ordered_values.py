"""The values of a column as numbers in the same order, so that numpy finds the smallest and largest of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class OrderedValues:
    """Values without nulls. Floats stay floats, with NaN above all; everything else is an int64."""

    numbers: Any
    type: Any
    """The Arrow type of the values."""
    dictionary: Any = None
    """For texts, bytes and decimals: the sorted values. Each of `numbers` is a place among them."""

    def values(self, numbers: Any) -> Any:
        """The values, as Arrow has them, of some of the numbers."""
        if self.dictionary is not None:
            return self.dictionary.take(pa.array(numbers))
        if pa.types.is_boolean(self.type):
            return pa.array(numbers.astype(bool))
        array = pa.array(numbers)
        return array if array.type == self.type else array.cast(self.type)


_ENCODED = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal,
)


def ordered(column: Any) -> OrderedValues:
    """`column` is an array without nulls."""
    kind = column.type
    if pa.types.is_floating(kind):
        return OrderedValues(
            column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), pa.float64()
        )
    if any(of_kind(kind) for of_kind in _ENCODED):
        encoded = column.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary)
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order.to_numpy()] = np.arange(len(order))
        return OrderedValues(ranks[encoded.indices.to_numpy()], kind, encoded.dictionary.take(order))
    if pa.types.is_boolean(kind):
        return OrderedValues(column.to_numpy(zero_copy_only=False).astype(np.int64), kind)
    if pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return OrderedValues(column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), _wide(kind))


def _wide(kind: Any) -> Any:
    return pa.int64() if pa.types.is_integer(kind) else kind


def smallest(numbers: Any, ids: Any, size: int) -> Any:
    """The smallest number of each group. The number of an empty group means nothing."""
    if numbers.dtype != np.float64:
        out = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(out, ids, numbers)
        return out
    # numpy warns of a NaN that it compares.
    known = ~np.isnan(numbers)
    out = np.full(size, np.inf)
    np.minimum.at(out, ids[known], numbers[known])
    none = np.ones(size, dtype=bool)
    none[ids[known]] = False
    out[none] = np.nan
    return out


def largest(numbers: Any, ids: Any, size: int) -> Any:
    """The largest number of each group; NaN is above all."""
    if numbers.dtype != np.float64:
        out = np.full(size, np.iinfo(np.int64).min)
        np.maximum.at(out, ids, numbers)
        return out
    unknown = np.isnan(numbers)
    out = np.full(size, -np.inf)
    np.maximum.at(out, ids[~unknown], numbers[~unknown])
    out[ids[unknown]] = np.nan
    return out


def same(numbers: Any, others: Any) -> Any:
    """Where two arrays agree. NaN agrees with NaN."""
    if numbers.dtype == np.float64:
        return (numbers == others) | (np.isnan(numbers) & np.isnan(others))
    return numbers == others


def lower(left: Any, right: Any) -> Any:
    """Where values of one Arrow array are below those of another; NaN is above all numbers, null is below all."""
    below = pc.fill_null(pc.less(left, right), False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(left.type):
        nan = pc.fill_null(pc.and_(pc.is_finite(left), pc.is_nan(right)), False)
        infinite = pc.fill_null(pc.and_(pc.is_inf(left), pc.is_nan(right)), False)
        below = below | nan.to_numpy(zero_copy_only=False) | infinite.to_numpy(zero_copy_only=False)
    missing = pc.and_(pc.is_null(left), pc.is_valid(right))
    return below | missing.to_numpy(zero_copy_only=False)


def ranks(column: Any) -> Any:
    """A number for each value of a column, in the order of the values. Null is below all values, NaN above all numbers."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    out = np.zeros(len(column), dtype=np.int64)
    out[valid] = np.unique(ordered(column.drop_null()).numbers, return_inverse=True)[1] + 1
    return out


def codes(column: Any) -> Any:
    """As `ranks`, but the numbers may have gaps: they only say which of two values is lower."""
    if pa.types.is_floating(column.type):
        return ranks(column)
    numbers = ordered(column.drop_null()).numbers
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if high - low >= _LARGEST:
        return ranks(column)
    if not column.null_count:
        return numbers - low
    out = np.zeros(len(column), dtype=np.int64)
    out[column.is_valid().to_numpy(zero_copy_only=False)] = numbers - low + 1
    return out


_LARGEST = 1 << 62


def in_order(codes: Sequence[Any]) -> tuple[Any, Any]:
    """The places of rows in the order of their codes (the first code decides first), and a mark where a run begins. Other rows
    have the codes of the row before. Rows of a run stay in their order."""
    rows = len(codes[0])
    packed, size = _packed(codes)
    bits = max(rows - 1, 0).bit_length()
    if packed is not None and size << bits <= _LARGEST:
        # To sort numbers that carry the places takes a quarter of the time that sorting the places by the numbers does.
        packed = np.sort((packed << bits) | np.arange(rows))
        order, packed = packed & ((1 << bits) - 1), packed >> bits
        return order, np.append(np.ones(min(rows, 1), dtype=bool), packed[1:] != packed[:-1])
    order = np.lexsort(tuple(reversed(codes)))
    begins = np.zeros(len(order), dtype=bool)
    begins[:1] = True
    for code in codes:
        begins[1:] |= code[order[1:]] != code[order[:-1]]
    return order, begins


def _packed(codes: Sequence[Any]) -> tuple[Any, int]:
    """One number per row that sorts as its codes do, and how many there can be; None where there would be too many."""
    packed, size = np.zeros(len(codes[0]), dtype=np.int64), 1
    for code in codes:
        if not len(code):
            break
        low, high = int(code.min()), int(code.max())
        size *= high - low + 1
        if size > _LARGEST:
            return None, size
        packed = packed * (high - low + 1) + (code - low)
    return packed, size

"""Decimals as state keeps them: sixteen bytes of their unscaled number, which sort as the numbers do; and their sums."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.aggregates.partials import CountedRows, KeptAsResult, Parts, added
from stateflow.operators.ready.grouping.failed_groups import OverflowedMean, OverflowedSum
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.packed import bytes_of, of_bytes
from stateflow.state.keys.arrow_bytes import decimal_words, of_decimal_words

_LOW = (1 << 32) - 1
_SIGN = np.uint64(1 << 63)
_MOST = 10**38
_WIDE = Context(prec=80, rounding=ROUND_HALF_UP)


def stored(column: Any) -> Any:
    """A decimal column as bytes."""
    column = column.cast(pa.decimal128(38, column.type.scale))
    data = decimal_words(column)
    words = np.empty((len(column), 2), dtype=">u8")
    words[:, 0], words[:, 1] = data[:, 1] ^ _SIGN, data[:, 0]
    lengths = np.full(len(column), 16, dtype=np.int64)
    return of_bytes(
        words.view(np.uint8).reshape(-1), lengths, column.is_valid().to_numpy(zero_copy_only=False)
    )


def decimals(column: Any, kind: Any) -> Any:
    """The decimals of such bytes, of Arrow's type `kind`."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    words = np.zeros((len(column), 2), dtype=np.uint64)
    raw = bytes_of(column)[1].view(">u8").reshape(-1, 2).astype(np.uint64)
    words[valid, 0], words[valid, 1] = raw[:, 1], raw[:, 0] ^ _SIGN
    return of_decimal_words(words, kind, valid)


class DecimalSum(KeptAsResult):
    """The exact sum; beyond 38 digits it is an error."""

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        return [_sums(values.column, values.ids, groups.size)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        size = len(one[0])
        both = pa.concat_arrays([one[0], other[0]])
        ids = np.concatenate((np.arange(size), np.arange(size)))
        there = both.is_valid()
        return [_sums(both.filter(there), ids[there.to_numpy(zero_copy_only=False)], size)]


class DecimalMean:
    """The sum and the count. The mean is rounded half up to the digits of its type."""

    def __init__(self, scale: int, kind: Any) -> None:
        self._sum = DecimalSum()
        self._scale = scale
        self._kind = kind

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        return [*self._sum.create(values, groups), pa.array(groups.counts(values.ids))]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [*self._sum.merge(one[:1], other[:1]), added(one[1], other[1])]

    def result(self, parts: Parts) -> Any:
        sums = decimals(parts[0], pa.decimal128(38, self._scale)).to_pylist()
        digits = Decimal(1).scaleb(-self._kind.scale)
        means = [
            None if total is None else _WIDE.quantize(_WIDE.divide(total, count), digits)
            for total, count in zip(sums, parts[1].to_pylist(), strict=True)
        ]
        most = Decimal(1).scaleb(self._kind.precision - self._kind.scale)
        beyond = [group for group, mean in enumerate(means) if mean is not None and abs(mean) >= most]
        if beyond:
            raise OverflowedMean(beyond)
        return pa.array(means, self._kind)


def _sums(column: Any, ids: Any, size: int) -> Any:
    """Sums in four parts of 32 bits, none of which can overflow."""
    words = bytes_of(column)[1].view(">u8").reshape(-1, 2).astype(np.uint64)
    high, low = (words[:, 0] ^ _SIGN).view(np.int64), words[:, 1]
    limbs = [
        (low & np.uint64(_LOW)).astype(np.int64), (low >> np.uint64(32)).astype(np.int64), high & _LOW, high >> 32,
    ]  # fmt: skip
    sums = [np.zeros(size, dtype=np.int64) for _ in limbs]
    for total, limb in zip(sums, limbs, strict=True):
        np.add.at(total, ids, limb)
    for lower, upper in pairwise(sums):
        upper += lower >> 32
        lower &= _LOW
    beyond = (sums[3] < -(1 << 31)) | (sums[3] >= 1 << 31)
    totals = [sums[3] << 32 | sums[2], sums[1] << 32 | sums[0]]
    beyond |= _has_too_many_digits(totals[0], totals[1].view(np.uint64))
    if bool(beyond.any()):
        raise OverflowedSum(np.flatnonzero(beyond).tolist())
    made = np.empty((size, 2), dtype=">u8")
    made[:, 0], made[:, 1] = totals[0].view(np.uint64) ^ _SIGN, totals[1].view(np.uint64)
    valid = np.bincount(ids, minlength=size) > 0
    return of_bytes(made.view(np.uint8).reshape(-1), np.full(size, 16, dtype=np.int64), valid)


def _has_too_many_digits(high: Any, low: Any) -> Any:
    most, least = divmod(_MOST, 1 << 64), divmod(-_MOST, 1 << 64)
    above = (high > most[0]) | ((high == most[0]) & (low >= np.uint64(most[1])))
    below = (high < least[0]) | ((high == least[0]) & (low <= np.uint64(least[1])))
    return above | below

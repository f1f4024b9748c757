"""Quantiles of values that are counted in buckets. The value alone decides its bucket, so a quantile is the same however the
input is cut into batches.

With an accuracy the buckets grow by a constant factor, as in DDSketch: what comes out differs from the exact quantile by at
most this share of it. With accuracy 0 every value has a bucket of its own.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.aggregates.partials import CountedRows, Parts
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.packed import packed, unpacked

_MIDDLE, _INFINITY, _NAN = 1 << 40, 1 << 61, 1 << 62
_MOST = np.iinfo(np.int64).max
_LARGEST = np.finfo(np.float64).max
_BELOW_SIGN = np.int64((1 << 63) - 1)


class Quantile:
    """The partial of a group is its buckets with their counts, in order."""

    def __init__(self, share: float, accuracy: float) -> None:
        self._share = Fraction(repr(float(share)))
        self._buckets = _Growing(accuracy) if accuracy else _Single()

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        numbers = values.numbers().astype(np.float64, copy=False)
        buckets = self._buckets.of(numbers)
        return [_counted(values.ids, buckets, np.ones(len(buckets), dtype=np.int64), groups.size)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        (ids, entries), (more, others) = (unpacked(parts[0], np.int64, 2) for parts in (one, other))
        both = np.concatenate((entries, others))
        return [_counted(np.concatenate((ids, more)), both[:, 0], both[:, 1], len(one[0]))]

    def result(self, parts: Parts) -> Any:
        """The smallest value that at least this share of the values does not exceed; null of no value."""
        ids, entries = unpacked(parts[0], np.int64, 2)
        size = len(parts[0])
        running = np.cumsum(entries[:, 1])
        totals = np.zeros(size, dtype=np.int64)
        np.add.at(totals, ids, entries[:, 1])
        wanted = self._ranks(totals) + np.cumsum(totals) - totals
        at = np.minimum(np.searchsorted(running, wanted), max(len(entries) - 1, 0))
        found = self._buckets.values(entries[at, 0]) if len(entries) else np.zeros(size)
        return pa.array(found, mask=totals == 0)

    def _ranks(self, totals: Any) -> Any:
        """How many of so many values the quantile does not exceed, from 1 on. A float of 0.55 is a little more, and 100 of it are 55."""
        above, below = self._share.as_integer_ratio()
        # The share of a tiny float is one in more than 64 bits hold.
        if below > _MOST or (above and totals.max(initial=0) > _MOST // above):
            totals = totals.astype(object)
        return np.maximum(-(-totals * above // below), 1).astype(np.int64)


def _counted(ids: Any, buckets: Any, counts: Any, size: int) -> Any:
    order = np.lexsort((buckets, ids))
    ids, buckets, counts = ids[order], buckets[order], counts[order]
    begins = np.ones(len(ids), dtype=bool)
    begins[1:] = (ids[1:] != ids[:-1]) | (buckets[1:] != buckets[:-1])
    first = np.flatnonzero(begins)
    sums = np.add.reduceat(counts, first) if len(first) else counts
    return packed(ids[first], np.column_stack((buckets[first], sums)), size)


class _Growing:
    def __init__(self, accuracy: float) -> None:
        self._factor = (1 + accuracy) / (1 - accuracy)
        self._log = np.log(self._factor)

    def of(self, numbers: Any) -> Any:
        size = np.abs(numbers)
        is_plain = np.isfinite(numbers) & (size > 0)
        logs = np.ceil(np.log(np.where(is_plain, size, 1.0)) / self._log).astype(np.int64)
        buckets = np.where(is_plain, logs + _MIDDLE, 0)
        buckets[np.isinf(numbers)] = _INFINITY
        buckets = np.where(numbers < 0, -buckets, buckets)
        buckets[np.isnan(numbers)] = _NAN
        return buckets

    def values(self, buckets: Any) -> Any:
        is_plain = (buckets != 0) & (np.abs(buckets) < _INFINITY)
        logs = np.where(is_plain, np.abs(buckets) - _MIDDLE, 0) * self._log
        share = 2 / (self._factor + 1)
        with np.errstate(over="ignore"):
            bound = np.exp(logs)
            # The bound of a bucket may be beyond all floats where its middle is not.
            far = np.exp(logs + np.log(share))
            size = np.minimum(np.where(np.isinf(bound), far, bound * share), _LARGEST)
        size = np.where(is_plain, size, np.where(buckets == 0, 0.0, np.inf))
        return np.where(buckets == _NAN, np.nan, np.where(buckets < 0, -size, size))


class _Single:
    """The bits of a float, so that they have the order of the floats; NaN is above all."""

    def of(self, numbers: Any) -> Any:
        numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0)
        bits = numbers.view(np.int64)
        return np.where(bits < 0, bits ^ _BELOW_SIGN, bits)

    def values(self, buckets: Any) -> Any:
        return np.where(buckets < 0, buckets ^ _BELOW_SIGN, buckets).view(np.float64)

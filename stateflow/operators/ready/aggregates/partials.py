"""The kernels of the aggregates: partials of a batch's groups, merging them with what is kept, and their results.

Partials are Arrow arrays with a value per group. Null means that nothing was aggregated yet, so that a group that the
state does not know needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.ready.grouping.failed_groups import OverflowedSum
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.ordered_values import OrderedValues, largest, lower, ordered, smallest
from stateflow.operators.ready.grouping.winners import takes_over, winners

Parts = list[Any]
_HALF = 1 << 32


@dataclass(frozen=True)
class CountedRows:
    """The rows that an aggregate counts: those with a value that fulfil its condition."""

    ids: Any
    """The group of each row."""
    column: Any
    """The values, as an Arrow array; None for the count of all rows."""
    order: tuple[tuple[Any, bool], ...] = ()
    """The columns that order the rows, each with whether it descends."""

    def numbers(self) -> Any:
        return self.column.to_numpy(zero_copy_only=False)


class Kernel(Protocol):
    """One kind of aggregate."""

    def create(self, values: CountedRows, groups: Groups) -> Parts: ...
    def merge(self, one: Parts, other: Parts) -> Parts:
        """Merges two partials. `other` came later, which makes no difference."""
        ...

    def result(self, parts: Parts) -> Any: ...


class KeptAsResult:
    """A kernel whose result is what it keeps."""

    def result(self, parts: Parts) -> Any:
        return parts[0]


class CountPartials:
    def create(self, values: CountedRows, groups: Groups) -> Parts:
        return [pa.array(groups.counts(values.ids))]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [added(one[0], other[0])]

    def result(self, parts: Parts) -> Any:
        return pc.fill_null(parts[0], 0)


class WholeSum(KeptAsResult):
    """The exact sum of whole numbers."""

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        numbers = values.numbers().astype(np.int64, copy=False)
        sums = _whole_sums(numbers, values.ids, groups.size)
        return [pa.array(sums, mask=groups.counts(values.ids) == 0)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        left, right = (pc.fill_null(parts[0], 0).to_numpy() for parts in (one, other))
        with np.errstate(over="ignore"):
            sums = left + right
        beyond = ((left ^ sums) & (right ^ sums)) < 0
        if bool(beyond.any()):
            raise OverflowedSum(np.flatnonzero(beyond).tolist())
        nothing = pc.and_(pc.is_null(one[0]), pc.is_null(other[0]))
        return [pa.array(sums, mask=nothing.to_numpy(zero_copy_only=False))]


class FloatSum(KeptAsResult):
    def create(self, values: CountedRows, groups: Groups) -> Parts:
        sums = _sums(values.ids, values.numbers(), groups.size)
        return [pa.array(sums, mask=groups.counts(values.ids) == 0)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [added(one[0], other[0])]


class Mean:
    def create(self, values: CountedRows, groups: Groups) -> Parts:
        counts = groups.counts(values.ids)
        sums = _sums(values.ids, values.numbers(), groups.size)
        return [pa.array(sums), pa.array(counts)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [added(one[0], other[0]), added(one[1], other[1])]

    def result(self, parts: Parts) -> Any:
        sums, counts = parts
        return pc.divide(sums, _above(counts, 0))


class Variance:
    """Count, mean, and the sum of squared distances from the mean, which merge without cancellation."""

    def __init__(self, *, root: bool) -> None:
        self._root = root

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        numbers = values.numbers().astype(np.float64, copy=False)
        counts = groups.counts(values.ids)
        means = _sums(values.ids, numbers, groups.size) / np.maximum(counts, 1)
        with _beyond_doubles():
            squares = _sums(values.ids, (numbers - means[values.ids]) ** 2, groups.size)
        return [pa.array(counts), pa.array(means), pa.array(squares)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        (n, mean, squares), (m, mean2, squares2) = (
            [pc.fill_null(part, 0).to_numpy() for part in parts] for parts in (one, other)
        )
        counts = n + m
        share = m / np.maximum(counts, 1)
        with _beyond_doubles():
            distance = mean2 - mean
            # The larger side's own mean is kept exactly when the other side is empty.
            means = np.where(m == 0, mean, np.where(n == 0, mean2, mean + distance * share))
            merged = np.where(
                m == 0, squares, np.where(n == 0, squares2, squares + squares2 + distance**2 * n * share)
            )
        return [pa.array(counts), pa.array(means), pa.array(merged)]

    def result(self, parts: Parts) -> Any:
        counts, _, squares = parts
        variance = pc.divide(squares, _above(pc.subtract(counts, 1), 0))
        return pc.sqrt(variance) if self._root else variance


class Extreme(KeptAsResult):
    """The smallest or the largest value."""

    def __init__(self, *, least: bool) -> None:
        self._least = least

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        numbers = ordered(values.column)
        return [_best(numbers, values.ids, groups, least=self._least)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        left, right = one[0], other[0]
        is_lower = lower(left, right)
        take_right = ~is_lower if self._least else is_lower
        take_right = _decided(left, right, take_right)
        return [pc.if_else(pa.array(take_right), right, left)]


class Place(KeptAsResult):
    """The first or the last value by the columns that order the rows; the value itself decides among equals."""

    def __init__(self, descends: Sequence[bool], *, is_first: bool) -> None:
        self._least = [is_first != each for each in (*descends, False)]
        """Per column, with the value as the last one: whether the smallest counts."""

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        columns = [*(column for column, _ in values.order), values.column]
        rows = winners(list(zip(columns, self._least, strict=True)), values.ids, groups)
        at = pa.array(rows, mask=rows < 0)
        parts = [column.take(at) for column in columns]
        return [parts[-1], *parts[:-1]]

    def merge(self, one: Parts, other: Parts) -> Parts:
        before = zip((*one[1:], one[0]), self._least, strict=True)
        take = takes_over(list(before), (*other[1:], other[0]))
        choice = pa.array(_decided(one[0], other[0], take))
        return [pc.if_else(choice, right, left) for left, right in zip(one, other, strict=True)]


def _beyond_doubles() -> Any:
    """Of infinities and the largest doubles come infinities and NaN. They are the result, and numpy need not warn of them."""
    return np.errstate(over="ignore", invalid="ignore")


def _best(numbers: OrderedValues, ids: Any, groups: Groups, *, least: bool) -> Any:
    best = (smallest if least else largest)(numbers.numbers, ids, groups.size)
    if best.dtype.kind == "f":
        # -0.0 becomes 0.0: which of both came first depends on the cut into batches.
        best = best + 0.0
    return _with_nulls(numbers, best, groups.counts(ids) == 0)


def _with_nulls(numbers: OrderedValues, best: Any, null: Any) -> Any:
    """The values of `best`, and null where there is none."""
    if numbers.dictionary is not None:
        return numbers.dictionary.take(pa.array(best, mask=null))
    if bool(null.any()):
        best = np.where(null, 0, best)
        return pc.if_else(pa.array(null), pa.scalar(None, numbers.type), numbers.values(best))
    return numbers.values(best)


def _decided(left: Any, right: Any, take_right: Any) -> Any:
    """Takes the partial of the side that is not null, whatever the values are."""
    missing = [part.is_null().to_numpy(zero_copy_only=False) for part in (left, right)]
    return (take_right | missing[0]) & ~missing[1]


def added(left: Any, right: Any) -> Any:
    """The sum of both, or the only one that is not null."""
    if not left.null_count and not right.null_count:
        return pc.add(left, right)
    return pc.coalesce(pc.add(left, right), left, right)


def _above(counts: Any, bound: int) -> Any:
    """The counts, null where they do not exceed the bound."""
    return pc.if_else(pc.greater(counts, bound), counts, pa.scalar(None, counts.type)).cast(pa.float64())


def _sums(ids: Any, numbers: Any, size: int) -> Any:
    # Of no rows at all numpy makes whole numbers.
    return np.bincount(ids, numbers, size).astype(np.float64, copy=False)


def _whole_sums(numbers: Any, ids: Any, size: int) -> Any:
    sums = np.zeros(size, dtype=np.int64)
    if not len(numbers):
        return sums
    bound = max(abs(int(numbers.min())), abs(int(numbers.max())))
    if bound * len(numbers) < 1 << 63:
        np.add.at(sums, ids, numbers)
        return sums
    # Halves of 32 bits cannot overflow; together they tell whether the sum does.
    low, high = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    np.add.at(low, ids, numbers & (_HALF - 1))
    np.add.at(high, ids, numbers >> 32)
    high += low >> 32
    beyond = (high < -(_HALF >> 1)) | (high >= _HALF >> 1)
    if bool(beyond.any()):
        raise OverflowedSum(np.flatnonzero(beyond).tolist())
    return (high << 32) | (low & (_HALF - 1))


def kernel_of(kind: str, kept_as: type[Any], descends: Sequence[bool]) -> Kernel:
    """The kernel of an aggregate, whose value the state keeps as `kept_as`."""
    makers: dict[str, Callable[[], Kernel]] = {
        "count": CountPartials,
        "count_distinct": CountPartials,
        "sum": WholeSum if kept_as is int else FloatSum,
        "mean": Mean,
        "variance": lambda: Variance(root=False),
        "stddev": lambda: Variance(root=True),
        "min": lambda: Extreme(least=True),
        "max": lambda: Extreme(least=False),
        "first": lambda: Place(descends, is_first=True),
        "last": lambda: Place(descends, is_first=False),
    }
    return makers[kind]()

"""Aggregates that keep values themselves: the first ones, and the most frequent ones. The partial of a group is MessagePack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.operators.ready.aggregates.kept_columns import restored
from stateflow.operators.ready.aggregates.partials import CountedRows, Parts
from stateflow.operators.ready.grouping.groups import Groups, grouped, whole
from stateflow.operators.ready.grouping.ordered_values import ranks
from stateflow.state.keys.arrow_types import ARROW, wide

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Collected:
    """The first values by the columns that order the rows, and by the value itself; as many as `limit`."""

    def __init__(self, limit: int, descends: Sequence[bool], kinds: Sequence[str], result: Any) -> None:
        self._limit = limit
        self._descends = (False, *descends)
        self._kinds = [_plain_type(ARROW[kind]) for kind in kinds]
        self._result = result

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        columns = [plain(values.column), *(plain(column) for column, _ in values.order)]
        return [self._first(values.ids, columns, groups.size)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        ids, columns = _flat([*one[0].to_pylist(), *other[0].to_pylist()], self._kinds)
        size = len(one[0])
        return [self._first(ids % size if size else ids, columns, size)]

    def _first(self, ids: Any, columns: list[Any], size: int) -> Any:
        codes = [ranks(column) for column in columns]
        codes = [-c if down else c for c, down in zip(codes, self._descends, strict=True)]
        # The last key of lexsort decides first: the group, then the order, then the value.
        order = np.lexsort((codes[0], *reversed(codes[1:]), ids))
        counts = np.bincount(ids, minlength=size)
        place = np.arange(len(ids)) - (np.cumsum(counts) - counts)[ids[order]]
        chosen = order[place < self._limit]
        return _blobs(ids[chosen], [column.take(pa.array(chosen)) for column in columns], size)

    def result(self, parts: Parts) -> Any:
        ids, columns = _flat(parts[0].to_pylist(), self._kinds)
        return _lists(ids, _typed(columns[0], self._result.value_type), len(parts[0]), self._result)


class Frequencies:
    """The values, each with its count. `limit` of them come out, the most frequent first, and of equally frequent ones the
    smallest first."""

    def __init__(self, limit: int, kind: str, result: Any) -> None:
        self._limit = limit
        self._kinds = [_plain_type(ARROW[kind]), pa.int64()]
        self._result = result

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        counts = pa.array(np.ones(len(values.ids), dtype=np.int64))
        return [self._counted(values.ids, plain(values.column), counts, groups.size)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        ids, (values, counts) = _flat([*one[0].to_pylist(), *other[0].to_pylist()], self._kinds)
        size = len(one[0])
        return [self._counted(ids % size if size else ids, values, counts, size)]

    def _counted(self, ids: Any, values: Any, counts: Any, size: int) -> Any:
        alike = grouped([pa.array(ids), values], len(ids))
        sums = np.zeros(alike.size, dtype=np.int64)
        np.add.at(sums, alike.ids, counts.to_numpy())
        order = np.argsort(ids[alike.firsts], kind="stable")
        at = alike.firsts[order]
        return _blobs(ids[at], [values.take(pa.array(at)), pa.array(sums[order])], size)

    def result(self, parts: Parts) -> Any:
        ids, (values, counts) = _flat(parts[0].to_pylist(), self._kinds)
        size = len(parts[0])
        numbers = counts.to_numpy()
        order = np.lexsort((ranks(values), -numbers, ids))
        held = np.bincount(ids, minlength=size)
        place = np.arange(len(ids)) - (np.cumsum(held) - held)[ids[order]]
        chosen = order[place < self._limit]
        item = self._result.value_type
        found = values.take(pa.array(chosen))
        if not pa.types.is_struct(item):
            return _lists(ids[chosen], _typed(found, item), size, self._result)
        pairs = pa.StructArray.from_arrays(
            [_typed(found, item[0].type), pa.array(numbers[chosen])], fields=list(item)
        )
        return _lists(ids[chosen], pairs, size, self._result)


def plain(column: Any) -> Any:
    """Dates and instants as numbers."""
    column = whole(column)
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _plain_type(kind: Any) -> Any:
    return pa.int64() if pa.types.is_timestamp(kind) else wide(kind)


def _typed(column: Any, kind: Any) -> Any:
    """The values in the type that comes out."""
    return column.view(kind) if pa.types.is_timestamp(kind) else restored(column, kind).cast(kind)


def _blobs(ids: Any, columns: list[Any], size: int) -> Any:
    """One binary value per group; `ids` ascend."""
    bounds = np.searchsorted(ids, np.arange(size + 1)).tolist()
    lists = [column.to_pylist() for column in columns]
    return pa.array(
        [_encode([each[a:b] for each in lists]) if b > a else None for a, b in pairwise(bounds)],
        pa.large_binary(),
    )


def _flat(blobs: list[bytes | None], kinds: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The group of each value, and the columns."""
    held = [(index, _decode(blob)) for index, blob in enumerate(blobs) if blob is not None]
    counts = [len(columns[0]) for _, columns in held]
    ids = np.repeat(np.array([index for index, _ in held], dtype=np.int64), counts)
    return ids, [
        pa.array([value for _, columns in held for value in columns[place]], kind)
        for place, kind in enumerate(kinds)
    ]


def _lists(ids: Any, values: Any, size: int, kind: Any) -> Any:
    offsets = np.searchsorted(ids, np.arange(size + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values).cast(kind)

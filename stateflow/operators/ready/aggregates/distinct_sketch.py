"""How many different values there are, about: HyperLogLog with 4,096 registers, a standard error of 1.6 %.

The same values always make the same sketch, in whatever order they come and however they are merged. One of few values keeps
the registers that are set, four bytes each; one of many keeps all registers, a byte each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stateflow.operators.ready.aggregates.partials import CountedRows, Parts
from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.operators.ready.grouping.packed import bytes_of, of_bytes

_BITS = 12
REGISTERS = 1 << _BITS
_RANKS = 64 - _BITS + 1
_FEW = REGISTERS // 4
"""Fewer registers than this are kept one by one, which takes less than all."""
_AT_ONCE = 4096
"""Groups that are estimated together."""


class DistinctSketch:
    def create(self, values: CountedRows, groups: Groups) -> Parts:
        hashes = _hashes(values.column)
        registers = (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
        rest = (hashes << np.uint64(_BITS)) | np.uint64(1 << (_BITS - 1))
        return [_written(values.ids, registers, _leading_zeros(rest) + 1, groups.size)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        sides = [_read(parts[0]) for parts in (one, other)]
        ids, registers, ranks = (np.concatenate(both) for both in zip(*sides, strict=True))
        return [_written(ids, registers, ranks, len(one[0]))]

    def result(self, parts: Parts) -> Any:
        ids, _, ranks = _read(parts[0])
        order = np.argsort(ids, kind="stable")
        ids, ranks, out = ids[order], ranks[order], []
        for begin in range(0, len(parts[0]), _AT_ONCE):
            size = min(_AT_ONCE, len(parts[0]) - begin)
            low, high = np.searchsorted(ids, (begin, begin + size))
            histogram = np.bincount(
                (ids[low:high] - begin) * (_RANKS + 1) + ranks[low:high], minlength=size * (_RANKS + 1)
            ).reshape(size, _RANKS + 1)
            histogram[:, 0] = REGISTERS - histogram[:, 1:].sum(axis=1)
            out.append(_estimates(histogram))
        return pa.array(np.concatenate(out) if out else np.zeros(0, np.int64))


def _hashes(column: Any) -> Any:
    """64 bits for each value; each different value is hashed once."""
    if not len(column):
        return np.zeros(0, dtype=np.uint64)
    encoded = whole(column).dictionary_encode()
    values = encoded.dictionary
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        hashed = _mixed(np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64))
    elif pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
        parts = values.cast(pa.large_binary()).to_pylist()
        hashed = np.fromiter(map(xxhash.xxh64_intdigest, parts), dtype=np.uint64, count=len(parts))
    else:
        if pa.types.is_temporal(values.type):
            values = values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
        hashed = _mixed(values.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64))
    return hashed[encoded.indices.to_numpy(zero_copy_only=False)]


def _mixed(words: Any) -> Any:
    """The finish of SplitMix64: each bit of a word decides half of the bits."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


def _leading_zeros(words: Any) -> Any:
    zeros, left = np.zeros(len(words), dtype=np.int64), words.copy()
    for step in (32, 16, 8, 4, 2, 1):
        is_small = left < np.uint64(1 << (64 - step))
        zeros += is_small * step
        left = np.where(is_small, left << np.uint64(step), left)
    return zeros


def _written(ids: Any, registers: Any, ranks: Any, size: int) -> Any:
    order = np.lexsort((-ranks, registers, ids))
    ids, registers, ranks = ids[order], registers[order], ranks[order]
    begins = np.ones(len(ids), dtype=bool)
    begins[1:] = (ids[1:] != ids[:-1]) | (registers[1:] != registers[:-1])
    ids, registers, ranks = ids[begins], registers[begins], ranks[begins]
    counts = np.bincount(ids, minlength=size)
    lengths = np.where(counts < _FEW, counts * 4, REGISTERS)
    starts = np.cumsum(lengths) - lengths
    raw = np.zeros(int(lengths.sum()), dtype=np.uint8)
    is_few = counts[ids] < _FEW
    place = np.arange(len(ids)) - (np.cumsum(counts) - counts)[ids]
    words = (registers[is_few] << 8 | ranks[is_few]).astype("<u4").view(np.uint8).reshape(-1, 4)
    at = starts[ids[is_few]] + 4 * place[is_few]
    raw[at[:, None] + np.arange(4)] = words
    raw[starts[ids[~is_few]] + registers[~is_few]] = ranks[~is_few]
    return of_bytes(raw, lengths, counts > 0)


def _read(column: Any) -> tuple[Any, Any, Any]:
    """For each register that is set: the group, the register, the rank."""
    lengths, raw = bytes_of(column)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    is_all = (lengths == REGISTERS)[owners]
    words = raw[~is_all].view("<u4").astype(np.int64)
    ids = [owners[~is_all][::4], owners[is_all]]
    starts = np.cumsum(lengths) - lengths
    registers = [words >> 8, np.flatnonzero(is_all) - starts[owners[is_all]]]
    ranks = [words & 0xFF, raw[is_all].astype(np.int64)]
    both = np.concatenate(ids), np.concatenate(registers), np.concatenate(ranks)
    is_set = both[2] > 0
    return both[0][is_set], both[1][is_set], both[2][is_set]


def _estimates(histogram: Any) -> Any:
    """Ertl's estimate, which needs no correction for few or many values; a row is how many registers have each rank."""
    histogram = histogram.astype(np.float64)
    z = REGISTERS * _tau(1 - histogram[:, _RANKS] / REGISTERS)
    for rank in range(_RANKS - 1, 0, -1):
        z = 0.5 * (z + histogram[:, rank])
    z = z + REGISTERS * _sigma(histogram[:, 0] / REGISTERS)
    with np.errstate(divide="ignore"):
        found = REGISTERS / (2 * np.log(2)) * REGISTERS / z
    return np.rint(found).astype(np.int64)


def _sigma(x: Any) -> Any:
    power, total, y = x.copy(), x.copy(), 1.0
    total[x == 1] = np.inf
    power[x == 1] = 0
    for _ in range(60):
        power = power * power
        total = total + power * y
        y += y
    return total


def _tau(x: Any) -> Any:
    left, y, total = x.copy(), 1.0, 1 - x
    for _ in range(60):
        left = np.sqrt(left)
        y *= 0.5
        total = total - (1 - left) ** 2 * y
    return np.where((x == 0) | (x == 1), 0.0, total / 3)

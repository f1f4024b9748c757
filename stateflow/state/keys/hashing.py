"""The key groups of whole key columns: Spark's `xxhash64` as `keygroups` has it, for many keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stateflow.format.keygroups import SEED, hashed_decimal
from stateflow.state.keys.arrow_bytes import Array

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_AS_LONG = {"int": pa.int64(), "datetime": pa.int64()}
_AS_INT = {"bool": pa.uint8(), "date": pa.int32()}
_digest = xxhash.xxh64_intdigest


def key_groups_of(types: Sequence[str], columns: Sequence[Any], max_parallelism: int) -> Array:
    """The key group of each row. `columns` are Arrow columns without nulls, one per part of the key, typed as in `ARROW`."""
    hashed: Array = np.full(len(columns[0]), SEED, dtype=np.uint64)
    for name, column in zip(types, columns, strict=True):
        if name in _AS_LONG:
            words = column.cast(_AS_LONG[name]).to_numpy(zero_copy_only=False).view(np.uint64)
            hashed = _longs(words, hashed)
        elif name in _AS_INT:
            words = column.cast(_AS_INT[name]).to_numpy(zero_copy_only=False)
            hashed = _ints(words.astype(np.int32).view(np.uint32).astype(np.uint64), hashed)
        else:
            parts = _bytes_of(name, column)
            hashed = np.fromiter(map(_digest, parts, hashed.tolist()), dtype=np.uint64, count=len(parts))
    return hashed.view(np.int64) % max_parallelism


def _bytes_of(name: str, column: Any) -> list[bytes]:
    if name == "decimal":
        return list(map(hashed_decimal, column.to_pylist()))
    return column.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _rotated(word: Array, by: int) -> Array:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


def _longs(words: Array, seeds: Array) -> Array:
    with np.errstate(over="ignore"):
        mixed = (seeds + _P5 + np.uint64(8)) ^ (_rotated(words * _P2, 31) * _P1)
        return _avalanche(_rotated(mixed, 27) * _P1 + _P4)


def _ints(words: Array, seeds: Array) -> Array:
    with np.errstate(over="ignore"):
        mixed = (seeds + _P5 + np.uint64(4)) ^ (words * _P1)
        return _avalanche(_rotated(mixed, 23) * _P2 + _P3)


def _avalanche(mixed: Array) -> Array:
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _P2
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
        mixed ^= mixed >> np.uint64(32)
        return mixed

"""Arrow arrays of bytes and of decimals as numpy sees their buffers, and back. No value is copied on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]


def taken_apart(values: Any) -> tuple[Array, Array]:
    """Where each value begins, and the end of the last; and the bytes of all. For wide texts and bytes without nulls."""
    if not len(values):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    _, bounds, raw = values.buffers()
    bounds = np.frombuffer(bounds, dtype=np.int64, count=len(values) + 1, offset=8 * values.offset)
    raw = np.frombuffer(raw, dtype=np.uint8) if raw is not None else np.zeros(0, dtype=np.uint8)
    return bounds - bounds[0], raw[bounds[0] : bounds[-1]]


def put_together(bounds: Array, raw: Array, valid: Array | None = None) -> Any:
    """The values as a wide binary array; without `valid` none is null."""
    buffers = [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(bounds, dtype=np.int64))]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [*buffers, pa.py_buffer(np.ascontiguousarray(raw))]
    )


def decimal_words(numbers: Any) -> Array:
    """A row of two words for each decimal, the low one first; those of a null mean nothing."""
    # An empty array may have no buffer, or one of any size.
    if not len(numbers):
        return np.zeros((0, 2), dtype=np.uint64)
    raw = numbers.buffers()[1]
    return np.frombuffer(raw, dtype="<u8", count=2 * len(numbers), offset=16 * numbers.offset).reshape(-1, 2)


def of_decimal_words(words: Array, kind: Any, valid: Array | None = None) -> Any:
    """The decimals, of Arrow's type `kind`."""
    return pa.Array.from_buffers(
        kind, len(words), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(words))]
    )


def _bitmap(valid: Array | None) -> Any:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())

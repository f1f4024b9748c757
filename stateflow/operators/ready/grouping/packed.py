"""Lists of fixed width per group, as one binary value each: a sketch's numbers lie side by side, whatever group they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def packed(ids: Any, entries: Any, size: int) -> Any:
    """A binary array of `size` groups; `ids` ascend, and `entries` has a row per entry. A group without entries is null."""
    counts = np.bincount(ids, minlength=size)
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(-1)
    return of_bytes(raw, counts * (len(raw) // len(ids) if len(ids) else 0), counts > 0)


def of_bytes(raw: Any, lengths: Any, valid: Any) -> Any:
    """A binary array of values that lie one after the other."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def unpacked(column: Any, kind: Any, width: int = 1) -> tuple[Any, Any]:
    """The group of each entry, and the entries: rows of `width` numbers."""
    lengths, raw = bytes_of(column)
    entries = raw.view(kind).reshape(-1, width)
    return np.repeat(np.arange(len(lengths)), lengths // (entries.itemsize * width)), entries


def bytes_of(column: Any) -> tuple[Any, Any]:
    """How long each value is, and all bytes; null has none."""
    column = pc.fill_null(column.cast(pa.large_binary()), b"")
    if not len(column):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, count=len(column) + 1, offset=column.offset * 8)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return np.diff(bounds), raw[bounds[0] : bounds[-1]]

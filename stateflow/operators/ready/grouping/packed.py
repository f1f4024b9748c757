"""Lists of fixed width per group, as one binary value each: a sketch's numbers lie side by side, whatever group they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import StateflowError

_MOST_BYTES = (1 << 31) - 1


def packed(ids: Any, entries: Any, size: int) -> Any:
    """A binary array of `size` groups; `ids` ascend, and `entries` has a row per entry. A group without entries is null."""
    counts = np.bincount(ids, minlength=size)
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(-1)
    return of_bytes(raw, counts * (len(raw) // len(ids) if len(ids) else 0), counts > 0)


def of_bytes(raw: Any, lengths: Any, valid: Any) -> Any:
    """A binary array of values that lie one after the other."""
    if len(raw) > _MOST_BYTES:
        raise StateflowError(
            f"the sketches of one batch take {len(raw):,} bytes, and a column holds {_MOST_BYTES:,}: take smaller batches with "
            "max_rows_per_batch, or a coarser accuracy="
        )
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(raw.tobytes())]
    )


def unpacked(column: Any, kind: Any, width: int = 1) -> tuple[Any, Any]:
    """The group of each entry, and the entries: rows of `width` numbers."""
    lengths, raw = bytes_of(column)
    entries = raw.view(kind).reshape(-1, width)
    return np.repeat(np.arange(len(lengths)), lengths // (entries.itemsize * width)), entries


def bytes_of(column: Any) -> tuple[Any, Any]:
    """How long each value is, and all bytes; null has none."""
    column = pc.fill_null(column, b"")
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return np.diff(bounds), raw[bounds[0] : bounds[-1]].copy() if len(bounds) else raw[:0].copy()

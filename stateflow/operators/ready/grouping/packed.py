"""Lists of fixed width per group, as one binary value each: a sketch's numbers lie side by side, whatever group they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.state.keys.arrow_bytes import put_together, taken_apart


def packed(ids: Any, entries: Any, size: int) -> Any:
    """A binary array of `size` groups; `ids` ascend, and `entries` has a row per entry. A group without entries is null."""
    counts = np.bincount(ids, minlength=size)
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(-1)
    return of_bytes(raw, counts * (len(raw) // len(ids) if len(ids) else 0), counts > 0)


def of_bytes(raw: Any, lengths: Any, valid: Any) -> Any:
    """A binary array of values that lie one after the other."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return put_together(offsets, raw, valid)


def unpacked(column: Any, kind: Any, width: int = 1) -> tuple[Any, Any]:
    """The group of each entry, and the entries: rows of `width` numbers."""
    lengths, raw = bytes_of(column)
    entries = raw.view(kind).reshape(-1, width)
    return np.repeat(np.arange(len(lengths)), lengths // (entries.itemsize * width)), entries


def bytes_of(column: Any) -> tuple[Any, Any]:
    """How long each value is, and all bytes; null has none."""
    bounds, raw = taken_apart(pc.fill_null(column.cast(pa.large_binary()), b""))
    return np.diff(bounds), raw

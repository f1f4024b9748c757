"""Instants as MessagePack writes them, a column at a time: Python's datetimes cost ten times as much.

D6 FF [seconds u32]                      whole seconds up to 2106
D7 FF [nanoseconds << 34 | seconds]      up to the year 2514
C7 0C FF [nanoseconds u32][seconds i64]  all others
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.format.instants import micros_since_epoch
from stateflow.state.keys.arrow_types import INSTANT

Array = np.ndarray[Any, Any]

NIL = msgspec.Raw(b"\xc0")

_SECOND = 1_000_000
_SHORT = np.dtype([("type", "u1"), ("of", "u1"), ("seconds", ">u4")])
_MIDDLE = np.dtype([("type", "u1"), ("of", "u1"), ("word", ">u8")])
_LONG = np.dtype([("type", "u1"), ("size", "u1"), ("of", "u1"), ("nanos", ">u4"), ("seconds", ">i8")])
_SECONDS = np.uint64((1 << 34) - 1)
_FIRST = micros_since_epoch(datetime.min.replace(tzinfo=UTC))
_LAST = micros_since_epoch(datetime.max.replace(tzinfo=UTC))


def are_instants(micros: Array) -> Array:
    """Which of them Python's datetimes can hold."""
    return (micros >= _FIRST) & (micros <= _LAST)


def read_instants(raws: Sequence[msgspec.Raw]) -> Any:
    """An Arrow column, with nulls for nil; ValueError where there is something else."""
    joined = b"".join(raws)
    data: Array = np.frombuffer(joined, dtype=np.uint8)
    if len(joined) == len(raws) * _MIDDLE.itemsize:
        rows = data.view(_MIDDLE)
        if bool((rows["type"] == 0xD7).all() and (rows["of"] == 0xFF).all()):
            return _column(_micros(rows["word"]))
    lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
    starts = np.cumsum(lengths) - lengths
    micros = np.zeros(len(raws), dtype=np.int64)
    heads = data[starts] if len(raws) else data
    known = nil = (heads == 0xC0) & (lengths == 1)
    for layout, head in ((_SHORT, 0xD6), (_MIDDLE, 0xD7), (_LONG, 0xC7)):
        chosen = np.flatnonzero((heads == head) & (lengths == layout.itemsize))
        if not len(chosen):
            continue
        windows = np.lib.stride_tricks.sliding_window_view(data, layout.itemsize)
        rows = windows[starts[chosen]].view(layout)[:, 0]
        if not bool((rows["of"] == 0xFF).all()):
            raise ValueError("no timestamp")
        if layout is _SHORT:
            micros[chosen] = rows["seconds"].astype(np.int64) * _SECOND
        elif layout is _MIDDLE:
            micros[chosen] = _micros(rows["word"])
        else:
            micros[chosen] = rows["seconds"].astype(np.int64) * _SECOND + rows["nanos"] // 1000
        known = known.copy()
        known[chosen] = True
    if not bool(known.all()):
        raise ValueError("no timestamp")
    return _column(micros, nil if bool(nil.any()) else None)


def _column(micros: Array, null: Array | None = None) -> Any:
    if not bool(are_instants(micros).all()):
        raise ValueError("no instant")
    return pa.array(micros, mask=null).cast(INSTANT)


def _micros(words: Array) -> Array:
    words = words.astype(np.uint64)
    return (words & _SECONDS).astype(np.int64) * _SECOND + (
        (words >> np.uint64(34)) // np.uint64(1000)
    ).astype(np.int64)


def write_instants(micros: Array) -> list[msgspec.Raw]:
    """As msgspec writes each of them."""
    seconds = micros // _SECOND
    nanos = (micros - seconds * _SECOND) * 1000
    short = (nanos == 0) & (seconds >= 0) & (seconds < 1 << 32)
    middle = ~short & (seconds >= 0) & (seconds < 1 << 34)
    if bool(middle.all()):
        return _written_middle(seconds, nanos)
    out: list[msgspec.Raw] = [NIL] * len(micros)
    for mask, write in (
        (short, _written_short),
        (middle, _written_middle),
        (~short & ~middle, _written_long),
    ):
        chosen = np.flatnonzero(mask)
        for index, raw in zip(chosen.tolist(), write(seconds[chosen], nanos[chosen]), strict=True):
            out[index] = raw
    return out


def _written_short(seconds: Array, _: Array) -> list[msgspec.Raw]:
    rows = np.empty(len(seconds), dtype=_SHORT)
    rows["type"], rows["of"], rows["seconds"] = 0xD6, 0xFF, seconds
    return _cut(rows)


def _written_middle(seconds: Array, nanos: Array) -> list[msgspec.Raw]:
    rows = np.empty(len(seconds), dtype=_MIDDLE)
    rows["type"], rows["of"] = 0xD7, 0xFF
    rows["word"] = (nanos.astype(np.uint64) << np.uint64(34)) | seconds.astype(np.uint64)
    return _cut(rows)


def _written_long(seconds: Array, nanos: Array) -> list[msgspec.Raw]:
    rows = np.empty(len(seconds), dtype=_LONG)
    rows["type"], rows["size"], rows["of"] = 0xC7, 0x0C, 0xFF
    rows["nanos"], rows["seconds"] = nanos, seconds
    return _cut(rows)


def _cut(rows: Array) -> list[msgspec.Raw]:
    raw, width = rows.tobytes(), rows.dtype.itemsize
    return [msgspec.Raw(raw[at : at + width]) for at in range(0, len(raw), width)]

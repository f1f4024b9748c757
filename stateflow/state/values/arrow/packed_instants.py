"""Instants as MessagePack writes them, a column at a time: Python's datetimes cost ten times as much.

D6 FF [seconds u32]                      whole seconds up to 2106
D7 FF [nanoseconds << 34 | seconds]      up to the year 2514
C7 0C FF [nanoseconds u32][seconds i64]  all others
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME
from stateflow.state.keys.arrow_bytes import Array
from stateflow.state.keys.arrow_types import INSTANT

NIL = msgspec.Raw(b"\xc0")

_SECOND = 1_000_000
_SHORT = np.dtype([("type", "u1"), ("of", "u1"), ("seconds", ">u4")])
_MIDDLE = np.dtype([("type", "u1"), ("of", "u1"), ("word", ">u8")])
_LONG = np.dtype([("type", "u1"), ("size", "u1"), ("of", "u1"), ("nanos", ">u4"), ("seconds", ">i8")])
_SECONDS = np.uint64((1 << 34) - 1)


_decoded = msgspec.msgpack.Decoder(list[datetime]).decode
_encoded = msgspec.msgpack.Encoder().encode
_DATETIMES = {datetime, NoneType}
_RUNS = {0xD6: _SHORT, 0xD7: _MIDDLE}
_PIECE = 4096
_FEW_RUNS, _LONG_RUN = 8, 64
"""Where the layout changes more often than once in so many values, a call for each is as quick."""


def datetimes_of(micros: Array) -> list[datetime]:
    """Python's datetimes in UTC; ValueError where one lies outside of the years 1 to 9999.

    msgspec makes them from one MessagePack list. That is ten times as fast as a call in Python for each.
    """
    seconds = micros // _SECOND
    nanos = (micros - seconds * _SECOND) * 1000
    if bool(((seconds >= 0) & (seconds < 1 << 34)).all()):
        rows = np.empty(len(micros), dtype=_MIDDLE)
        _fill_middle(rows, seconds, nanos)
    elif bool(are_instants(micros).all()):
        rows = np.empty(len(micros), dtype=_LONG)
        _fill_long(rows, seconds, nanos)
    else:
        raise ValueError("no instant")
    return _decoded(b"\xdd" + len(micros).to_bytes(4, "big") + rows.tobytes())


def micros_of(values: Sequence[Any]) -> Any:
    """The way back: an Arrow column of instants, with nulls for None; ValueError where there is something else, such as a
    datetime without a time zone."""
    if not set(map(type, values)) <= _DATETIMES:
        raise ValueError("no datetime")
    # A list's header has 1, 3 or 5 bytes.
    head = 1 if len(values) < 16 else 3 if len(values) < 1 << 16 else 5
    micros = _read_runs(np.frombuffer(_encoded(values), dtype=np.uint8, offset=head), len(values))
    return read_instants(list(map(_encoded, values))) if micros is None else _column(micros)


def _read_runs(data: Array, count: int) -> Array | None:
    """Microseconds of packed instants that are of one layout for long: instants in milliseconds are whole seconds once in
    a thousand. None where there are other values, or too many changes."""
    micros = np.empty(count, dtype=np.int64)
    done = at = 0
    runs = 0
    while done < count:
        runs += 1
        if runs > _FEW_RUNS and done < runs * _LONG_RUN:
            return None
        layout = _RUNS.get(int(data[at]))
        if layout is None:
            return None
        size = layout.itemsize
        length = min(count - done, _PIECE, (len(data) - at) // size)
        rows = data[at : at + length * size].view(layout)
        fits = (rows["type"] == data[at]) & (rows["of"] == 0xFF)
        if not bool(fits.all()):
            length = int(fits.argmin())
        if not length:
            return None
        rows = rows[:length]
        micros[done : done + length] = _whole(rows) if layout is _SHORT else _micros(rows["word"])
        done, at = done + length, at + length * size
    return micros


def are_instants(micros: Array) -> Array:
    """Which of them Python's datetimes can hold."""
    return (micros >= BEGIN_OF_TIME) & (micros <= END_OF_TIME)


def refuse_far(column: Any, where: str) -> None:
    """UsageError for an Arrow column of instants that has one beyond those; `where` names it."""
    if not bool(are_instants(column.cast(pa.int64()).drop_null().to_numpy()).all()):
        raise UsageError(f"{where} holds instants outside of the years 1 to 9999: correct them")


def read_instants(raws: Sequence[msgspec.Raw] | Sequence[bytes]) -> Any:
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
            micros[chosen] = _whole(rows)
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


def _whole(rows: Array) -> Array:
    return rows["seconds"].astype(np.int64) * _SECOND


def _micros(words: Array) -> Array:
    words = words.astype(np.uint64)
    return (words & _SECONDS).astype(np.int64) * _SECOND + (
        (words >> np.uint64(34)) // np.uint64(1000)
    ).astype(np.int64)


def write_instants(micros: Array) -> list[msgspec.Raw]:
    """As msgspec writes each of them."""
    cells, lengths = fill_instants(micros)
    raw = cells[np.arange(cells.shape[1]) < lengths[:, np.newaxis]].tobytes()
    return [msgspec.Raw(raw[begin:end]) for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]


def fill_instants(micros: Array) -> tuple[Array, Array]:
    """As `write_instants`, but as a row of bytes each, and how many of them count."""
    seconds = micros // _SECOND
    nanos = (micros - seconds * _SECOND) * 1000
    short = (nanos == 0) & (seconds >= 0) & (seconds < 1 << 32)
    long = (seconds < 0) | (seconds >= 1 << 34)
    cells = np.empty((len(micros), (_LONG if bool(long.any()) else _MIDDLE).itemsize), dtype=np.uint8)
    lengths = np.empty(len(micros), dtype=np.int64)
    for chosen, layout, fill in (
        (short, _SHORT, _fill_short),
        (~short & ~long, _MIDDLE, _fill_middle),
        (long, _LONG, _fill_long),
    ):
        if not bool(chosen.any()):
            continue
        rows = np.empty(int(np.count_nonzero(chosen)), dtype=layout)
        fill(rows, seconds[chosen], nanos[chosen])
        cells[chosen, : layout.itemsize] = rows.view(np.uint8).reshape(-1, layout.itemsize)
        lengths[chosen] = layout.itemsize
    return cells, lengths


def _fill_short(rows: Array, seconds: Array, _: Array) -> None:
    rows["type"], rows["of"], rows["seconds"] = 0xD6, 0xFF, seconds


def _fill_middle(rows: Array, seconds: Array, nanos: Array) -> None:
    rows["type"], rows["of"] = 0xD7, 0xFF
    rows["word"] = (nanos.astype(np.uint64) << np.uint64(34)) | seconds.astype(np.uint64)


def _fill_long(rows: Array, seconds: Array, nanos: Array) -> None:
    rows["type"], rows["size"], rows["of"] = 0xC7, 0x0C, 0xFF
    rows["nanos"], rows["seconds"] = nanos, seconds

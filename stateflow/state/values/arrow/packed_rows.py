"""Rows of columns as MessagePack arrays, to the byte as msgspec writes them. Nothing here makes a Python object per value, which
took as long as all else that an operator does with its rows.

Cells of few bytes lie side by side in one matrix, each with room for the longest, from which their bytes are taken; texts go
between such blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.state.keys.arrow_bytes import Array
from stateflow.state.values.arrow.packed_instants import are_instants, fill_instants

Cells = tuple[Array, Array | int]
"""A row of bytes per value, and how many of them count."""

NIL, FALSE, TRUE, FLOAT = 0xC0, 0xC2, 0xC3, 0xCB
_WHOLE = pa.large_binary()
_UNSIGNED = ((1 << 7, None), (1 << 8, 0xCC), (1 << 16, 0xCD), (1 << 32, 0xCE), (1 << 63, 0xCF))
_SIGNED = ((1 << 5, None), (1 << 7, 0xD0), (1 << 15, 0xD1), (1 << 31, 0xD2), (1 << 63, 0xD3))
"""Up to where, and down to where, a number has this first byte; without one it is its own."""
_TEXT = ((1 << 5, 0xA0), (1 << 8, 0xD9), (1 << 16, 0xDA), (1 << 32, 0xDB))
_BYTES = ((0, 0), (1 << 8, 0xC4), (1 << 16, 0xC5), (1 << 32, 0xC6))
"""Lengths likewise; the first of texts is part of the byte."""


def packed_rows(head: bytes, columns: Sequence[Any], count: int) -> list[bytes]:
    """`head`, and behind it each column's value, per row of arrays of bools, ints, floats, instants, texts and bytes."""
    block: list[Cells] = [(np.tile(np.frombuffer(head, dtype=np.uint8), (count, 1)), len(head))]
    pieces: list[Any] = []
    for column in columns:
        kind = column.type
        if not (_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            block.append(_cells(column))
            continue
        block.append(_headers(column))
        pieces += [_joined(block, count), pc.fill_null(column.cast(_WHOLE), b"")]
        block = []
    if block:
        pieces.append(_joined(block, count))
    whole = pc.binary_join_element_wise(*pieces, pa.scalar(b"", _WHOLE)) if len(pieces) > 1 else pieces[0]
    return whole.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _joined(block: Sequence[Cells], count: int) -> Any:
    """The used bytes of the cells of each row, as an Arrow array."""
    bytes_ = np.hstack([cells for cells, _ in block])
    counts = np.hstack([_counts(cells.shape[1], lengths, count) for cells, lengths in block])
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(sum((lengths for _, lengths in block), np.zeros(count, dtype=np.int64)), out=offsets[1:])
    return pa.Array.from_buffers(_WHOLE, count, [None, pa.py_buffer(offsets), pa.py_buffer(bytes_[counts])])


def _counts(width: int, lengths: Array | int, count: int) -> Array:
    if isinstance(lengths, int):
        return np.ones((count, lengths), dtype=bool)
    return np.arange(width) < lengths[:, np.newaxis]


def _cells(column: Any) -> Cells:
    kind = column.type
    null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_boolean(kind):
        cells = np.where(_numbers(column, False), np.uint8(TRUE), np.uint8(FALSE))[:, np.newaxis]
        lengths: Array | int = 1
    elif pa.types.is_floating(kind):
        rows = np.empty(len(column), dtype=[("type", "u1"), ("number", ">f8")])
        rows["type"], rows["number"] = FLOAT, _numbers(column, 0.0)
        cells, lengths = rows.view(np.uint8).reshape(-1, 9), 9
    elif pa.types.is_timestamp(kind):
        micros = _numbers(column.cast(pa.int64()), 0)
        if not bool(are_instants(micros).all()):
            raise ValueError("an instant lies outside of the years 1 to 9999")
        cells, lengths = fill_instants(micros)
    else:
        cells, lengths = _of_ints(_numbers(column, 0))
    if null is None:
        return cells, lengths
    cells[null, 0] = NIL
    return cells, np.where(null, 1, lengths)


def _numbers(column: Any, blank: Any) -> Array:
    if column.null_count:
        column = pc.fill_null(column, blank)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _of_ints(numbers: Array) -> Cells:
    below = numbers < 0
    # -1 is the first number below zero as 0 is the first above, so that both have the bits that they need.
    away = (numbers ^ (numbers >> 63)).astype(np.uint64)
    types, widths = _sized(away, _UNSIGNED)
    if bool(below.any()):
        signed_types, signed_widths = _sized(away, _SIGNED)
        types, widths = np.where(below, signed_types, types), np.where(below, signed_widths, widths)
    types = np.where(widths == 0, numbers.astype(np.uint8), types)
    return _with_number(types, widths, numbers.view(np.uint64))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _headers(column: Any) -> Cells:
    """The header of each text."""
    is_text = _is_text(column.type)
    lengths = _numbers(pc.binary_length(column), 0).astype(np.uint64)
    types, widths = _sized(lengths, _TEXT if is_text else _BYTES)
    if is_text:
        types = np.where(widths == 0, types + lengths.astype(np.uint8), types)
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        types, widths = np.where(null, np.uint8(NIL), types), np.where(null, 0, widths)
    return _with_number(types, widths, lengths)


def _sized(numbers: Array, sizes: Sequence[tuple[int, int | None]]) -> tuple[Array, Array]:
    """The first byte of each number, and how many bytes follow it: as few as hold the number."""
    size = np.zeros(len(numbers), dtype=np.int64)
    largest = int(numbers.max(initial=0))
    for bound, _ in sizes:
        if largest < bound:
            break
        size += numbers >= np.uint64(bound)
    types = np.array([kind or 0 for _, kind in sizes], dtype=np.uint8)
    widths = np.array([0, *(1 << power for power in range(len(sizes) - 1))], dtype=np.int64)
    return types[size], widths[size]


def _with_number(types: Array, widths: Array, numbers: Array) -> Cells:
    """Cells of a first byte, and so many of the low bytes of a number, the highest of them first."""
    width = int(widths.max(initial=0))
    cells = np.empty((len(types), 1 + width), dtype=np.uint8)
    cells[:, 0] = types
    if width:
        shifted = numbers << np.where(widths == 0, 0, 8 * (8 - widths)).astype(np.uint64)
        cells[:, 1:] = shifted.astype(">u8").view(np.uint8).reshape(-1, 8)[:, :width]
    return cells, 1 + widths

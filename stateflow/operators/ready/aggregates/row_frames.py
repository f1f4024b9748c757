"""Rows of windows that wait for their code, as bytes: each frame is its length in four bytes and MessagePack.

A text names the columns of the rows behind it; an array is a row. Rows without a text before them have today's columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.ready.aggregates.partials import CountedRows, KeptAsResult, Parts
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.packed import bytes_of, of_bytes

Names = tuple[str, ...]
_decode = msgspec.msgpack.Decoder(str).decode
_BYTES = pa.large_binary()
_NOTHING = pa.scalar(b"", _BYTES)

_size_at = struct.Struct("<i").unpack_from
_AT_ONCE = 8192
"""Rows that are framed together: with more, texts of many kilobytes would not fit into one Arrow array."""


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


def framed_rows(payloads: Sequence[bytes], before: bytes) -> Any:
    """A frame of each row, behind some bytes, as a column."""
    pieces = []
    for begin in range(0, len(payloads), _AT_ONCE):
        rows = pa.array(payloads[begin : begin + _AT_ONCE], _BYTES)
        sizes = pc.binary_length(rows).cast(pa.int32()).buffers()[1]
        lengths = pa.Array.from_buffers(pa.binary(4), len(rows), [None, sizes]).cast(_BYTES)
        pieces.append(pc.binary_join_element_wise(pa.scalar(before, _BYTES), lengths, rows, _NOTHING))
    return pa.chunked_array(pieces, _BYTES)


def heading(names: Sequence[str]) -> bytes:
    """The frame before rows with these columns."""
    return framed(msgspec.msgpack.encode("\n".join(names)))


def runs_of_rows(blobs: Sequence[bytes], today: Names) -> tuple[list[tuple[Names, list[bytes]]], list[int]]:
    """The rows' MessagePack, together as long as they have the same columns, and how many rows each blob has."""
    headings: dict[bytes, Names] = {}
    runs: list[tuple[Names, list[bytes]]] = [(today, [])]
    counts = []
    for blob in blobs:
        at, end, count, names = 0, len(blob), 0, today
        while at < end:
            begin = at + 4
            at = begin + _size_at(blob, at)[0]
            payload = blob[begin:at]
            if _is_text(payload[0]):
                if payload not in headings:
                    headings[payload] = tuple(filter(None, _decode(payload).split("\n")))
                names = headings[payload]
                continue
            if names != runs[-1][0]:
                runs.append((names, []))
            runs[-1][1].append(payload)
            count += 1
        counts.append(count)
    return [run for run in runs if run[1]], counts


def _is_text(first: int) -> bool:
    return 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB


class EncodedRows(KeptAsResult):
    """Whole rows as the partial of an aggregate: the frames of a group, one after the other, behind those of their columns."""

    def __init__(self, columns: bytes) -> None:
        self._columns = pa.scalar(columns, _BYTES)

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        order = np.argsort(values.ids, kind="stable")
        lengths, raw = bytes_of(values.column.take(pa.array(order)))
        sums = np.zeros(groups.size, dtype=np.int64)
        np.add.at(sums, values.ids[order], lengths)
        rows = of_bytes(raw, sums, groups.counts(values.ids) > 0)
        return [pc.binary_join_element_wise(self._columns, rows, _NOTHING)]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [pc.binary_join_element_wise(one[0], other[0], _NOTHING, null_handling="skip")]

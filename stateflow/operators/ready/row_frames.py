"""Rows of windows that wait for their code, as bytes: each frame is its length in four bytes and MessagePack.

A text names the columns of the rows behind it; an array is a row. Rows without a text before them have today's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

Names = tuple[str, ...]
_decode = msgspec.msgpack.Decoder(str).decode


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


def heading(names: Sequence[str]) -> bytes:
    """The frame before rows with these columns."""
    return framed(msgspec.msgpack.encode("\n".join(names)))


def frames(blob: bytes, today: Names) -> Iterator[tuple[bytes, Names]]:
    """Each row's MessagePack with the names of its columns."""
    at, names = 0, today
    while at < len(blob):
        size = int.from_bytes(blob[at : at + 4], "little")
        payload = blob[at + 4 : at + 4 + size]
        at += 4 + size
        if _is_text(payload[0]):
            names = tuple(filter(None, _decode(payload).split("\n")))
        else:
            yield payload, names


def _is_text(first: int) -> bool:
    return 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB

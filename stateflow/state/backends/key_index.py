"""A sorted index beside a dict of keys, kept up only when a scan asks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_CHUNK = 1000


class KeyIndex:
    """Sorted distinct keys in chunks, so that inserting one moves a thousand others at most."""

    __slots__ = ("_chunks", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []

    def add(self, keys: list[bytes]) -> None:
        """Adds keys; those that are there already stay once."""
        if len(keys) > 64 and len(keys) * 8 > sum(map(len, self._chunks)):
            self._rebuild(keys)
            return
        for key in keys:
            self._insert(key)

    def _insert(self, key: bytes) -> None:
        if not self._chunks:
            self._chunks, self._lasts = [[key]], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        chunk = self._chunks[at]
        if key > chunk[-1]:
            chunk.append(key)
        else:
            position = bisect_left(chunk, key)
            if chunk[position] == key:
                return
            insort(chunk, key, position)
        if len(chunk) > 2 * _CHUNK:
            self._chunks[at : at + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
            self._lasts[at : at + 1] = [chunk[_CHUNK - 1], chunk[-1]]
        else:
            self._lasts[at] = chunk[-1]

    def _rebuild(self, keys: list[bytes]) -> None:
        whole = sorted({key for chunk in self._chunks for key in chunk}.union(keys))
        self._chunks = [whole[start : start + _CHUNK] for start in range(0, len(whole), _CHUNK)]
        self._lasts = [chunk[-1] for chunk in self._chunks]

    def between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """From `begin` to `end`, exclusive; the index must not change meanwhile."""
        at = bisect_left(self._lasts, begin)
        while at < len(self._chunks):
            chunk = self._chunks[at]
            start = bisect_left(chunk, begin)
            if chunk[-1] >= end:
                yield from chunk[start : bisect_left(chunk, end)]
                return
            yield from chunk[start:] if start else chunk
            at += 1

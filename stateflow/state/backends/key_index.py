"""A sorted index beside a dict of keys, kept up only when a scan asks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from operator import eq

_CHUNK = 1000
_MERGE_SHARE = 64
"""Inserting one key takes as long as passing over this many keys in a merge of two sorted lists."""


class KeyIndex:
    """Sorted distinct keys in chunks: inserting one moves at most a thousand others."""

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._size = 0
        """How many keys there are, counting those twice that were added twice."""

    def add(self, keys: list[bytes]) -> None:
        """Adds keys; those that are there already stay once."""
        self._size += len(keys)
        if len(keys) * _MERGE_SHARE > self._size:
            self._merge(keys)
            return
        for key in keys:
            self._insert(key)

    def _insert(self, key: bytes) -> None:
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

    def _merge(self, keys: list[bytes]) -> None:
        # Python's sort finds the runs that are in order, and merges them: what is indexed is one of them.
        whole = [key for chunk in self._chunks for key in chunk]
        whole += keys
        whole.sort()
        if any(map(eq, whole, islice(whole, 1, None))):
            whole = list(dict.fromkeys(whole))
        self._size = len(whole)
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

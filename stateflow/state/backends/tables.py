"""RocksDB's sorted tables, read without RocksDB: which blocks of a table RocksDB will read for a key or for a range.

A table is data blocks, and behind them its tail: filter, index, properties, footer. The tail is enough here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from struct import unpack_from
from typing import Final

import pyarrow as pa

from stateflow.state.backends.blocks import TRAILER, DamagedBlockError, entries, unpacked, varint
from stateflow.state.backends.table_filters import hash_of, may_have

FOOTER: Final = 53
_MAGIC = 0x88E241B785F4CFF7
_VERSION = 5
_LARGEST_BLOCK = 1 << 30
_TWO_LEVELS = 2
_PROPERTIES = b"rocksdb.properties"
_TOMBSTONES = b"rocksdb.range_del"
_FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
_FILTERS = b"partitionedfilter.rocksdb.BuiltinBloomFilter"

Handle = tuple[int, int]
"""Where a block begins, and its size without its trailer."""


class UnknownTable(Exception):
    """A table of another form than this version writes. It has to be read whole."""


UNREADABLE: Final = (UnknownTable, DamagedBlockError, struct.error, IndexError)
"""What the classes below raise over bytes that are no table, or one of another form."""


class Tail:
    """The last bytes of a table."""

    def __init__(self, body: bytes, size: int) -> None:
        self._body = body
        self._begin = size - len(body)
        if len(body) < FOOTER:
            raise UnknownTable("too short")
        magic, version = unpack_from("<Q", body, len(body) - 8)[0], unpack_from("<I", body, len(body) - 12)[0]
        if magic != _MAGIC or version != _VERSION:
            raise UnknownTable(f"format {version}")
        self._metaindex, at = _handle(body, len(body) - FOOTER + 1)
        self._index, _ = _handle(body, at)

    def block(self, handle: Handle) -> bytes:
        """The content of a block in the tail."""
        offset, size = handle
        at = offset - self._begin
        if at < 0 or at + size + TRAILER > len(self._body):
            raise UnknownTable("a block lies elsewhere")
        return _decompressed(self._body[at : at + size], self._body[at + size])

    def meta(self) -> dict[bytes, Handle]:
        return {
            name: _handle(value, 0)[0]
            for name, value in entries(self.block(self._metaindex))
            if len(value) <= 20
        }

    def index(self) -> Handle:
        return self._index


def tail_begin(tail: Tail) -> int:
    """Where the data blocks end. The tail must have the table's properties, which lie near its end."""
    meta = tail.meta()
    if _PROPERTIES not in meta:
        raise UnknownTable("no properties")
    return _number(dict(entries(tail.block(meta[_PROPERTIES]))), b"rocksdb.data.size")


def tombstones(tail: Tail) -> list[tuple[bytes, bytes]]:
    """The ranges that the table deletes from older ones: begin, and end, exclusive. They lie near its end."""
    meta = tail.meta()
    if _TOMBSTONES not in meta:
        return []
    return [(key[:-8], end) for key, end in entries(tail.block(meta[_TOMBSTONES]))]


class Index:
    """The blocks of one level of an index: the last key of each, or one between it and the next block, and where it is.

    With one entry between two restarts, as this version writes it, an entry is found without reading those before it.
    """

    def __init__(self, body: bytes, with_sequence: bool) -> None:
        self._count: int = unpack_from("<I", body, len(body) - 4)[0]
        self._cut = 8 if with_sequence else 0
        end = len(body) - 4 - 4 * self._count
        if self._count >> 31 or end < 0 or not self._count:
            raise UnknownTable("an index of another form")
        self._body = body
        self._starts = (*unpack_from(f"<{self._count}I", body, end), end)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        return self._entry(number)[0]

    def handle(self, number: int) -> Handle:
        return self._entry(number)[1]

    def position(self, key: bytes) -> int:
        """The first block that may have the key, or one behind it; how many there are if there is none."""
        return bisect_left(self, key)

    def _entry(self, number: int) -> tuple[bytes, Handle]:
        shared, at = varint(self._body, self._starts[number])
        length, at = varint(self._body, at)
        handle, end = _handle(self._body, at + length)
        if shared or end != self._starts[number + 1]:
            raise UnknownTable("an index of another form")
        return self._body[at : at + length - self._cut], handle


class SortedTable:
    """The blocks of one table."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        meta = tail.meta()
        if _PROPERTIES not in meta:
            raise UnknownTable("no properties")
        properties = dict(entries(tail.block(meta[_PROPERTIES])))
        if _number(properties, b"rocksdb.index.value.is.delta.encoded") != 1:
            raise UnknownTable("an index of another form")
        self._with_sequence = _number(properties, b"rocksdb.index.key.is.user.key") != 1
        kind = int.from_bytes(properties.get(b"rocksdb.block.based.table.index.type", b""), "little")
        if kind not in (0, _TWO_LEVELS):
            raise UnknownTable(f"an index of kind {kind}")
        self._two_levels = kind == _TWO_LEVELS
        self._top = self._read_index(tail.index())
        self._parts: dict[int, Index] = {}
        self._filter = tail.block(meta[_FILTER]) if _FILTER in meta else None
        self._filters = self._read_index(meta[_FILTERS]) if _FILTERS in meta else None
        self._filter_parts: dict[int, bytes] = {}

    def may_have(self, key: bytes) -> bool:
        """What the table's filter says of the key."""
        number = hash_of(key)
        if number is None:
            return True
        if self._filters is not None:
            part = self._filters.position(key)
            if part == len(self._filters):
                return True
            if part not in self._filter_parts:
                self._filter_parts[part] = self._tail.block(self._filters.handle(part))
            return may_have(self._filter_parts[part], number)
        return self._filter is None or may_have(self._filter, number)

    def blocks(self, begin: bytes | None, end: bytes | None) -> list[Handle]:
        """From the block where a search for `begin` ends to the one behind that where a search for `end` does; None stands for
        the table's own begin and end. Where nothing is left in the table for `begin`, it is empty."""
        first = (0, 0) if begin is None else self._position(begin)
        last = (len(self._top), 0) if end is None else self._position(end)
        handles = []
        for at in self._from(first):
            handles.append(self._handle_at(at))
            if at > last:
                break
        return handles

    def _position(self, key: bytes) -> tuple[int, int]:
        at = self._top.position(key)
        if not self._two_levels or at == len(self._top):
            return at, 0
        return at, self._part(at).position(key)

    def _from(self, first: tuple[int, int]) -> Iterator[tuple[int, int]]:
        for at in range(first[0], len(self._top)):
            if not self._two_levels:
                yield at, 0
                continue
            for inner in range(first[1] if at == first[0] else 0, len(self._part(at))):
                yield at, inner

    def _handle_at(self, at: tuple[int, int]) -> Handle:
        return self._part(at[0]).handle(at[1]) if self._two_levels else self._top.handle(at[0])

    def _part(self, at: int) -> Index:
        if at not in self._parts:
            self._parts[at] = self._read_index(self._top.handle(at))
        return self._parts[at]

    def _read_index(self, handle: Handle) -> Index:
        return Index(self._tail.block(handle), self._with_sequence)


def stored_size(handle: Handle) -> int:
    """A block's size with its trailer."""
    return handle[1] + TRAILER


def _decompressed(body: bytes, kind: int) -> bytes:
    if kind and varint(body, 0)[0] > _LARGEST_BLOCK:
        raise UnknownTable("a block without bounds")
    try:
        return unpacked(body, kind)
    except (OSError, pa.ArrowException) as error:
        raise UnknownTable(str(error)) from error


def _number(properties: dict[bytes, bytes], name: bytes) -> int:
    return varint(properties[name], 0)[0] if name in properties else 0


def _handle(body: bytes, at: int) -> tuple[Handle, int]:
    offset, at = varint(body, at)
    size, at = varint(body, at)
    return (offset, size), at

"""RocksDB's sorted tables, read without RocksDB: which blocks of a table RocksDB will read for a key or for a range.

A table is data blocks, and behind them its tail: filter, index, properties, footer. The tail is enough here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import pyarrow as pa

from stateflow.state.backends.blocks import (
    TRAILER,
    BlockPlace,
    DamagedBlockError,
    entries,
    index_places,
    place_at,
    unpacked,
    varint,
)
from stateflow.state.backends.table_filters import hash_of, may_have

FOOTER: Final = 53
FORMAT: Final = 5
"""Of the tables that this version writes."""
_MAGIC = 0x88E241B785F4CFF7
_LARGEST_BLOCK = 1 << 30
_TWO_LEVELS = 2
_version_and_magic = struct.Struct("<IQ")
_FILTER = "fullfilter.rocksdb.BuiltinBloomFilter"
_FILTERS = "partitionedfilter.rocksdb.BuiltinBloomFilter"


class UnknownTable(Exception):
    """A table of another form than this version writes. It has to be read whole."""


UNREADABLE: Final = (UnknownTable, DamagedBlockError, struct.error, IndexError, KeyError, UnicodeDecodeError)
"""What the tail of a table raises over bytes that are no table, or one of another form."""


class SortedTable:
    """A table as its footer, its properties and its index describe it."""

    def __init__(self, footer: bytes) -> None:
        if len(footer) < FOOTER:
            raise DamagedBlockError("it is too short")
        self.version, magic = _version_and_magic.unpack_from(footer, FOOTER - _version_and_magic.size)
        if magic != _MAGIC:
            raise DamagedBlockError("it does not end as such a file does")
        self.checksum = footer[0]
        self._metaindex, at = place_at(footer, 1)
        self._index, _ = place_at(footer, at)

    def block(self, place: BlockPlace) -> bytes:
        """The content of a block."""
        raise NotImplementedError

    @cached_property
    def meta(self) -> dict[str, BlockPlace]:
        """The places of the blocks beside data and index, by name."""
        return {key.decode(): place_at(value, 0)[0] for key, value in entries(self.block(self._metaindex))}

    @cached_property
    def properties(self) -> dict[bytes, bytes]:
        return dict(entries(self.block(self.meta["rocksdb.properties"])))

    def number(self, name: bytes) -> int:
        raw = self.properties.get(name)
        return varint(raw, 0)[0] if raw else 0

    def places(self, begin: bytes | None) -> Iterator[tuple[bytes, BlockPlace]]:
        """The data blocks, each with a key that is at least its last one. With `begin` those from there on."""
        return self.places_in(self._index, begin, two_levels=self._two_levels)

    def places_in(
        self, index: BlockPlace, begin: bytes | None, *, two_levels: bool
    ) -> Iterator[tuple[bytes, BlockPlace]]:
        """What an index names; one of two levels names indexes."""
        delta, whole_keys = self._form
        tops = index_places(self.block(index), begin, delta=delta, whole_keys=whole_keys)
        if not two_levels:
            return tops
        return (
            each
            for _, place in tops
            for each in index_places(self.block(place), begin, delta=delta, whole_keys=whole_keys)
        )

    @cached_property
    def _two_levels(self) -> bool:
        kind = int.from_bytes(self.properties[b"rocksdb.block.based.table.index.type"], "little")
        if kind not in (0, _TWO_LEVELS):
            raise DamagedBlockError(f"an index of kind {kind}, which no option of the backend makes")
        return kind == _TWO_LEVELS

    @cached_property
    def _form(self) -> tuple[bool, bool]:
        delta = self.number(b"rocksdb.index.value.is.delta.encoded")
        return bool(delta), not self.number(b"rocksdb.index.key.is.user.key")

    def tombstones(self) -> Iterator[tuple[bytes, bytes]]:
        """The ranges that the table deletes from older ones: begin with sequence number and kind, and end, exclusive."""
        place = self.meta.get("rocksdb.range_del")
        return iter(()) if place is None else entries(self.block(place))


class TableTail(SortedTable):
    """The last bytes of a table of this version's format, without a look at checksums."""

    def __init__(self, body: bytes, size: int) -> None:
        super().__init__(body[-FOOTER:])
        if self.version != FORMAT:
            raise UnknownTable(f"format {self.version}")
        self._body = body
        self._begin = size - len(body)
        self._blocks: dict[int, bytes] = {}

    def block(self, place: BlockPlace) -> bytes:
        if place.offset not in self._blocks:
            at = place.offset - self._begin
            if at < 0 or at + place.size + TRAILER > len(self._body):
                raise UnknownTable("a block lies elsewhere")
            body, kind = self._body[at : at + place.size], self._body[at + place.size]
            self._blocks[place.offset] = decompressed(body, kind)
        return self._blocks[place.offset]

    def begin(self) -> int:
        """Where the data blocks end. The tail must have the table's properties, which lie near its end."""
        return self.number(b"rocksdb.data.size")

    def may_have(self, key: bytes) -> bool:
        """What the table's filter says of the key."""
        number = hash_of(key)
        if number is None:
            return True
        if _FILTERS in self.meta:
            part = next(self.places_in(self.meta[_FILTERS], key, two_levels=False), None)
            return part is None or may_have(self.block(part[1]), number)
        return _FILTER not in self.meta or may_have(self.block(self.meta[_FILTER]), number)

    def blocks(self, begin: bytes | None, end: bytes | None) -> list[BlockPlace]:
        """From the block where a search for `begin` ends to the one behind that where a search for `end` does; None stands for
        the table's own begin and end. Where nothing is left in the table for `begin`, it is empty."""
        places = []
        is_last = False
        for key, place in self.places(begin):
            places.append(place)
            if is_last:
                break
            is_last = end is not None and key >= end
        return places


def decompressed(body: bytes, kind: int) -> bytes:
    if kind and varint(body, 0)[0] > _LARGEST_BLOCK:
        raise UnknownTable("a block without bounds")
    try:
        return unpacked(body, kind)
    except (OSError, pa.ArrowException) as error:
        raise UnknownTable(str(error)) from error

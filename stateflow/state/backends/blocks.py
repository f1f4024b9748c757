"""Blocks of RocksDB's files: their bytes checked and unpacked, their entries, and the handles in an index.

A block lies in its file as `[bytes][compression u8][checksum u32]`. Its entries share the beginnings of their keys:
`[shared][own][length of the value][rest of the key][value]`, with varints; at its end stand the places of the entries whose keys
are whole (`restarts`), and their number.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import pyarrow as pa
import xxhash

Bytes = bytes | mmap.mmap
"""What a file is read from."""

TRAILER = 5
"""Bytes behind each block: how it is compressed, and its checksum."""
_NONE, _CRC32C, _XXHASH32, _XXHASH64, _XXH3 = range(5)
_LAST_BYTE = 0x6B9083D9
"""XXH3 does not see the byte behind the block; RocksDB adds it with this factor."""
_MASK = 0xFFFFFFFF
_u32 = Struct("<I")
_CODECS = {4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
"""By the byte behind a block. Each block begins with its unpacked length."""
_SNAPPY = 1


class DamagedBlockError(ValueError):
    """Bytes that are no block, or not the block that was written."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block lies in its file, without what follows it."""

    offset: int
    size: int


def varint(data: Bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise DamagedBlockError("a number that does not end")


def place_at(data: Bytes, at: int) -> tuple[BlockPlace, int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return BlockPlace(offset, size), at


def read_block(data: Bytes, place: BlockPlace, checksum: int) -> bytes:
    """The content of a block, once its checksum is compared; `checksum` is the file's kind of it."""
    end = place.offset + place.size
    if end + TRAILER > len(data):
        raise DamagedBlockError("a block behind the end of the file")
    stored = data[place.offset : end]
    kind = data[end]
    if checksum != _NONE and _u32.unpack_from(data, end + 1)[0] != _computed(stored, kind, checksum):
        raise DamagedBlockError(f"the block at {place.offset} does not match its checksum")
    return unpacked(stored, kind)


def _computed(stored: bytes, kind: int, checksum: int) -> int:
    if checksum == _XXH3:
        return (xxhash.xxh3_64_intdigest(stored) & _MASK) ^ ((kind * _LAST_BYTE) & _MASK)
    whole = stored + bytes((kind,))
    if checksum == _XXHASH32:
        return xxhash.xxh32_intdigest(whole)
    if checksum == _XXHASH64:
        return xxhash.xxh64_intdigest(whole) & _MASK
    raise DamagedBlockError(f"checksums of kind {checksum}, which no option of the backend makes")


def unpacked(stored: bytes, kind: int) -> bytes:
    """The content of a block, without a look at its checksum."""
    if kind == 0:
        return stored
    if kind == _SNAPPY:
        # Snappy says the unpacked length itself.
        length, _ = varint(stored, 0)
        return pa.Codec("snappy").decompress(stored, length, asbytes=True)  # type: ignore[no-any-return]
    name = _CODECS.get(kind)
    if name is None:
        raise DamagedBlockError(f"compression of kind {kind}, which no option of the backend makes")
    length, at = varint(stored, 0)
    return pa.Codec(name).decompress(stored[at:], length, asbytes=True)  # type: ignore[no-any-return]


def _restarts(block: bytes) -> tuple[int, int]:
    """How many there are, and where they begin, which is where the entries end."""
    if len(block) < 4:
        raise DamagedBlockError("a block that is too short")
    footer: int = _u32.unpack_from(block, len(block) - 4)[0]
    count = footer & 0x0FFFFFFF
    begin = len(block) - 4 - 4 * count
    if footer >> 28 or begin < 0:
        raise DamagedBlockError("a block with an index of its own, which no option of the backend makes")
    return count, begin


def entries(block: bytes, begin: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in order. With `begin`, which is a key without its last eight bytes, at least those from there on."""
    count, end = _restarts(block)
    at = 0 if begin is None else _place_before(block, count, end, begin, sized=True, whole_keys=True)
    key = b""
    while at < end:
        shared, own, size = block[at], block[at + 1], block[at + 2]
        if shared < 128 and own < 128 and size < 128:
            at += 3
        else:
            shared, at = varint(block, at)
            own, at = varint(block, at)
            size, at = varint(block, at)
        middle = at + own
        if shared > len(key) or middle + size > end:
            raise DamagedBlockError("an entry that leads out of its block")
        key = key[:shared] + block[at:middle]
        at = middle + size
        yield key, block[middle:at]


def index_places(
    block: bytes, begin: bytes | None = None, *, delta: bool, whole_keys: bool
) -> Iterator[tuple[bytes, BlockPlace]]:
    """The blocks that an index names, each with a key that is at least its last one. With `begin` those from there on.

    `delta`: behind an entry with a whole key, only the difference of the size is stored. `whole_keys`: the keys have
    the eight bytes of a sequence number and a kind, which the answer leaves out.
    """
    count, end = _restarts(block)
    at = 0
    if begin is not None:
        at = _place_before(block, count, end, begin, sized=not delta, whole_keys=whole_keys)
    key, place = b"", BlockPlace(0, 0)
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        if not delta:
            _, at = varint(block, at)
        if shared > len(key):
            raise DamagedBlockError("an entry of an index without its beginning")
        key = key[:shared] + block[at : at + own]
        at += own
        if delta and shared:
            zigzag, at = varint(block, at)
            difference = (zigzag >> 1) ^ -(zigzag & 1)
            place = BlockPlace(place.offset + place.size + TRAILER, place.size + difference)
        else:
            place, at = place_at(block, at)
        if at > end or place.size < 0:
            raise DamagedBlockError("an entry that leads out of its index")
        last = key[:-8] if whole_keys else key
        if begin is None or last >= begin:
            yield last, place


def _place_before(block: bytes, count: int, end: int, begin: bytes, *, sized: bool, whole_keys: bool) -> int:
    """Where the last entry with a whole key before `begin` lies. `sized`: entries say how long their values are."""

    def place(number: int) -> int:
        return int(_u32.unpack_from(block, end + 4 * number)[0])

    def key_at(number: int) -> bytes:
        shared, at = varint(block, place(number))
        own, at = varint(block, at)
        if sized:
            _, at = varint(block, at)
        if shared:
            raise DamagedBlockError("a whole key that is not whole")
        key = block[at : at + own]
        return key[:-8] if whole_keys else key

    return place(max(0, bisect_left(range(count), begin, key=key_at) - 1)) if count else 0

"""One file of a RocksDB database, read without RocksDB: its entries in order, deletions included.

RocksDB itself opens whole databases and hides what was deleted. But two checkpoints differ by what their own files say, so
that is what a diff reads. It reads what the options of the backend write: format 5, with lz4, zstd, snappy or nothing, and with
indexes of one level or two. Every block is compared with its checksum.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import pyarrow as pa

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.state.backends.blocks import (
    BlockPlace,
    Bytes,
    DamagedBlockError,
    entries,
    index_places,
    place_at,
    read_block,
)

_FOOTER = 53
_MAGIC = 0x88E241B785F4CFF7
_HIGHEST = 5
_TWO_LEVELS = 2
_tail = Struct("<IQ")
_packed = Struct("<Q")
_u32 = Struct("<I")

DELETE, PUT, SINGLE_DELETE, RANGE_DELETE = 0, 1, 7, 15
_DELETES = frozenset((DELETE, SINGLE_DELETE))
_DAMAGE = (StructError, IndexError, ValueError, KeyError, OverflowError, pa.ArrowException, OSError)


class FileEntry(NamedTuple):
    """What a file says of a key."""

    key: bytes
    sequence: int
    """The later one of two entries has the higher number. 0 where the file was ingested: the manifest knows it."""
    value: bytes | None
    """None: it was deleted."""


class DeletedRange(NamedTuple):
    """Older entries from `begin` to `end`, exclusive, are deleted."""

    begin: bytes
    end: bytes
    sequence: int


class SstFile:
    """An open file. `name` is how errors call it."""

    def __init__(self, data: Bytes, name: str) -> None:
        self._data, self.name = data, name
        try:
            self._open()
        except _DAMAGE as error:
            raise self._damaged(error) from None

    @classmethod
    def at(cls, path: Path, name: str) -> SstFile:
        """The file in a folder. It is mapped, not read."""
        with path.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # an empty file
                raise CorruptError(_sentence(name, "it is empty")) from None
        return cls(mapped, name)

    def _open(self) -> None:
        data = self._data
        begin = len(data) - _FOOTER
        if begin < 0:
            raise DamagedBlockError("it is too short")
        version, magic = _tail.unpack_from(data, len(data) - _tail.size)
        if magic != _MAGIC:
            raise DamagedBlockError("it does not end as such a file does")
        if version > _HIGHEST:
            raise IncompatibleError(
                f"the state file {self.name} has format {version} of a newer RocksDB; this stateflow reads up to {_HIGHEST}: upgrade it"
            )
        self._checksum = data[begin]
        meta, at = place_at(data, begin + 1)
        self._index_place, _ = place_at(data, at)
        self._meta = {bytes(key).decode(): place_at(value, 0)[0] for key, value in entries(self._block(meta))}
        self.properties = dict(entries(self._block(self._meta["rocksdb.properties"])))
        self._two_levels = (
            _u32.unpack(self.properties[b"rocksdb.block.based.table.index.type"])[0] == _TWO_LEVELS
        )
        self._delta = bool(self._number(b"rocksdb.index.value.is.delta.encoded"))
        self._whole_keys = not self._number(b"rocksdb.index.key.is.user.key")
        self._index: bytes | None = None

    def _number(self, name: bytes) -> int:
        raw = self.properties.get(name)
        if not raw:
            return 0
        value = shift = 0
        for byte in raw:
            value |= (byte & 127) << shift
            shift += 7
        return value

    @property
    def ingested(self) -> bool:
        """Whether its entries have no sequence numbers of their own: all have the file's."""
        return b"rocksdb.external_sst_file.version" in self.properties

    @property
    def count(self) -> int:
        """How many entries it has, deletions included."""
        return self._number(b"rocksdb.num.entries")

    def entries(self, begin: bytes | None = None, end: bytes | None = None) -> Iterator[FileEntry]:
        """From `begin` to `end`, exclusive, in the order of the keys; of one key the latest first."""
        try:
            for _, place in self._places(begin):
                block = self._block(place)
                for key, value in entries(block, begin):
                    user = key[:-8]
                    if begin is not None and user < begin:
                        continue
                    if end is not None and user >= end:
                        return
                    packed = _packed.unpack_from(key, len(key) - 8)[0]
                    kind = packed & 255
                    if kind == PUT:
                        yield FileEntry(user, packed >> 8, value)
                    elif kind in _DELETES:
                        yield FileEntry(user, packed >> 8, None)
                    else:
                        raise DamagedBlockError(f"an entry of kind {kind}, which the backend does not write")
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def deleted_ranges(self) -> list[DeletedRange]:
        place = self._meta.get("rocksdb.range_del")
        if place is None:
            return []
        try:
            return [
                DeletedRange(key[:-8], end, _packed.unpack_from(key, len(key) - 8)[0] >> 8)
                for key, end in entries(self._block(place))
            ]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def _places(self, begin: bytes | None) -> Iterator[tuple[bytes, BlockPlace]]:
        if self._index is None:
            self._index = self._block(self._index_place)
        tops = index_places(self._index, begin, delta=self._delta, whole_keys=self._whole_keys)
        if not self._two_levels:
            yield from tops
            return
        for _, place in tops:
            yield from index_places(self._block(place), begin, delta=self._delta, whole_keys=self._whole_keys)

    def _block(self, place: BlockPlace) -> bytes:
        return read_block(self._data, place, self._checksum)

    def _damaged(self, error: Exception) -> CorruptError:
        return CorruptError(_sentence(self.name, str(error) or type(error).__name__))


def _sentence(name: str, what: str) -> str:
    return (
        f"the state file {name} is damaged ({what}): run `stateflow verify` and restore an intact checkpoint"
    )


__all__ = ["DELETE", "PUT", "DeletedRange", "FileEntry", "SstFile"]

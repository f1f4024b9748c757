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
from stateflow.state.backends.blocks import BlockPlace, Bytes, DamagedBlockError, entries, read_block
from stateflow.state.backends.tables import FOOTER, FORMAT, SortedTable

_packed = Struct("<Q")

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


class SstFile(SortedTable):
    """An open file. `name` is how errors call it."""

    def __init__(self, data: Bytes, name: str) -> None:
        self._data, self.name = data, name
        try:
            super().__init__(data[-FOOTER:])
            if self.version > FORMAT:
                raise IncompatibleError(
                    f"the state file {name} has format {self.version} of a newer RocksDB; this stateflow reads up to {FORMAT}: "
                    "upgrade it"
                )
            self.ingested = b"rocksdb.external_sst_file.version" in self.properties
            """Whether its entries have no sequence numbers of their own: all have the file's."""
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

    @property
    def count(self) -> int:
        """How many entries it has, deletions included."""
        return self.number(b"rocksdb.num.entries")

    def entries(self, begin: bytes | None = None, end: bytes | None = None) -> Iterator[FileEntry]:
        """From `begin` to `end`, exclusive, in the order of the keys; of one key the latest first."""
        try:
            for _, place in self.places(begin):
                block = self.block(place)
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
        try:
            return [
                DeletedRange(begin[:-8], end, _packed.unpack_from(begin, len(begin) - 8)[0] >> 8)
                for begin, end in self.tombstones()
            ]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def block(self, place: BlockPlace) -> bytes:
        return read_block(self._data, place, self.checksum)

    def _damaged(self, error: Exception) -> CorruptError:
        return CorruptError(_sentence(self.name, str(error) or type(error).__name__))


def _sentence(name: str, what: str) -> str:
    return (
        f"the state file {name} is damaged ({what}): run `stateflow verify` and restore an intact checkpoint"
    )

"""The in-memory backend: a dict per shard, read and written in full with every batch. For small state and tests.

The one file of a snapshot, frozen:

    "SFMEM" [version u8 = 1] [entries u64]
    per entry, in key order: [key length u32] [value length u32] [key] [value]

with little-endian numbers. Its size and XXH3 are checked against the record before it is read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final

import xxhash

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format.encoding import after, group_range
from stateflow.format.records import Shard
from stateflow.state.backends.base import Fetch, NewFile, OpenShard, RemoteFiles, Snapshot
from stateflow.state.backends.corruption import translated
from stateflow.state.backends.key_index import KeyIndex

FILE: Final = "entries.bin"

_log = logging.getLogger(__name__)
_header = Struct("<5sBQ")
_lengths = Struct("<II")
_MAGIC = b"SFMEM"
_VERSION = 1
_LARGE = 64 << 20


class MemoryBackend:
    """One open shard. A deleted key stays in the index: the dict decides."""

    def __init__(
        self,
        shard: Shard,
        directory: Path,
        fetch: Fetch,
        remote: RemoteFiles | None = None,
        *,
        inline_threshold: int,
    ) -> None:
        self._directory = directory
        self._inline_threshold = inline_threshold
        self._refs = shard.files
        self._entries: dict[bytes, bytes] | None = {}
        self._index = KeyIndex()
        self._fresh: list[bytes] = []
        self._changed = False
        for ref in shard.files:
            data = ref.data if ref.data is not None else fetch(ref).read_bytes()
            # All of it is read anyway; a copy in a cache was checked only when it was fetched.
            if ref.data is None and xxhash.xxh3_64_hexdigest(data) != ref.xxh3:
                raise CorruptError(
                    f"the state file {ref.path or ref.name} does not match its checksum; run `stateflow verify`, and "
                    "delete the host's cache folder if the store is sound"
                )
            self._load(data, ref.name)
        begin, end = group_range(shard.first, shard.last)
        outside = [key for key in self._opened if not begin <= key < end]
        if outside and (shard.physical_first is not None or shard.physical_last is not None):
            self.write(zip(outside, repeat(None)))

    def _load(self, data: bytes, name: str) -> None:
        try:
            magic, version, count = _header.unpack_from(data)
            if magic != _MAGIC:
                raise CorruptError(f"the state file {name} is no memory snapshot; run `stateflow verify`")
            if version > _VERSION:
                raise IncompatibleError(
                    f"the state file {name} has format {version} of a newer stateflow; this one reads up to "
                    f"{_VERSION}: upgrade it"
                )
            entries, at = self._opened, _header.size
            for _ in range(count):
                key_size, value_size = _lengths.unpack_from(data, at)
                middle = at + _lengths.size + key_size
                at, start = middle + value_size, at + _lengths.size
                entries[data[start:middle]] = data[middle:at]
        except StructError:
            at = -1
        if at != len(data):
            raise CorruptError(f"the state file {name} is cut off or damaged; run `stateflow verify`")
        self._fresh.extend(entries)

    @property
    def _opened(self) -> dict[bytes, bytes]:
        if self._entries is None:
            raise RuntimeError("this shard was snapshotted or closed")
        return self._entries

    def get(self, key: bytes) -> bytes | None:
        return self._opened.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return list(map(self._opened.get, keys))

    @property
    def is_afar(self) -> bool:
        return False

    def expect(self, keys: Sequence[bytes]) -> None:
        pass

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        entries = self._opened
        for key, value in changes:
            if value is not None:
                if key not in entries:
                    self._fresh.append(key)
                entries[key] = value
                self._changed = True
            elif entries.pop(key, None) is not None:
                self._changed = True

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.write(zip(list(self._between(begin, end)), repeat(None)))

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._opened
        return iter([(key, entries[key]) for key in self._between(begin, end) if key in entries])

    def scan_parts(self, begin: bytes, end: bytes, at: int, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        return (entry for entry in self.scan(begin, end) if entry[0].startswith(part, at))

    def scan_many(self, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
        for begin in begins:
            yield list(self.scan(begin, after(begin)))

    def first(self, begin: bytes, end: bytes) -> bytes | None:
        entries = self._opened
        return next((key for key in self._between(begin, end) if key in entries), None)

    def _between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        if begin >= end:
            return iter(())
        if self._fresh:
            self._index.add(self._fresh)
            self._fresh = []
        return self._index.between(begin, end)

    def snapshot(self) -> Snapshot:
        entries, self._entries = self._opened, None
        if not self._changed:
            return Snapshot(kept=self._refs, new=(), entries=len(entries))
        if not entries:
            return Snapshot(kept=(), new=())
        parts = [_header.pack(_MAGIC, _VERSION, len(entries))]
        for key in sorted(entries):
            value = entries[key]
            parts += (_lengths.pack(len(key), len(value)), key, value)
        data = b"".join(parts)
        if len(data) > _LARGE:
            _log.warning(
                "a shard in memory has %d MiB and is written in full with every batch: use the rocksdb backend",
                len(data) >> 20,
            )
        if len(data) <= self._inline_threshold:
            return Snapshot(kept=(), new=(NewFile(FILE, data=data),), entries=len(entries))
        path = self._directory / FILE
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise translated(error, self._directory) from error
        return Snapshot(kept=(), new=(NewFile(FILE, path=path),), entries=len(entries))

    def close(self) -> None:
        self._entries = None
        self._index, self._fresh = KeyIndex(), []
        shutil.rmtree(self._directory, ignore_errors=True)


def memory_backend(inline_threshold: int = 20 << 10) -> OpenShard:
    """Opens shards that live in memory."""
    if not 0 <= inline_threshold <= 1 << 20:
        raise UsageError(f"inline_threshold is {inline_threshold} bytes: records hold at most {1 << 20}")
    return partial(MemoryBackend, inline_threshold=inline_threshold)

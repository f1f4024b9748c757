"""The entries of a shard, straight from its files, without a database: for a look at one key in many checkpoints.

Neighbouring checkpoints share nearly all of their files. What a file says of a key never changes, so each is asked once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format.records import FileRef, Shard
from stateflow.reading.files.manifest import LiveFile, files_remembered, live_files
from stateflow.reading.files.sst import DeletedRange, FileEntry, SstFile
from stateflow.state.backends.memory import MemoryBackend
from stateflow.storage.cache import FileCache
from stateflow.storage.store import Store

T = TypeVar("T")

_TRIES = 20
_MAPPED = 1 << 20
"""A file from this size on is mapped, which takes a descriptor; a smaller one is read."""

Identity = tuple[object, ...]
Contents = Callable[[FileRef, bytes, bytes], tuple[Iterable[FileEntry], Sequence[DeletedRange]]]
"""What a file says of the keys from one to another, exclusive."""


def identity(ref: FileRef) -> Identity:
    """The same for two references to the same bytes, also where one is a copy of the other's file."""
    if ref.data is not None:
        return ("content", sha256(ref.data).digest(), ref.size)
    return ("content", ref.sha256, ref.size) if ref.sha256 else ("place", *ref.place)


class StateFiles:
    """State files on this host: fetched through its cache, each at most once. Safe for many threads."""

    def __init__(self, store_of: Callable[[str], Store], cache: FileCache) -> None:
        """`store_of` opens the store of a `FileRef.base`."""
        self.store_of, self.cache = store_of, cache
        self._entries: dict[tuple[Identity, bytes, bytes, int, bytes], tuple[FileEntry, ...]] = {}
        self._ranges: dict[Identity, tuple[DeletedRange, ...]] = {}
        self._manifests: dict[Identity, list[LiveFile]] = {}
        self._memory: dict[Identity, MemoryBackend] = {}
        self._fetching: dict[Identity, threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, ref: FileRef) -> bytes:
        """The bytes of a small file."""
        if ref.data is not None:
            return ref.data
        return self._opened(ref, Path.read_bytes)

    def sst(self, ref: FileRef) -> SstFile:
        name = ref.path or ref.name
        if ref.data is not None or ref.size < _MAPPED:
            return SstFile(self.read(ref), name)
        return self._opened(ref, lambda path: SstFile.at(path, name))

    def _opened(self, ref: FileRef, open_it: Callable[[Path], T]) -> T:
        with self._lock:
            turn = self._fetching.setdefault(identity(ref), threading.Lock())
        for _ in range(_TRIES):
            with turn:  # else each of many threads would fetch it
                path = self.cache.fetch(self.store_of(ref.base), ref)
            try:
                return open_it(path)
            except FileNotFoundError:
                continue  # another process has evicted it
        raise CorruptError(
            f"the cache folder {self.cache.folder} loses files as fast as they come: enlarge cache_size"
        )

    def here(self, ref: FileRef) -> bool:
        """Whether the file can be read without fetching it over a network."""
        if ref.data is not None:
            return True
        store = self.store_of(ref.base)
        return store.local_root is not None or self.cache.holds(store, ref)

    def live(self, shard: Shard) -> list[tuple[FileRef, LiveFile]]:
        """The files of a RocksDB shard with what its manifest says of them."""
        by_name = {ref.name: ref for ref in shard.files}
        with _lacking_none():
            manifest = self._manifest(by_name)
            key = identity(manifest)
            known = self._manifests.get(key)
            if known is None:
                known = self._manifests[key] = live_files(self.read(manifest), manifest.path or manifest.name)
            return [(by_name[file.name], file) for file in known]

    def reaches(self, shard: Shard, begin: bytes, end: bytes) -> bool:
        """Whether the files of a RocksDB shard may have bytes of the keys from `begin` to `end`, exclusive: also what was deleted or
        written over since, and the bounds of files that are gone. It reads the manifest alone."""
        with _lacking_none():
            manifest = self._manifest({ref.name: ref for ref in shard.files})
            files = files_remembered(self.read(manifest), manifest.path or manifest.name)
        return any(file.spans(begin, end) for file in files)

    def _manifest(self, by_name: Mapping[str, FileRef]) -> FileRef:
        return by_name[self.read(by_name["CURRENT"]).decode().strip()]

    def contents(
        self, ref: FileRef, begin: bytes, end: bytes, at: int = 0, part: bytes = b""
    ) -> tuple[Sequence[FileEntry], Sequence[DeletedRange]]:
        """What a file says of the keys from `begin` to `end`, exclusive, that have `part` from byte `at` on."""
        own = identity(ref)
        asked = (own, begin, end, at, part)
        with self._lock:
            entries, ranges = self._entries.get(asked), self._ranges.get(own)
        if entries is None or ranges is None:
            file = self.sst(ref)
            ranges = tuple(file.deleted_ranges())
            # Only what was asked for is kept: between the entries of one key there may be those of a million others.
            entries = tuple(entry for entry in file.entries(begin, end) if entry.key.startswith(part, at))
            with self._lock:
                self._entries[asked], self._ranges[own] = entries, ranges
        return entries, ranges

    def entries(
        self, shard: Shard, begin: bytes, end: bytes, contents: Contents
    ) -> Iterator[tuple[bytes, bytes]]:
        """What a shard holds from `begin` to `end`, exclusive, in key order: of each key the newest entry that no later deletion hides."""
        if shard.backend == "memory":
            yield from self.memory(shard).scan(begin, end)
            return
        if shard.backend != "rocksdb":
            raise IncompatibleError(
                f"state was written by the backend {shard.backend!r}, which this version does not have"
            )
        latest: dict[bytes, tuple[int, bytes | None]] = {}
        deleted: list[DeletedRange] = []
        for ref, live in self.live(shard):
            if not live.spans(begin, end):
                continue
            entries, ranges = contents(ref, begin, end)
            deleted += ranges
            for entry in entries:
                sequence = self.ingested(live, entry)
                known = latest.get(entry.key)
                if known is None or known[0] < sequence:
                    latest[entry.key] = sequence, entry.value
        for key in sorted(latest):
            sequence, value = latest[key]
            hidden = any(each.begin <= key < each.end and each.sequence > sequence for each in deleted)
            if value is not None and not hidden:
                yield key, value

    def ingested(self, live: LiveFile, entry: FileEntry) -> int:
        """The sequence number of an entry: an ingested file has one number for all, which only the manifest knows."""
        return (
            entry.sequence or live.last_sequence
            if live.first_sequence == live.last_sequence
            else entry.sequence
        )

    def memory(self, shard: Shard) -> MemoryBackend:
        """A shard of the memory backend, whose one file is read in full."""
        own = tuple(identity(ref) for ref in shard.files)
        with self._lock:
            known = self._memory.get(own)
        if known is None:
            folder = self.cache.folder / "no-such-folder"
            known = MemoryBackend(
                Shard(shard.first, shard.last, shard.backend, shard.files),
                folder,
                lambda ref: self._opened(ref, _same),
                inline_threshold=0,
            )
            with self._lock:
                while len(self._memory) >= 4:
                    self._memory.pop(next(iter(self._memory)))
                self._memory[own] = known
        return known


@contextmanager
def _lacking_none() -> Iterator[None]:
    """Names a file that a shard's record or manifest does not lead to."""
    try:
        yield
    except KeyError as error:
        raise CorruptError(
            f"a shard lacks its file {error.args[0]}: run `stateflow verify` and restore an intact checkpoint"
        ) from None


def _same(path: Path) -> Path:
    path.stat()
    return path


@dataclass(frozen=True)
class ShardFiles:
    """One shard, open for looks at single keys. It has no folder, and nothing to close."""

    files: StateFiles
    shard: Shard

    def get(self, key: bytes) -> bytes | None:
        return next((value for _, value in self.scan(key, key + b"\0")), None)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In key order, from `begin` to `end`, exclusive."""
        return self.files.entries(self.shard, begin, end, self.files.contents)

    def scan_parts(self, begin: bytes, end: bytes, at: int, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Of a scan the entries whose keys have `part` from byte `at` on."""
        found = self.files.entries(
            self.shard, begin, end, lambda ref, begin, end: self.files.contents(ref, begin, end, at, part)
        )
        return (entry for entry in found if entry[0].startswith(part, at))

    def close(self) -> None:
        """Nothing is open."""

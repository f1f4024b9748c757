"""The interface of a state backend: one open shard, a sorted map from bytes to bytes, for the length of one task.

Keys are full keys as `encoding` lays them out (key group, state id, key, namespace, map key). A backend works in a
private directory that it may fill; it never changes a file that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from stateflow.format.records import FileRef, Shard
from stateflow.state.backends.line import Line


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that a snapshot made: to be uploaded from `path`, or to travel in the record as `data`."""

    name: str
    path: Path | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of the shard now: some that it had before, and new ones."""

    kept: tuple[FileRef, ...]
    new: tuple[NewFile, ...]
    entries: int = 0
    compacted_bytes: int = 0
    """How much of the new files compaction wrote (the rest is this batch's flush)."""
    metrics: dict[str, int] = field(default_factory=dict)
    merge: MergeShard | None = None
    """Merges a copy of the shard beside the batches, in a folder that does not exist yet; None: nothing is to be merged."""


class ReadShard(Protocol):
    """An open shard that is only read."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In key order, from `begin` to `end`, exclusive."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class OnePassShard(Protocol):
    """A shard whose scans cost what lies in their range, however little of it is taken: it is gone through once."""

    def scan_parts(self, begin: bytes, end: bytes, at: int, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Of a scan the entries whose keys have `part` from byte `at` on."""
        ...


class Backend(Protocol):
    """Reads see writes at once. A scan runs over the state at its start: it may be modified meanwhile."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """In the order of `keys`; fastest when they are sorted."""
        ...

    @property
    def is_afar(self) -> bool:
        """Whether a look-up may wait for the store. Then the keys of one `expect` or `get_many` come together."""
        ...

    def expect(self, keys: Sequence[bytes]) -> None:
        """These keys may be looked up, one by one. Nothing but speed depends on it."""
        ...

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Many puts and deletes (None), in order."""
        ...

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """From `begin` to `end`, exclusive."""
        ...

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In key order, from `begin` to `end`, exclusive."""
        ...

    def scan_many(self, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
        """For each prefix the entries whose keys begin with it. The prefixes are sorted, and none begins another. Nothing may
        be written meanwhile."""
        ...

    def first(self, begin: bytes, end: bytes) -> bytes | None:
        """The first key from `begin` to `end`, exclusive."""
        ...

    def snapshot(self) -> Snapshot:
        """Makes the shard's files final and ends the use of this instance; `close` must still be called."""
        ...

    def close(self) -> None:
        """Frees everything, including the private directory. Idempotent; safe without a snapshot (the task failed)."""
        ...


Fetch = Callable[[FileRef], Path]
"""A verified local copy of a referenced file, never to be written to."""


class RemoteFiles(Protocol):
    """Files of a shard that this host does not have, and of which a backend may read parts in place of fetching them."""

    @property
    def line(self) -> Line:
        """The line to the store, as measured so far."""
        ...

    def has(self, ref: FileRef) -> bool:
        """Whether it is one of these files."""
        ...

    def read(self, ref: FileRef, begin: int, length: int) -> bytes:
        """Bytes of the file, unverified. CorruptError if it ends before or is missing."""
        ...

    def complete(self, ref: FileRef, path: Path) -> None:
        """The backend has put together all of the file: CorruptError if it is another one than `ref` says."""
        ...


MergeShard = Callable[[Shard, Path, Fetch], Snapshot]


class OpenShard(Protocol):
    """How a backend opens a handle; `shard.files` empty means an empty shard.

    When the physical range is wider than `first..last`, what lies outside is deleted before anything is read.
    A backend that knows no parts of files fetches those of `remote`, too.
    """

    def __call__(
        self, shard: Shard, directory: Path, fetch: Fetch, remote: RemoteFiles | None = None
    ) -> Backend: ...

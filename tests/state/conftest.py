"""A shelf of sealed state files, and shards opened over it, as a task would."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import xxhash

from stateflow.format.records import FileRef, Shard
from stateflow.state.backends.base import Backend, OpenShard, Snapshot
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from tests.state.sealed import kept


class Shelf:
    """Opens shards of one backend in fresh directories and seals their snapshots into read-only files."""

    def __init__(self, root: Path, kind: str, open_shard: OpenShard) -> None:
        self.root = root
        self.kind = kind
        self.open_shard = open_shard
        self.fetched: list[str] = []
        self.uploaded: list[str] = []
        self._numbers = count()
        (root / "files").mkdir(parents=True)

    def empty(self, first: int = 0, last: int = 127) -> Shard:
        return Shard(first, last, self.kind)

    def directory(self) -> Path:
        return self.root / f"open-{next(self._numbers)}"

    def fetch(self, ref: FileRef) -> Path:
        self.fetched.append(ref.name)
        return self.root / "files" / ref.path

    def open(self, shard: Shard | None = None) -> Backend:
        return self.open_shard(shard or self.empty(), self.directory(), self.fetch)

    def keep(self, snapshot: Snapshot) -> tuple[FileRef, ...]:
        refs = kept(snapshot, self.root / "files")
        self.uploaded += [ref.path for ref in refs if ref.path and ref not in snapshot.kept]
        return refs

    def seal(self, backend: Backend, first: int = 0, last: int = 127) -> Shard:
        snapshot = backend.snapshot()
        refs = self.keep(snapshot)
        backend.close()
        return Shard(first, last, self.kind, refs, entries=snapshot.entries)

    def contents(self, shard: Shard) -> dict[bytes, bytes]:
        backend = self.open(shard)
        try:
            return dict(backend.scan(b"\0\0", b"\xff\xff\xff"))
        finally:
            backend.close()

    def checksums(self) -> dict[str, str]:
        return {
            file.name: xxhash.xxh3_64_hexdigest(file.read_bytes()) for file in (self.root / "files").iterdir()
        }


BACKENDS: dict[str, Callable[[], OpenShard]] = {
    "memory": memory_backend,
    "rocksdb": lambda: rocksdb_backend(RocksOptions(write_buffer=MIB)),
    "rocksdb level": lambda: rocksdb_backend(RocksOptions(write_buffer=MIB, compaction="level")),
    "rocksdb large": lambda: rocksdb_backend(RocksOptions(write_buffer=MIB, preset="large")),
}


@pytest.fixture(params=list(BACKENDS))
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return Shelf(tmp_path, request.param.split()[0], BACKENDS[request.param]())


@pytest.fixture
def shelf_of(tmp_path: Path) -> Callable[..., Shelf]:
    """shelf_of(open_shard): a shelf for a backend with options of its own."""
    numbers = count()

    def make(open_shard: OpenShard, kind: str = "rocksdb") -> Shelf:
        return Shelf(tmp_path / f"shelf-{next(numbers)}", kind, open_shard)

    return make

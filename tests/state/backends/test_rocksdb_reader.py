"""A RocksDB shard opened for reading only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from stateflow.errors import CorruptError
from stateflow.format.encoding import group_range, prefix
from stateflow.state.backends.rocksdb import rocksdb_backend, rocksdb_reader
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from tests.state.conftest import Shelf

SMALL = RocksOptions(write_buffer=MIB, inline_threshold=0)
ENTRIES = {
    prefix(group, 1) + bytes([number]): bytes([number]) * 100 for group in range(128) for number in range(20)
}


@pytest.fixture
def shelf(shelf_of: Callable[..., Shelf]) -> Shelf:
    return shelf_of(rocksdb_backend(SMALL))


def test_it_reads_what_the_backend_wrote(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write(ENTRIES.items())
    shard = shelf.seal(backend)
    reader = rocksdb_reader(SMALL)(shard, shelf.directory(), shelf.fetch)
    keys = list(ENTRIES)
    assert [reader.get(key) for key in keys] == list(ENTRIES.values())
    assert list(reader.get_many([*keys, b"\0\0none"])) == [*ENTRIES.values(), None]
    assert list(reader.scan(*group_range(7, 8))) == [(k, v) for k, v in ENTRIES.items() if k[1] in (7, 8)]
    reader.close()
    reader.close()


def test_nothing_is_merged_however_many_runs_there_are(shelf: Shelf) -> None:
    patient = rocksdb_backend(RocksOptions(preset="write-heavy", write_buffer=MIB, inline_threshold=0))
    shelf.open_shard = patient
    shard = shelf.empty()
    for number in range(7):
        backend = shelf.open(shard)
        backend.write((key, bytes([number])) for key in ENTRIES)
        shard = shelf.seal(backend)
    runs = sorted(ref.name for ref in shard.files if ref.name.endswith(".sst"))
    assert len(runs) > SMALL.runs, "the options of the reader would call for a merge"
    directory = shelf.directory()
    reader = rocksdb_reader(SMALL)(shard, directory, shelf.fetch)
    assert set(reader.get_many(list(ENTRIES))) == {b"\x06"}
    assert sorted(path.name for path in directory.glob("*.sst")) == runs
    assert not list(directory.glob("*.log"))
    reader.close()
    assert not directory.exists()


def test_a_physically_wider_shard_is_left_as_it_is(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write(ENTRIES.items())
    shard = msgspec.structs.replace(shelf.seal(backend), first=64, physical_first=0)
    reader = rocksdb_reader(SMALL)(shard, shelf.directory(), shelf.fetch)
    own = {key: value for key, value in ENTRIES.items() if key[1] >= 64}
    assert dict(reader.scan(*group_range(64, 127))) == own
    reader.close()


def test_an_empty_shard_has_nothing(shelf: Shelf) -> None:
    reader = rocksdb_reader(SMALL)(shelf.empty(), shelf.directory(), shelf.fetch)
    assert reader.get(b"x") is None
    reader.close()


def test_a_damaged_file_is_corruption(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write(ENTRIES.items())
    shard = shelf.seal(backend)
    for path in (shelf.root / "files").glob("*.sst"):
        data = bytearray(path.read_bytes())
        data[-20:] = bytes(20)
        path.write_bytes(data)
    directory = shelf.directory()
    with pytest.raises(CorruptError):
        rocksdb_reader(SMALL)(shard, directory, shelf.fetch).get(next(iter(ENTRIES)))
    assert not directory.exists()

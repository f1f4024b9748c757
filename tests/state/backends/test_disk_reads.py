"""Look-ups of state on the disk are spread over threads, and find what look-ups one after the other find."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import CorruptError
from stateflow.format.encoding import prefix
from stateflow.format.records import Shard
from stateflow.state.backends import disk_reads
from stateflow.state.backends.disk_reads import (
    IN_FLIGHT,
    StoredFile,
    bytes_read,
    come_from_disk,
    shares_of,
    worth_sweeping,
)
from stateflow.state.backends.rocksdb import rocksdb_backend, rocksdb_reader
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from tests.refusals.refusal import refused

Make = Callable[..., Any]
COUNT = 20_000
# A block that an earlier test has read must not come from the cache that all shards of a process share.
OPTIONS = RocksOptions(block_cache=MIB, inline_threshold=0)


def key(number: int) -> bytes:
    return prefix(number % 8, 1) + number.to_bytes(8, "big")


def file(name: str, first: int, last: int, size: int, *, level: int = 6, entries: int = 1_000) -> StoredFile:
    return StoredFile(Path(name), key(first * 8), key(last * 8), level, entries, size)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as being on the disk."""
    monkeypatch.setattr(disk_reads, "come_from_disk", lambda rate: True)


@pytest.fixture
def swept(spread: None, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file is read as a whole first."""
    read: list[Path] = []
    sweep = disk_reads._sweep
    monkeypatch.setattr(
        disk_reads, "worth_sweeping", lambda files, keys, rate: sorted(files, key=lambda each: each.first)
    )
    monkeypatch.setattr(disk_reads, "_sweep", lambda path: (sweep(path), read.append(path)))
    return read


def filled(shelf: Any) -> Shard:
    """Even keys, of which later batches deleted and changed some: several files that overlap."""
    shard = None
    batches = (
        [(key(n), os.urandom(90)) for n in range(0, COUNT, 2)],
        [(key(n), None) for n in range(0, COUNT, 6)],
        [(key(n), b"changed") for n in range(0, COUNT, 10)],
    )
    for changes in batches:
        backend = shelf.open(shard)
        backend.write(changes)
        shard = shelf.seal(backend)
    assert isinstance(shard, Shard)
    return shard


@pytest.mark.parametrize(
    ("rate", "threads"),
    [
        (0.0, False),  # all in memory
        (80.0, False),  # neighbours, of which forty share a block that was read ahead
        (8192.0, True),  # a block for each
        (800.0, True),  # a block for one of ten: it costs as much as the ten do in memory
    ],
)
def test_threads_are_for_keys_that_the_disk_is_read_for(rate: float, threads: bool) -> None:
    assert come_from_disk(rate) is threads


@pytest.mark.parametrize("count", [1, 2, IN_FLIGHT, IN_FLIGHT + 1, 1_000, 20_000])
def test_shares_are_all_keys_in_order_and_enough_for_all_threads(count: int) -> None:
    keys = [key(n) for n in range(count)]
    shares = shares_of(keys)
    assert [each for share in shares for each in share] == keys
    assert all(shares)
    assert len(shares) >= min(count, IN_FLIGHT // 2)


@pytest.mark.parametrize(
    ("files", "rate", "chosen"),
    [
        # 100 keys in each, a block read for each: 800 KB.
        ([file("a", 0, 99, 700_000), file("b", 100, 199, 900_000)], 8_000.0, ["a"]),
        # Of keys that share blocks fewer bytes are read.
        ([file("a", 0, 99, 700_000)], 800.0, []),
        # No key is in it.
        ([file("a", 300, 400, 1)], 8_000.0, []),
        # A run with a tenth of the entries has a tenth of the keys: 80 KB.
        (
            [file("big", 0, 99, 700_000, entries=900), file("new", 0, 99, 90_000, level=0, entries=100)],
            8_000.0,
            ["big"],
        ),
        # Two files of level 0 are two runs; two of another level are one, in the order of their keys.
        ([file("x", 0, 99, 500_000, level=0), file("y", 0, 99, 500_000, level=0)], 8_000.0, []),
        ([file("y", 100, 199, 500_000), file("x", 0, 99, 500_000)], 8_000.0, ["x", "y"]),
        ([], 8_000.0, []),
    ],
)
def test_a_file_is_read_as_a_whole_if_its_keys_would_read_as_much(
    files: list[StoredFile], rate: float, chosen: list[str]
) -> None:
    keys = sorted(key(n * 8) for n in range(200))
    assert [str(each.path) for each in worth_sweeping(files, keys, rate)] == chosen


@pytest.mark.parametrize("how", ["spread", "swept"])
@pytest.mark.parametrize("seed", range(5))
def test_spread_look_ups_find_what_single_ones_find(
    how: str, seed: int, shelf_of: Make, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(how)
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    backend = shelf.open(filled(shelf))
    chance = random.Random(seed)
    for n in chance.sample(range(COUNT), 500):
        backend.write([(key(n), b"buffered")])
    for n in chance.sample(range(COUNT), 500):
        backend.write([(key(n), None)])
    for count in (1, 2, 50, 3_000):
        keys = [key(n) for n in chance.sample(range(COUNT + 500), count)]
        if seed % 2:
            keys = sorted(keys)
        assert list(backend.get_many(keys)) == [backend.get(each) for each in keys]
    backend.close()


def test_a_key_may_be_asked_for_twice(spread: None, shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    backend = shelf.open(filled(shelf))
    keys = [key(2), key(4), key(2), key(1), key(4)] * 200
    assert list(backend.get_many(keys)) == [backend.get(each) for each in keys]
    backend.close()


def test_a_reader_spreads_its_look_ups_too(spread: None, shelf_of: Make, tmp_path: Path) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    shard = filled(shelf)
    reader = rocksdb_reader(OPTIONS)(shard, tmp_path / "reader", shelf.fetch)
    keys = sorted(key(n) for n in range(0, COUNT, 7))
    assert list(reader.get_many(keys)) == [reader.get(each) for each in keys]  # type: ignore[attr-defined]
    reader.close()


def test_each_file_is_read_as_a_whole_at_most_once_per_opening(swept: list[Path], shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    backend = shelf.open(filled(shelf))
    keys = sorted(key(n) for n in range(COUNT))
    for _ in range(3):
        backend.get_many(keys)
    assert swept
    assert len(swept) == len(set(swept))
    backend.close()


def test_a_file_that_a_merge_deletes_meanwhile_is_not_missed(
    swept: list[Path], shelf_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    backend = shelf.open(filled(shelf))
    files = backend._disk_reads._files
    gone = file("merged away.sst", 0, COUNT, 1)
    monkeypatch.setattr(backend._disk_reads, "_files", lambda opened: [gone, *files(opened)])
    keys = sorted(key(n) for n in range(0, COUNT, 2))
    assert list(backend.get_many(keys)) == [backend.get(each) for each in keys]
    backend.close()


@pytest.mark.parametrize("how", ["spread", "swept"])
def test_a_damaged_block_that_a_thread_finds_is_reported(
    how: str, shelf_of: Make, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(how)
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    shard = filled(shelf)
    path = shelf.root / "files" / max(shard.files, key=lambda ref: ref.size).path
    body = bytearray(path.read_bytes())
    at = len(body) // 2
    body[at : at + 64] = os.urandom(64)
    path.write_bytes(body)
    backend = shelf.open(shard)
    with refused(CorruptError, ".sst is damaged"):
        backend.get_many(sorted(key(n) for n in range(COUNT)))
    # The shard closes all the same: no thread reads on.
    backend.close()


def test_a_shard_that_is_closed_is_not_read(spread: None, shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    backend = shelf.open(filled(shelf))
    backend.snapshot()
    with pytest.raises(Exception, match="snapshotted or closed"):
        backend.get_many([key(n) for n in range(1_000)])
    backend.close()


def all_threads_read() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512


def test_what_is_not_in_memory_is_read_by_many_threads_and_what_is_by_none(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(OPTIONS))
    shard = filled(shelf)
    for path in (shelf.root / "files").iterdir():
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)
    keys = sorted(key(n) for n in range(2, COUNT, 10))
    backend = shelf.open(shard)
    own, everyone = bytes_read(), all_threads_read()
    cold = list(backend.get_many(keys))
    own, everyone = bytes_read() - own, all_threads_read() - everyone
    backend.close()
    if not everyone:
        pytest.skip("this file system reads from no disk that the kernel counts")
    assert everyone > 3 * own
    backend = shelf.open(shard)
    assert list(backend.get_many(keys)) == cold
    everyone = all_threads_read()
    backend.get_many(keys)
    assert all_threads_read() == everyone
    backend.close()

"""Looking up many keys at once finds what looking up each does, near or far apart, in one state or across several."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stateflow.format.encoding import prefix
from stateflow.format.records import Shard
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import RocksOptions
from tests.state.sealed import kept

OPEN = rocksdb_backend(RocksOptions())
COUNT = 4_000


def full(group: int, state: int, key: int) -> bytes:
    return prefix(group, state) + key.to_bytes(8, "big") + b"\0"


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    """Even keys of two states in four key groups, of which every third was deleted by a later batch."""
    shard = Shard(first=0, last=3, backend="rocksdb")
    keys = [full(g, s, k) for g in range(4) for s in (1, 2) for k in range(0, COUNT, 2)]
    for generation, changes in enumerate(([(k, k[-9:]) for k in keys], [(k, None) for k in keys[::3]])):
        backend = OPEN(shard, tmp_path / f"g{generation}", lambda ref: tmp_path / ref.path)
        backend.write(changes)
        shard = Shard(first=0, last=3, backend="rocksdb", files=kept(backend.snapshot(), tmp_path))
        backend.close()
    return shard


@pytest.mark.slow
@pytest.mark.parametrize("apart", [1, 2, 3, 40, 900])
@pytest.mark.parametrize("states", [(1,), (2,), (1, 2)])
def test_a_batched_look_up_finds_what_single_ones_find(
    shard: Shard, tmp_path: Path, apart: int, states: tuple[int, ...]
) -> None:
    backend = OPEN(shard, tmp_path / "open", lambda ref: tmp_path / ref.path)
    keys = sorted(full(g, s, k) for g in range(4) for s in states for k in range(0, COUNT + 50, apart))
    backend.write([(keys[3], b"changed"), (keys[7], None)])
    assert list(backend.get_many(keys)) == [backend.get(key) for key in keys]
    assert list(backend.get_many(keys)) == [backend.get(key) for key in keys]
    backend.close()


def test_keys_may_come_in_any_order(shard: Shard, tmp_path: Path) -> None:
    backend = OPEN(shard, tmp_path / "open", lambda ref: tmp_path / ref.path)
    keys = [full(g, 1, k) for g in range(4) for k in range(300)]
    random.Random(5).shuffle(keys)
    assert list(backend.get_many(keys)) == [backend.get(key) for key in keys]
    backend.close()


def test_beyond_the_last_entry_there_is_nothing(shard: Shard, tmp_path: Path) -> None:
    backend = OPEN(shard, tmp_path / "open", lambda ref: tmp_path / ref.path)
    assert list(backend.get_many([full(3, 9, k) for k in range(500)])) == [None] * 500
    backend.close()

"""A shard whose large tables are fetched in parts reads what a whole one reads, and only what it needs comes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Cache

from stateflow.errors import CorruptError, UnavailableError
from stateflow.format.encoding import prefix
from stateflow.format.records import FileRef, Shard
from stateflow.state.backends import partial_tables, rocksdb_options
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.line import Line
from stateflow.state.backends.partial_tables import PartialTables
from stateflow.state.backends.rocksdb import RocksBackend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.storage.files import digests, verify
from tests.refusals.refusal import refused

STATES = 3
GROUPS = 4


def key(number: int) -> bytes:
    return prefix(number % GROUPS, number // GROUPS % STATES) + number.to_bytes(8, "big")


class SetLine(Line):
    """One that stays as a test has set it, however busy the machine is."""

    def measured(self, requests: int, size: int, seconds: float) -> None:
        pass

    def probe(self, spent: float) -> int:
        return 0


@dataclass
class Store:
    """Where the files of a shard are, and what was read of them."""

    folder: Path
    line: Line = field(default_factory=lambda: SetLine(1e-4, 1e9))
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    before: Callable[[FileRef, int, int], None] = lambda ref, begin, length: None
    kept: int = 1

    def has(self, ref: FileRef) -> bool:
        return ref.name.endswith(".sst") and ref.size >= self.kept

    def read(self, ref: FileRef, begin: int, length: int) -> bytes:
        self.before(ref, begin, length)
        self.spans.append((ref.name, begin, length))
        with (self.folder / ref.path).open("rb") as file:
            file.seek(begin)
            return file.read(length)

    def complete(self, ref: FileRef, path: Path) -> None:
        self.completed.append(ref.name)
        verify(ref, path)

    @property
    def fetched(self) -> int:
        return sum(length for _, _, length in self.spans)

    def local(self, ref: FileRef) -> Path:
        return self.folder / ref.path


class World:
    """A shard in a store, and what its entries are."""

    def __init__(self, folder: Path, options: RocksOptions) -> None:
        self.folder = folder
        self.options = options
        self.store = Store(folder / "store")
        self.store.folder.mkdir()
        self.shard = Shard(0, 127, "rocksdb")
        self.entries: dict[bytes, bytes] = {}
        self._opened = 0

    def open(self, in_parts: bool = True) -> RocksBackend:
        self._opened += 1
        directory = self.folder / f"open-{self._opened}"
        return RocksBackend(
            self.shard, directory, self.store.local, self.store if in_parts else None, options=self.options
        )

    def write(self, changes: dict[bytes, bytes | None], in_parts: bool = False) -> Snapshot:
        backend = self.open(in_parts)
        backend.write(changes.items())
        return self.take(backend, changes)

    def take(self, backend: RocksBackend, changes: dict[bytes, bytes | None]) -> Snapshot:
        """The batch ends: its new files are in the store."""
        snapshot = backend.snapshot()
        refs = list(snapshot.kept)
        for new in snapshot.new:
            path = f"{self._opened}-{new.name}"
            body = new.data if new.data is not None else Path(str(new.path)).read_bytes()
            (self.store.folder / path).write_bytes(body)
            found = digests(self.store.folder / path)
            refs.append(FileRef(new.name, found.size, found.xxh3, path, sha256=found.sha256))
        backend.close()
        self.shard = Shard(0, 127, "rocksdb", files=tuple(refs), entries=snapshot.entries)
        for name, value in changes.items():
            if value is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = value
        return snapshot

    @property
    def size(self) -> int:
        return sum(ref.size for ref in self.shard.files)

    def between(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((name, value) for name, value in self.entries.items() if begin <= name < end)


def filled(folder: Path, options: RocksOptions, count: int, width: int, runs: int = 1) -> World:
    world = World(folder, options)
    chance = random.Random(1)
    for run in range(runs):
        numbers = range(count) if not run else chance.sample(range(count), count // 5)
        world.write(
            {key(n): None if run and chance.random() < 0.3 else chance.randbytes(width) for n in numbers}
        )
    return world


SHAPES = {
    "one table": (RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 20_000, 100, 1),
    "in parts": (RocksOptions(preset="large", block_cache=MIB, inline_threshold=0), 20_000, 100, 1),
    "several runs": (RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 20_000, 100, 4),
    "runs in parts": (RocksOptions(preset="large", compression="zstd", inline_threshold=0), 20_000, 100, 4),
    "large values": (RocksOptions(preset="small", compression="none", inline_threshold=0), 1_500, 8_000, 3),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    return {name: filled(tmp_path_factory.mktemp("world"), *shape) for name, shape in SHAPES.items()}


@pytest.fixture(params=list(SHAPES))
def world(request: pytest.FixtureRequest, worlds: dict[str, World]) -> World:
    made = worlds[request.param]
    made.store.spans.clear()
    made.store.completed.clear()
    made.store.line = SetLine(1e-5, 1e6)
    made.store.before = lambda ref, begin, length: None
    return made


@pytest.fixture(autouse=True)
def small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of tests are small: their ends are fetched in two requests all the same."""
    monkeypatch.setattr(partial_tables, "TAIL", 4 << 10)


@pytest.fixture(autouse=True)
def empty_block_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that an earlier test has read must not come from the cache that all shards of a process share."""
    monkeypatch.setattr(rocksdb_options, "block_cache", Cache)


def test_keys_are_looked_up_without_the_rest(world: World) -> None:
    backend = world.open()
    keys = [key(n * 97) for n in range(40)] + [key(10**9 + n) for n in range(40)]
    assert backend.get_many(keys) == [world.entries.get(each) for each in keys]
    assert [backend.get(each) for each in keys] == [world.entries.get(each) for each in keys]
    assert not world.store.completed
    assert world.store.fetched < world.size / 2
    backend.close()


def test_keys_that_were_expected_are_looked_up_without_a_request(world: World) -> None:
    backend = world.open()
    assert backend.is_afar
    wanted = random.Random(2).sample(sorted(world.entries), 20)
    backend.expect(wanted)
    asked = len(world.store.spans)
    assert [backend.get(name) for name in wanted] == [world.entries[name] for name in wanted]
    assert len(world.store.spans) == asked
    backend.close()
    whole = world.open(in_parts=False)
    assert not whole.is_afar
    whole.expect(wanted)
    whole.close()


def test_ranges_are_scanned_without_the_rest(world: World) -> None:
    backend = world.open()
    for begin, end in ((key(0), key(40)), (key(13), key(13) + b"\0"), (key(4), key(4)), (b"", key(0))):
        assert list(backend.scan(begin, end)) == world.between(begin, end)
        first = next(iter(world.between(begin, end)), (None,))[0]
        assert backend.first(begin, end) == first
    begins = [key(n * 12)[:11] for n in range(3)]
    assert list(backend.scan_many(begins)) == [
        [entry for entry in world.between(b"", b"\xff") if entry[0].startswith(begin)] for begin in begins
    ]
    assert not world.store.completed
    assert world.store.fetched < world.size / 2
    backend.close()


def test_behind_a_range_that_an_earlier_batch_has_deleted_scans_go_on_without_the_rest(
    tmp_path: Path,
) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 20_000, 100)
    begin, end = key(4_000), key(8_000)
    backend = world.open(in_parts=False)
    backend.delete_range(begin, end)
    gone = dict.fromkeys(name for name, _ in world.between(begin, end))
    world.take(backend, gone)
    world.store.kept = 100_000
    local = [ref for ref in world.shard.files if ref.name.endswith(".sst") and not world.store.has(ref)]
    assert len(gone) > 300
    assert local
    backend = world.open()
    left = world.between(begin, b"\xff")
    assert backend.first(begin, b"\xff") == left[0][0]
    assert list(islice(backend.scan(begin, left[9][0]), 20)) == left[:9]
    assert list(backend.scan_many([begin, left[0][0]])) == [[], left[:1]]
    assert not world.store.completed
    assert world.store.fetched < world.size / 2
    backend.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_deleted_ranges_that_adjoin_are_skipped_without_the_rest(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 20_000, 100)
    cuts = sorted(world.entries)[3_000:5_000:600]
    for number in order:
        backend = world.open(in_parts=False)
        gone = world.between(cuts[number], cuts[number + 1])
        backend.delete_range(cuts[number], cuts[number + 1])
        world.take(backend, {name: None for name, _ in gone})
    world.store.kept = 100_000
    backend = world.open()
    assert list(backend.scan(cuts[0] + b"\0", cuts[0] + b"\1")) == []
    assert backend.first(cuts[1], b"\xff") == world.between(cuts[1], b"\xff")[0][0]
    assert not world.store.completed
    assert world.store.fetched < world.size / 2
    backend.close()


def test_all_entries_are_scanned(world: World) -> None:
    backend = world.open()
    assert list(backend.scan(b"", b"\xff")) == world.between(b"", b"\xff")
    backend.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_in_parts_leaves_what_one_over_whole_tables_leaves(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = filled(
        tmp_path, RocksOptions(preset="small", inline_threshold=0, write_buffer=MIB), 5_000, 100, 3
    )
    world.store.line = SetLine(1e-5, 1e5)
    backend = world.open()
    model = dict(world.entries)
    begun: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
    for _ in range(80):
        some = sorted(key(n) for n in chance.sample(range(6_000), 20))
        kind = chance.randrange(8)
        if kind == 0:
            changes = {each: chance.randbytes(9_000) for each in some}
            backend.write(changes.items())
            model.update(changes)
        elif kind == 1:
            backend.write((key, None) for key in some)
            for each in some:
                model.pop(each, None)
        elif kind == 2:
            backend.delete_range(some[0], some[1])
            model = {name: value for name, value in model.items() if not some[0] <= name < some[1]}
        elif kind == 3:
            assert list(backend.get_many(some)) == [model.get(each) for each in some]
        elif kind == 4:
            wanted = sorted((name, value) for name, value in model.items() if some[0] <= name < some[3])
            assert list(backend.scan(some[0], some[3])) == wanted
        elif kind == 5:
            assert backend.first(some[2], some[9]) == min(
                (name for name in model if some[2] <= name < some[9]), default=None
            )
        elif kind == 6:
            wanted = sorted((name, value) for name, value in model.items() if some[4] <= name < some[8])
            begun.append((backend.scan(some[4], some[8]), wanted))
        else:
            begins = sorted({each[:9] for each in some})
            assert list(backend.scan_many(begins)) == [
                sorted((name, value) for name, value in model.items() if name.startswith(begin))
                for begin in begins
            ]
        for entries, wanted in begun:
            # A scan goes on over the state at its start, whatever was read and written meanwhile.
            count = chance.choice([1, 30])
            assert list(islice(entries, count)) == wanted[:count]
            del wanted[:count]
    assert all(list(entries) == wanted for entries, wanted in begun)
    begun.clear()
    world.take(backend, {})
    world.entries = model
    whole = world.open(in_parts=False)
    assert list(whole.scan(b"", b"\xff")) == sorted(model.items())
    whole.close()


def test_a_shard_that_was_cut_has_its_own_entries_alone(world: World) -> None:
    before = world.shard
    world.shard = msgspec.structs.replace(before, first=1, last=2, physical_first=0, physical_last=127)
    try:
        own = world.between(prefix(1, 0)[:2], prefix(3, 0)[:2])
        backend = world.open()
        assert list(backend.scan(key(0), key(12))) == []
        assert backend.first(key(0), key(12)) is None
        assert list(backend.scan_many([key(0)])) == [[]]
        assert not world.store.completed
        backend.close()
        backend = world.open()
        assert list(backend.scan(b"", b"\xff")) == own
        backend.close()
        world.store.completed.clear()
        backend = world.open()
        keys = sorted(key(n) for n in range(60))
        mine = [each for each in keys if each[:2] in (b"\0\1", b"\0\2")]
        assert list(backend.get_many(keys)) == [
            world.entries.get(each) if each in mine else None for each in keys
        ]
        assert backend.first(b"", b"\xff") == own[0][0]
        backend.write([(key(1), b"new")])
        assert backend.snapshot().metrics["range_deletes"] == 2
        backend.close()
    finally:
        world.shard = before


def test_tables_that_are_not_whole_stay_as_they_were_and_are_not_new(world: World, tmp_path: Path) -> None:
    tables = {ref for ref in world.shard.files if world.store.has(ref)}
    backend = world.open()
    backend.write([(key(3), b"other")])
    snapshot = backend.snapshot()
    backend.close()
    assert tables <= set(snapshot.kept)
    assert not world.store.completed


READS: dict[str, Callable[[Any], list[Any]]] = {
    "get_many": lambda shard: list(shard.get_many([key(n) for n in range(0, 1_000, 7)])),
    "get": lambda shard: [shard.get(key(8))],
    "scan": lambda shard: list(shard.scan(b"", b"\xff")),
    "part of a scan": lambda shard: list(islice(shard.scan(key(0), b"\xff"), 300)),
    "scan_many": lambda shard: list(shard.scan_many([key(0)[:4], key(1)[:4]])),
    "first": lambda shard: [shard.first(key(0), b"\xff")],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_was_not_foreseen_is_fetched_with_all_the_rest(
    world: World, read: Callable[[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartialTables, "need_keys", foresee_nothing)
    monkeypatch.setattr(PartialTables, "need_ranges", foresee_nothing)
    backend = world.open()
    found = read(backend)
    assert sorted(world.store.completed) == sorted(
        ref.name for ref in world.shard.files if world.store.has(ref)
    )
    backend.close()
    whole = world.open(in_parts=False)
    assert found == read(whole)
    whole.close()


def foresee_nothing(parts: PartialTables, wanted: Iterable[object]) -> None:
    list(wanted)


def test_writes_over_tables_of_which_nothing_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", inline_threshold=0), 5_000, 100)
    monkeypatch.setattr(PartialTables, "need_ranges", foresee_nothing)
    world.write({key(4_000): b"new", key(17): None}, in_parts=True)
    whole = world.open(in_parts=False)
    assert list(whole.scan(b"", b"\xff")) == world.between(b"", b"\xff")
    whole.close()


def test_a_damaged_block_is_an_error_and_never_other_entries(tmp_path: Path) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 5_000, 100)
    (table,) = [ref for ref in world.shard.files if ref.name.endswith(".sst")]
    path = world.store.folder / table.path
    body = bytearray(path.read_bytes())
    body[100] ^= 1
    path.write_bytes(body)
    backend = world.open()
    with refused(CorruptError, "checksum"):
        backend.get(min(world.entries))
    backend.close()


def test_a_store_that_fails_in_the_middle_fails_the_read_and_not_the_state(tmp_path: Path) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 5_000, 100)
    world.store.line = SetLine(1e-6, 1e6)
    backend = world.open()
    calls = []

    def fail(ref: FileRef, begin: int, length: int) -> None:
        calls.append(begin)
        if len(calls) > 2:
            raise UnavailableError("the store is away")

    world.store.before = fail
    keys = [key(n * 190) for n in range(20)]
    with refused(UnavailableError, "away"):
        backend.get_many(keys)
    world.store.before = lambda ref, begin, length: None
    assert backend.get_many(keys) == [world.entries.get(each) for each in keys]
    backend.close()


EVERY_READ = READS | {
    "expect": lambda shard: [shard.expect([key(8)])],
    "delete_range": lambda shard: [shard.delete_range(key(0), key(400))],
    "put": lambda shard: [shard.write([(key(8), b"new")]), shard.snapshot()],
}


@pytest.mark.parametrize("read", EVERY_READ.values(), ids=EVERY_READ)
def test_a_full_disk_is_named(
    world: World, read: Callable[[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, body: bytes, begin: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    backend = world.open()
    monkeypatch.setattr(os, "pwrite", full)
    with refused(UnavailableError, "disk of the scratch folder", "is full: free space"):
        read(backend)
    backend.close()


def test_a_scan_goes_on_when_a_look_up_meanwhile_has_brought_what_it_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 5_000, 100)
    names = sorted(world.entries)
    backend = world.open()
    monkeypatch.setattr(PartialTables, "need_ranges", foresee_nothing)
    backend.expect(names[:1])
    entries = backend.scan(b"", b"\xff")
    begun = list(islice(entries, 20))
    backend.get_many(names[:200])
    assert [*begun, *entries] == world.between(b"", b"\xff")
    backend.close()


def test_a_probe_fetches_what_is_missing_and_it_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = world.open()
    asked = len(world.store.spans)
    probes = iter([16 << 10])
    monkeypatch.setattr(SetLine, "probe", lambda line, spent: next(probes, 0))
    wanted = random.Random(3).sample(sorted(world.entries), 5)
    assert list(backend.get_many(sorted(wanted))) == [world.entries[name] for name in sorted(wanted)]
    probe = world.store.spans[asked : asked + 16]
    assert [length for _, _, length in probe] == [1 << 10] * 16
    again = len(world.store.spans)
    assert dict(backend.scan(b"", b"\xff" * 4)) == world.entries
    assert not set(probe) & set(world.store.spans[again:])
    backend.close()


def test_where_whole_tables_pay_they_come_whole_and_checked(world: World) -> None:
    world.store.line = SetLine(1.0, 1e9)
    backend = world.open()
    keys = [key(n) for n in range(0, 1_500, 3)]
    assert backend.get_many(keys) == [world.entries.get(each) for each in keys]
    assert sorted(world.store.completed) == sorted(
        ref.name for ref in world.shard.files if world.store.has(ref)
    )
    backend.close()


def test_a_table_of_an_unknown_form_comes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(tmp_path, RocksOptions(preset="small", block_cache=MIB, inline_threshold=0), 2_000, 100)
    monkeypatch.setattr("stateflow.state.backends.tables.FORMAT", 6)
    backend = world.open()
    assert list(backend.scan(b"", b"\xff")) == world.between(b"", b"\xff")
    assert world.store.completed
    backend.close()


def test_too_many_runs_are_merged_when_all_is_here(tmp_path: Path) -> None:
    options = RocksOptions(preset="small", inline_threshold=0)
    world = filled(tmp_path, options, 2_000, 100)
    world.store.line = SetLine(1e-6, 1e4)
    compacted = []
    for number in range(options.most_runs + 2):
        changes = {key(n): random.Random(n).randbytes(100) for n in range(number, 2_000, 7)}
        compacted.append(world.write(dict(changes), in_parts=True).compacted_bytes)
    assert any(compacted[options.most_runs - 1 :])
    assert not any(compacted[: options.most_runs - 1])
    whole = world.open(in_parts=False)
    assert list(whole.scan(b"", b"\xff")) == world.between(b"", b"\xff")
    whole.close()

"""What only the RocksDB backend does: files, merges, damage, options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.config.options import Options
from stateflow.errors import CorruptError, StateflowError, UnavailableError
from stateflow.format.encoding import group_range, prefix
from stateflow.format.records import Shard
from stateflow.state.backends import rocksdb, rocksdb_options
from stateflow.state.backends.choice import open_backend
from stateflow.state.backends.corruption import translated
from stateflow.state.backends.rocksdb import rocksdb_backend, rocksdb_reader
from stateflow.state.backends.rocksdb_options import MIB, Preset, RocksOptions, block_cache, reads_in_parts
from stateflow.storage.files import inline
from tests.refusals.refusal import refused

Make = Callable[..., Any]


def key(number: int) -> bytes:
    return prefix(number % 8, 1) + number.to_bytes(8, "big")


def filled(shelf: Any, count: int, size: int = 60) -> Shard:
    backend = shelf.open()
    backend.write((key(n), os.urandom(size)) for n in range(count))
    sealed: Shard = shelf.seal(backend)
    return sealed


def test_only_new_files_are_uploaded(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    backend = shelf.open(base)
    backend.write((key(n), b"new") for n in range(0, 20_000, 100))
    snapshot = backend.snapshot()
    kept = {ref.name for ref in snapshot.kept}
    assert kept == {ref.name for ref in base.files if ref.name.endswith(".sst")}
    assert kept.isdisjoint(file.name for file in snapshot.new)
    backend.close()


def test_small_read_only_files_travel_in_the_record(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    by_name = {ref.name.split("-")[0]: ref for ref in base.files}
    assert by_name["CURRENT"].data is not None
    assert by_name["MANIFEST"].data is not None
    assert all(ref.data is None for ref in base.files if ref.size > 8 << 10)


def test_a_state_that_outgrows_the_threshold_moves_to_files(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(RocksOptions(inline_threshold=8 << 10)))
    small = filled(shelf, 20)
    assert not shelf.uploaded
    backend = shelf.open(small)
    backend.write((key(n), os.urandom(60)) for n in range(5000))
    large = shelf.seal(backend)
    assert shelf.uploaded
    assert len(shelf.contents(large)) == 5000


def test_names_of_files_are_never_given_twice_along_a_line(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    shard = shelf.empty()
    seen: dict[str, str] = {}
    for generation in range(12):
        backend = shelf.open(shard)
        backend.write((key(n), os.urandom(40)) for n in range(generation, 4000, 3))
        shard = shelf.seal(backend)
        for ref in shard.files:
            if ref.name.endswith(".sst"):
                assert seen.setdefault(ref.name, ref.xxh3) == ref.xxh3


def test_merges_bound_the_number_of_runs(shelf_of: Make) -> None:
    for options in (RocksOptions(), RocksOptions(preset="write-heavy"), RocksOptions(compaction="level")):
        shelf = shelf_of(rocksdb_backend(options))
        shard = filled(shelf, 20_000)
        most = 0
        for generation in range(20):
            backend = shelf.open(shard)
            backend.write((key(n), os.urandom(60)) for n in range(generation, 20_000, 50))
            shard = shelf.seal(backend)
            most = max(most, sum(ref.name.endswith(".sst") for ref in shard.files))
        assert most <= options.runs + 2
        assert shard.bytes < 3 * 20_000 * 80


@pytest.mark.slow
def test_uploads_stay_below_ten_times_the_changes(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    shard, total = filled(shelf, 50_000), 0
    changed = 0
    for generation in range(100):
        backend = shelf.open(shard)
        changes = [(key((n * 7919 + generation * 31) % 50_000), os.urandom(60)) for n in range(500)]
        changed += sum(len(name) + len(value) for name, value in changes)
        backend.write(changes)
        snapshot = backend.snapshot()
        total += sum(len(f.data) if f.data is not None else f.path.stat().st_size for f in snapshot.new)
        shard = Shard(0, 127, "rocksdb", shelf.keep(snapshot))
        backend.close()
    assert total < 10 * changed


def test_a_snapshot_tells_merged_bytes_from_the_batch_s_own(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    shard, flushed, merged = filled(shelf, 20_000), [], []
    for generation in range(6):
        backend = shelf.open(shard)
        backend.write((key(n), os.urandom(60)) for n in range(generation, 20_000, 20))
        snapshot = backend.snapshot()
        flushed.append(snapshot.metrics["flushed_bytes"])
        merged.append(snapshot.compacted_bytes)
        shard = Shard(0, 127, "rocksdb", shelf.keep(snapshot))
        backend.close()
    assert all(60_000 < own < 120_000 for own in flushed)
    assert merged[0] == 0
    assert max(merged) > 100_000


def test_levels_stop_merging_beyond_the_budget(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend(RocksOptions(compaction="level", compaction_budget=0)))
    shard = filled(shelf, 5000)
    for generation in range(10):
        backend = shelf.open(shard)
        backend.write((key(n), b"%d" % generation) for n in range(generation, 5000, 7))
        shard = shelf.seal(backend)
    assert len(shelf.contents(shard)) == 5000


def test_small_ranges_leave_no_range_tombstones(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    backend = shelf.open(filled(shelf, 5000))
    for number in range(0, 800, 8):
        backend.delete_range(key(number), key(number) + b"\xff")
    snapshot = backend.snapshot()
    assert snapshot.metrics["range_deletes"] == 0
    backend.close()


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("read", ["get", "get_many", "scan"])
def test_a_flipped_bit_is_reported_and_names_the_file(shelf_of: Make, where: float, read: str) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    ref = max(base.files, key=lambda file: file.size)
    path = shelf.root / "files" / ref.path
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 0x10
    path.unlink()
    path.write_bytes(data)
    keys = [key(number) for number in range(20_000)]

    def read_all() -> None:
        backend = shelf.open(base)
        try:
            if read == "get":
                for name in keys:
                    backend.get(name)
            elif read == "get_many":
                backend.get_many(keys)
            else:
                list(backend.scan(b"\0\0", b"\xff"))
        finally:
            backend.close()

    with refused(CorruptError, f"{ref.name}", "stateflow verify"):
        read_all()


def test_a_missing_file_is_named(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    ref = max(base.files, key=lambda file: file.size)
    lacking = msgspec.structs.replace(base, files=tuple(r for r in base.files if r is not ref))
    with pytest.raises(CorruptError, match=ref.name):
        shelf.contents(lacking)


def test_an_opening_that_fails_leaves_no_directory(shelf_of: Make, tmp_path: Path) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)

    def unreachable(ref: Any) -> Path:
        raise UnavailableError("the store is away")

    directory = tmp_path / "private"
    with refused(UnavailableError, "the store is away"):
        shelf.open_shard(base, directory, unreachable)
    assert not directory.exists()


@pytest.mark.parametrize("open_shard", [rocksdb_backend, rocksdb_reader])
@pytest.mark.parametrize(
    "name", ["rocksdict-config.json", "../x", "ingest-0.sst", "a/000001.sst", "LOCK", "."]
)
def test_no_file_but_a_database_s_own_is_laid_out(
    shelf_of: Make, tmp_path: Path, name: str, open_shard: Any
) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 100)
    alien = msgspec.structs.replace(base, files=(inline(name, b"mine"), *base.files))
    directory = tmp_path / "private"
    with refused(CorruptError, "names a file", "none of a database's"):
        open_shard()(alien, directory, shelf.fetch)
    assert not directory.exists()
    assert not (tmp_path / "x").exists()


def test_a_name_that_comes_twice_does_not_reach_into_the_file_that_has_it(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    table = next(ref for ref in base.files if ref.name.endswith(".sst"))
    before = shelf.checksums()
    for second in (inline(table.name, b"mine"), msgspec.structs.replace(table, path=base.files[-1].path)):
        with refused(CorruptError, f"'{table.name}'", "or names it twice"):
            shelf.open(msgspec.structs.replace(base, files=(*base.files, second)))
    assert shelf.checksums() == before


def test_files_are_copied_where_they_cannot_be_linked(
    shelf_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 5000)

    def other_device(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)
    assert len(shelf.contents(base)) == 5000


TEXTS: list[tuple[str, type[StateflowError], str]] = [
    (
        "IO error: No space left on device: While appending to file: /s/000012.sst",
        UnavailableError,
        "/scratch is full",
    ),
    ("IO error: Disk quota exceeded: /s/LOG", UnavailableError, "/scratch is full"),
    (
        "Corruption: block checksum mismatch: stored = 1, in /s/000012.sst offset 0",
        CorruptError,
        "file 000012.sst is",
    ),
    (
        "IO error: No such file or directory: While open: /s/000031.sst: No",
        CorruptError,
        "file 000031.sst is",
    ),
    ("Corruption: CURRENT file does not end with newline", CorruptError, "file CURRENT is"),
    ("Corruption: in MANIFEST-000005 x", CorruptError, "file MANIFEST-000005 is"),
    ("Corruption: something", CorruptError, "a file is"),
    ("Busy: try again", UnavailableError, "a retry may help"),
]


@pytest.mark.parametrize(("text", "kind", "says"), TEXTS)
def test_what_rocksdb_says_becomes_an_error_with_a_next_step(
    text: str, kind: type[StateflowError], says: str
) -> None:
    error = translated(Exception(text), Path("/scratch"))
    assert type(error) is kind
    assert says in str(error)


@pytest.mark.parametrize("compression", ["lz4", "zstd", "snappy", "none"])
def test_every_compression_is_read_by_every_other(shelf_of: Make, compression: Any) -> None:
    shelf = shelf_of(rocksdb_backend(RocksOptions(compression=compression)))
    base = filled(shelf, 2000)
    shelf.open_shard = rocksdb_backend(RocksOptions(preset="large", compaction="level"))
    assert len(shelf.contents(base)) == 2000


def test_blocks_stay_cached_between_openings(shelf_of: Make) -> None:
    assert block_cache(MIB) is block_cache(2 * MIB)
    shelf = shelf_of(rocksdb_backend())
    base = filled(shelf, 20_000)
    backend = shelf.open(base)
    backend.get_many([key(n) for n in range(20_000)])
    backend.close()
    used = block_cache(MIB).get_usage()
    assert used > 500_000
    backend = shelf.open(base)
    backend.get_many([key(n) for n in range(20_000)])
    backend.close()
    assert block_cache(MIB).get_usage() < used * 1.2


def test_a_run_that_configures_nothing_has_the_options_that_the_backend_was_measured_with() -> None:
    assert open_backend(Options()).rocks == RocksOptions()


@pytest.mark.parametrize(
    ("size", "count", "lists"), [(10, 3000, [16, 128, 1024, 1832]), (1 << 20, 30, [16, *[3] * 4, 2])]
)
def test_a_scan_reads_ahead_few_entries_where_they_are_large(
    shelf_of: Make, monkeypatch: pytest.MonkeyPatch, size: int, count: int, lists: list[int]
) -> None:
    shelf = shelf_of(rocksdb_backend())
    backend = shelf.open(filled(shelf, count, size))
    seen, made = [], rocksdb.swept

    def noted(*arguments: Any) -> Any:
        for chunk in made(*arguments):
            seen.append(len(chunk))
            yield chunk

    monkeypatch.setattr(rocksdb, "swept", noted)
    assert len(list(backend.scan(*group_range(0, 100)))) == count
    assert seen == lists


def read_only(shelf: Any, shard: Shard, begin: bytes, end: bytes) -> dict[bytes, bytes]:
    reader = rocksdb_reader()(shard, shelf.directory(), shelf.fetch)
    try:
        return dict(reader.scan(begin, end))
    finally:
        reader.close()


def test_a_reader_scans_what_a_writer_does(shelf_of: Make) -> None:
    shelf = shelf_of(rocksdb_backend())
    shard = filled(shelf, 30_000)
    everything = shelf.contents(shard)
    assert read_only(shelf, shard, b"\0\0", b"\xff\xff\xff") == everything
    first, after = prefix(3, 1), prefix(5, 0)
    some = {k: v for k, v in everything.items() if first <= k < after}
    assert some
    assert read_only(shelf, shard, first, after) == some
    assert read_only(shelf, shard, prefix(100, 1), prefix(101, 1)) == {}
    assert read_only(shelf, shelf.empty(), first, after) == {}


@pytest.mark.parametrize("where", [0.1, 0.5, 0.7])
def test_a_reader_notices_a_damaged_block_in_the_middle_of_a_scan(shelf_of: Make, where: float) -> None:
    """The fast scan ends at such a block as if that were all there is."""
    shelf = shelf_of(rocksdb_backend())
    shard = filled(shelf, 30_000)  # never read before: a block in the cache would be taken from there
    path = shelf.root / "files" / max(shard.files, key=lambda file: file.size).path
    body = bytearray(path.read_bytes())
    at = int(len(body) * where)
    body[at : at + 64] = os.urandom(64)
    path.write_bytes(body)
    with pytest.raises(CorruptError):
        read_only(shelf, shard, b"\0\0", b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("preset", "stored", "in_parts"),
    [
        ("auto", 0, False),
        ("auto", (1 << 30) - 1, False),
        ("auto", 1 << 30, True),
        ("small", 1 << 40, False),
        ("write-heavy", 1 << 40, False),
        ("large", 0, True),
    ],
)
def test_large_shards_read_their_indexes_in_parts_unless_told_otherwise(
    preset: Preset, stored: int, in_parts: bool
) -> None:
    assert reads_in_parts(preset, stored) is in_parts


def test_a_shard_that_becomes_large_reads_the_files_from_when_it_was_small(
    shelf_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the other way round: a bulk delete makes a shard small again."""
    shelf = shelf_of(rocksdb_backend(RocksOptions(inline_threshold=0)))
    shard = filled(shelf, 20_000)
    for limit, value in ((0, b"large"), (1 << 40, b"small again")):
        monkeypatch.setattr(rocksdb_options, "_LARGE", limit)
        backend = shelf.open(shard)
        written = next(Path(backend._directory).glob("OPTIONS-*")).read_text()
        assert ("partition_filters=true" in written) == (limit == 0)
        backend.write((key(n), value) for n in range(0, 20_000, 100))
        shard = shelf.seal(backend)
    values = shelf.contents(shard)
    assert len(values) == 20_000
    assert {values[key(n)] for n in range(0, 20_000, 100)} == {b"small again"}

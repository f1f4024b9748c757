"""Files of RocksDB read without it: the same entries, deletions included, and every damage noticed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import Rdict, SstFileWriter

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.reading.files.manifest import files_remembered, live_files
from stateflow.reading.files.sst import SstFile
from stateflow.state.backends.rocksdb_options import Compression, Preset, RocksOptions, database_options
from tests.refusals.refusal import refused

Written = dict[bytes, bytes | None]


def some(count: int = 3000) -> Written:
    rng = random.Random(count)
    return {
        rng.randbytes(rng.choice((9, 13, 20))): None
        if rng.random() < 0.3
        else rng.randbytes(rng.randrange(90))
        for _ in range(count)
    }


def write(path: Path, written: Written, options: RocksOptions | None = None) -> None:
    writer = SstFileWriter(database_options(options or RocksOptions(), 1 << 20))
    writer.open(str(path))
    for key in sorted(written):
        value = written[key]
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    writer.finish()


@pytest.mark.parametrize("compression", ["lz4", "zstd", "snappy", "none"])
@pytest.mark.parametrize("preset", ["small", "large"])
def test_a_file_says_what_was_written_deletions_included(
    tmp_path: Path, compression: Compression, preset: Preset
) -> None:
    written = some()
    write(tmp_path / "x.sst", written, RocksOptions(preset=preset, compression=compression))
    file = SstFile.at(tmp_path / "x.sst", "x.sst")
    assert file.count == len(written)
    assert [(entry.key, entry.value) for entry in file.entries()] == sorted(written.items())
    for key in list(written)[:200]:
        assert [entry.value for entry in file.entries(key, key + b"\0")] == [written[key]]
    assert list(file.entries(b"\x80", b"\x80")) == []
    some_keys = [entry.key for entry in file.entries(b"\x20", b"\x60")]
    assert some_keys == [key for key in sorted(written) if b"\x20" <= key < b"\x60"]


@pytest.mark.parametrize("merged", [False, True])
def test_the_files_of_a_database_together_say_what_it_holds(tmp_path: Path, merged: bool) -> None:
    written = some()
    options = database_options(RocksOptions(), 1 << 20)
    database = Rdict(str(tmp_path / "db"), options)
    for part in range(3):
        path = tmp_path / f"{part}.sst"
        write(path, dict.fromkeys(sorted(written)[part::2], None if part == 2 else b"v%d" % part))
        database.ingest_external_file([str(path)])
    database.delete_range(b"\x10", b"\x20")
    database.flush()
    if merged:
        database.compact_range(None, None)
    held = dict(database.items())
    database.close()
    name = (tmp_path / "db" / "CURRENT").read_text().strip()
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    ranges = []
    for live in live_files((tmp_path / "db" / name).read_bytes(), name):
        file = SstFile.at(tmp_path / "db" / live.name, live.name)
        ranges += file.deleted_ranges()
        for entry in file.entries():
            assert live.smallest <= entry.key <= live.largest
            sequence = live.last_sequence if file.ingested else entry.sequence
            latest[entry.key] = max(
                latest.get(entry.key, (-1, None)), (sequence, entry.value), key=lambda e: e[0]
            )
    seen = {
        key: value
        for key, (sequence, value) in latest.items()
        if value is not None and not any(r.begin <= key < r.end and r.sequence > sequence for r in ranges)
    }
    assert seen == held


def test_a_manifest_remembers_the_bounds_of_files_that_are_gone(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "db"), database_options(RocksOptions(), 1 << 20))
    for part in range(2):
        path = tmp_path / f"{part}.sst"
        write(path, {b"%d" % part: b"v", b"7": b"v"})
        database.ingest_external_file([str(path)])
    database.delete_range(b"0", b"7")
    database.flush()
    database.compact_range(None, None)
    database.close()
    name = (tmp_path / "db" / "CURRENT").read_text().strip()
    manifest = (tmp_path / "db" / name).read_bytes()
    [live] = live_files(manifest, name)
    assert live.smallest == b"7"
    assert {file.smallest for file in files_remembered(manifest, name)} == {b"0", b"1", b"7"}


def test_no_byte_of_a_file_changes_unnoticed(tmp_path: Path) -> None:
    write(tmp_path / "x.sst", some(300))
    sound = (tmp_path / "x.sst").read_bytes()
    expected = list(SstFile(sound, "x.sst").entries())
    unnoticed = []
    rng = random.Random(1)
    for at in rng.sample(range(len(sound)), 400):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        with suppress(CorruptError, IncompatibleError):
            if list(SstFile(bytes(damaged), "x.sst").entries()) != expected:
                unnoticed.append(at)
    assert unnoticed == []


@pytest.mark.parametrize("size", [0, 1, 52, 53, 500])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, size: int) -> None:
    write(tmp_path / "x.sst", some(300))
    (tmp_path / "x.sst").write_bytes((tmp_path / "x.sst").read_bytes()[:size])
    with refused(CorruptError, "x.sst is damaged", "run `stateflow verify`"):
        SstFile.at(tmp_path / "x.sst", "x.sst")


def test_a_manifest_that_is_damaged_is_named() -> None:
    cut: Sequence[bytes] = (b"\0" * 4 + b"\xff\xff\x01", b"\0" * 4 + b"\x01\0\x01\x7f", b"\1" * 60)
    for manifest in cut:
        with refused(CorruptError, "MANIFEST-000005 is damaged"):
            live_files(manifest, "MANIFEST-000005")

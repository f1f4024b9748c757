"""The same files make the same archive, and an archive appears whole or not at all."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from stateflow.errors import StateflowError
from stateflow.packaging.archive import ArchiveContent, archive_path, read_content, write_archive
from stateflow.packaging.entries import ArchiveEntry, file_entry
from stateflow.pipelines.code.own_modules import files_below
from tests.refusals.refusal import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    (made / "b" / "__pycache__").mkdir(parents=True)
    (made / "a.py").write_text("x = 1\n")
    (made / "b" / "run").write_text("#!/bin/sh\n")
    (made / "b" / "run").chmod(0o700)
    (made / "b" / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    (made / "b" / "c.pyc").write_bytes(b"compiled")
    return made


def content(folder: Path) -> ArchiveContent:
    return read_content(file_entry(path.relative_to(folder).as_posix(), path) for path in files_below(folder))


def test_two_archives_of_the_same_content_are_the_same_bytes_whenever_and_by_whom(
    folder: Path, tmp_path: Path
) -> None:
    first = write_archive(tmp_path / "1.tar.gz", content(folder))
    os.utime(folder / "a.py", (1, 1))
    (folder / "b" / "run").chmod(0o755)
    second = write_archive(tmp_path / "2.tar.gz", content(folder))
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.read_bytes()[4:8] == bytes(4), "gzip notes the time of day"
    assert (first.sha256, first.fingerprint) == (second.sha256, second.fingerprint)


def test_it_unpacks_to_the_files_with_their_permission_to_run_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    write_archive(tmp_path / "1.tar.gz", content(folder))
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        assert {m.name: (m.mode, m.mtime, m.uid, m.uname) for m in tar.getmembers()} == {
            "a.py": (0o644, 0, 0, ""),
            "b/run": (0o755, 0, 0, ""),
        }
        tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out" / "a.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("change", ["bytes", "name", "mode"])
def test_other_content_has_another_name(folder: Path, change: str) -> None:
    before = archive_path(folder, "environment", content(folder))
    match change:
        case "bytes":
            (folder / "a.py").write_text("x = 2\n")
        case "name":
            (folder / "a.py").rename(folder / "d.py")
        case _:
            (folder / "b" / "run").chmod(0o644)
    assert archive_path(folder, "environment", content(folder)) != before


def test_one_that_is_there_is_kept(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "1.tar.gz"
    made = write_archive(path, content(folder))
    written = path.stat().st_mtime_ns
    again = write_archive(path, content(folder), known={made.sha256})
    assert (made.made, again.made, path.stat().st_mtime_ns) == (True, False, written)
    assert again.sha256 == made.sha256


def test_one_that_is_not_as_its_manifest_says_is_written_anew(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "1.tar.gz"
    made = write_archive(path, content(folder))
    for damaged in (made.path.read_bytes()[:100], b"", b"x" * made.size):
        path.write_bytes(damaged)
        again = write_archive(path, content(folder), known={made.sha256})
        assert (again.made, again.sha256) == (True, made.sha256)


def test_an_archive_is_on_disk_before_it_has_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "dist" / "1.tar.gz", []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    made = write_archive(path, content(folder))
    assert synced[0] == (made.size, False)
    assert synced[1][1], "the folder, which has the name"


def test_an_archive_that_could_not_be_finished_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    looked = content(folder)
    (folder / "b" / "run").unlink()
    target = tmp_path / "dist" / "1.tar.gz"
    with pytest.raises(FileNotFoundError):
        write_archive(target, looked)
    assert list(target.parent.iterdir()) == []


def test_a_file_that_is_saved_while_it_is_packed_is_named_and_what_was_there_stays(
    folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dist" / "1.tar.gz"
    looked = content(folder)
    there = write_archive(target, looked).path.read_bytes()
    (folder / "a.py").write_text("x = 2\n")
    with refused(StateflowError, "a.py was changed", "package again"):
        write_archive(target, looked)
    assert [each.read_bytes() for each in target.parent.iterdir()] == [there]


def test_the_order_in_which_files_are_found_does_not_matter() -> None:
    entries = [ArchiveEntry(name, name.encode()) for name in ("b", "a", "c/d")]
    assert read_content(entries).fingerprint == read_content(reversed(entries)).fingerprint


def test_of_two_files_of_one_name_the_first_counts() -> None:
    looked = read_content([ArchiveEntry("a", b"first"), ArchiveEntry("a", b"second")])
    assert [entry.read() for entry in looked.entries] == [b"first"]

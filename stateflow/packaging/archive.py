"""Reproducible archives: the same content always makes the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from stateflow.errors import StateflowError
from stateflow.packaging.entries import ArchiveEntry
from stateflow.packaging.native import Native, native
from stateflow.storage.whole_files import whole_file

LEVEL = 2
"""A higher level takes four times as long and makes native libraries at most a tenth smaller."""
_SHORT = 12


@dataclass(frozen=True, slots=True)
class ArchiveContent:
    """The files of an archive, read once to know their size and fingerprint."""

    entries: tuple[ArchiveEntry, ...]
    marks: tuple[str, ...]
    """Name, mode and hash of the bytes of each file."""
    fingerprint: str
    """A hash of names, modes and bytes, but not of the compression."""
    size: int
    natives: tuple[tuple[str, Native], ...]

    @property
    def short(self) -> str:
        return self.fingerprint[:_SHORT]


@dataclass(frozen=True, slots=True)
class Archive:
    path: Path
    size: int
    sha256: str
    fingerprint: str
    files: int
    unpacked: int
    made: bool
    """False when an archive of this content was there already, and is as its manifest says."""


def read_content(
    entries: Iterable[ArchiveEntry], advance: Callable[[int, int], object] = lambda done, total: None
) -> ArchiveContent:
    """Reads every file. If two entries have one name, the first one counts."""
    named: dict[str, ArchiveEntry] = {}
    for entry in entries:
        named.setdefault(entry.name, entry)
    ordered = tuple(named[name] for name in sorted(named))
    total, done = sum(entry.size for entry in ordered), 0
    marks, natives = [], []
    for entry in ordered:
        data = entry.read()
        marks.append(_mark(entry, data))
        if (library := native(data)) is not None:
            natives.append((entry.name, library))
        done += len(data)
        advance(done, total)
    fingerprint = hashlib.sha256("".join(marks).encode()).hexdigest()
    return ArchiveContent(ordered, tuple(marks), fingerprint, done, tuple(natives))


def _mark(entry: ArchiveEntry, data: bytes) -> str:
    return f"{entry.name}\0{entry.executable:d}\0{hashlib.sha256(data).hexdigest()}\n"


def archive_path(folder: Path, stem: str, content: ArchiveContent) -> Path:
    """The name contains the fingerprint, so that a host that caches archives by name never uses an older one."""
    return folder / f"{stem}-{content.short}.tar.gz"


def write_archive(
    path: Path,
    content: ArchiveContent,
    advance: Callable[[int, int], object] = lambda done, total: None,
    *,
    known: Collection[str] = (),
) -> Archive:
    """Writes the whole archive or nothing. StateflowError if a file is no longer as it was read: the name would promise other content.

    An archive that is there stays if its checksum is one of `known`. Else nobody knows what is in it: it may be cut off.
    """
    if path.is_file():
        there = _archive(path, content, made=False)
        if there.sha256 in known:
            return there
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(path) as file,
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _write(tar, content, advance)
    return _archive(path, content, made=True)


def _write(tar: tarfile.TarFile, content: ArchiveContent, advance: Callable[[int, int], object]) -> None:
    done = 0
    for entry, mark in zip(content.entries, content.marks, strict=True):
        data = entry.read()
        if _mark(entry, data) != mark:
            raise StateflowError(f"{entry.name} was changed while it was being packed: package again")
        member = tarfile.TarInfo(entry.name)
        member.size = len(data)
        member.mode = 0o755 if entry.executable else 0o644
        # No time and no owner: they are not part of the content.
        member.mtime = 0
        tar.addfile(member, io.BytesIO(data))
        done += len(data)
        advance(done, content.size)


def _archive(path: Path, content: ArchiveContent, *, made: bool) -> Archive:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return Archive(
        path, path.stat().st_size, checksum, content.fingerprint, len(content.entries), content.size, made
    )

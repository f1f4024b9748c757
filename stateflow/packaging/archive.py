"""Reproducible archives: the same content always makes the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    digest = hashlib.sha256()
    natives = []
    for entry in ordered:
        data = entry.read()
        digest.update(f"{entry.name}\0{entry.executable:d}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        if (library := native(data)) is not None:
            natives.append((entry.name, library))
        done += len(data)
        advance(done, total)
    return ArchiveContent(ordered, digest.hexdigest(), done, tuple(natives))


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
    """Writes the whole archive or nothing.

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
        _write(tar, content.entries, content.size, advance)
    return _archive(path, content, made=True)


def _write(
    tar: tarfile.TarFile, entries: Sequence[ArchiveEntry], total: int, advance: Callable[[int, int], object]
) -> None:
    done = 0
    for entry in entries:
        data = entry.read()
        member = tarfile.TarInfo(entry.name)
        member.size = len(data)
        member.mode = 0o755 if entry.executable else 0o644
        # No time and no owner: they are not part of the content.
        member.mtime = 0
        tar.addfile(member, io.BytesIO(data))
        done += len(data)
        advance(done, total)


def _archive(path: Path, content: ArchiveContent, *, made: bool) -> Archive:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return Archive(
        path, path.stat().st_size, checksum, content.fingerprint, len(content.entries), content.size, made
    )

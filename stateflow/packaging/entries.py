"""The files that go into an archive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file and its name in the archive. Its content is a file on disk, or bytes."""

    name: str
    source: Path | bytes
    executable: bool = False

    def read(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @property
    def regular(self) -> bool:
        """False for a link into nothing, as an editor's lock is one, and for what would be waited for, such as a pipe."""
        return isinstance(self.source, bytes) or self.source.is_file()

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


def file_entry(name: str, path: Path) -> ArchiveEntry:
    return ArchiveEntry(name, path, executable=os.access(path, os.X_OK))

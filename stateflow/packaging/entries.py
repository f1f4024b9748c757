"""The files that go into an archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NEVER = frozenset(("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A file and its name in the archive. Its content is a file on disk, or bytes."""

    name: str
    source: Path | bytes
    executable: bool = False

    def read(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


def file_entry(name: str, path: Path) -> Entry:
    return Entry(name, path, executable=os.access(path, os.X_OK))


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder, in a fixed order, without those of compilers, checkers and version control."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NEVER)
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                yield Path(here) / name

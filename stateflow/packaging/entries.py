"""Files on their way into an archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NEVER = frozenset(("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A file under its name in the archive: one of the disk, or bytes made here."""

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


def walked(folder: Path) -> Iterator[Path]:
    """Every file below a folder but what compilers, checkers and version control keep there, in a fixed order."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NEVER)
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                yield Path(here) / name

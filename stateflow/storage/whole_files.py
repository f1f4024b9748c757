"""Files that appear whole or not at all, also when the machine stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place when it is on disk. If that fails, what was there stays. Of several writers at once each
    writes a file of its own, and the last one to end stays."""
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            # Else the name could be on disk before the bytes, and a machine that stops leaves a file of half its length.
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(folder)
    finally:
        os.close(folder)

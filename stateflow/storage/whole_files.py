"""Files that appear whole or not at all, also when the machine stops."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place when it is on disk. If that fails, what was there stays. Of several writers at once each
    writes a file of its own, and the last one to end stays. What killed ones have left goes with the next."""
    _sweep(path)
    with _locked_part(path) as file:
        part = Path(file.name)
        try:
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


def _locked_part(path: Path) -> BinaryIO:
    """Its writer's own, locked while it is open: the kernel lets the lock go with the process, in every container."""
    while True:
        part = path.with_name(f".{path.name}.{uuid4().hex}.part")
        file = part.open("xb")
        with suppress(
            OSError
        ):  # some file systems have no locks, and there nobody takes it for one that was left
            fcntl.flock(file, fcntl.LOCK_EX)
        if part.exists():
            return file
        file.close()  # swept before it was locked


def _sweep(path: Path) -> None:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.part")
    with suppress(OSError):  # who may not list the folder may still write to it
        for part in [each for each in path.parent.iterdir() if name.fullmatch(each.name)]:
            with suppress(OSError), part.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()

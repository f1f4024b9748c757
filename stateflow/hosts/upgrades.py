"""Whether what a host has imported is still what is installed."""

from __future__ import annotations

import errno
import os
import site
from pathlib import Path


def installed() -> tuple[object, ...]:
    """A mark that changes when a package is installed, upgraded or removed, and when a file of this library changes.

    OSError when no file descriptor is left to look with.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    marks: list[object] = [_changed(folder) for folder in folders]
    root = Path(__file__).resolve().parents[1]
    for folder, below, files in os.walk(root, onerror=_raise_if_none_is_left):
        below[:] = [name for name in below if name != "__pycache__"]
        marks += [(name, _changed(os.path.join(folder, name))) for name in files if name.endswith(".py")]  # noqa: PTH118
    return tuple(marks)


def _raise_if_none_is_left(error: OSError) -> None:
    """A folder that cannot be listed for another reason is one that has changed."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  hundreds of files before each run
    except OSError:
        return 0

"""Folders for this user alone, whatever the umask says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes the folder and those above it that are missing, each with mode 0700. One that exists keeps its mode.

    `Path.mkdir(parents=True, mode=...)` gives the mode to the last one only: whoever may write to one above can exchange it.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            each.mkdir(mode=0o700)

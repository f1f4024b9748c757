"""Subfolders of a folder of files: Spark reads none of them without a word, but those that are called like a column's value."""

from __future__ import annotations

import os
from pathlib import Path

from stateflow.pipelines.files import Files
from stateflow.storage.roots import local_folder

_PATTERN = frozenset("*?[{")
"""What makes a path stand for several folders."""


def folder_of(path: str) -> Path | None:
    """The local folder that a path names; None for a pattern and for what is no local path."""
    return None if _PATTERN & set(path) else local_folder(path)


def unread(files: Files) -> str:
    """The first subfolder whose files are not read; empty where there is none, or where nobody can look without Spark."""
    options = {name.lower(): value for name, value in files.options.items()}
    folder = folder_of(files.path)
    if folder is None or options.get("recursivefilelookup", "").lower() == "true" or not folder.is_dir():
        return ""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return min((name for name in names if "=" not in name and not name.startswith(("_", "."))), default="")


def sentence(source: str, files: Files, name: str) -> str:
    """What the user is told of a subfolder."""
    return (
        f"source {source!r}: files in subfolders of {files.path}, such as {name}, are not read: give sf.files "
        "options={'recursiveFileLookup': 'true'} if they are meant"
    )

"""Finds subfolders of a folder of files. Spark silently reads none of them, apart from those named like `column=value`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stateflow.pipelines.inputs.places import PATTERN
from stateflow.storage.roots import local_folder


def folder_of(path: str) -> Path | None:
    """The local folder that a path names; None for a pattern and for other paths."""
    return None if PATTERN & set(path) else local_folder(path)


def is_hidden(name: str) -> bool:
    """Whether Spark leaves a file or a folder of this name out."""
    return name.startswith(("_", "."))


def unread(path: str, options: Mapping[str, str]) -> str:
    """The first subfolder whose files are not read; empty where there is none, or where nobody can look without Spark."""
    lowered = {name.lower(): value for name, value in options.items()}
    folder = folder_of(path)
    if folder is None or lowered.get("recursivefilelookup", "").lower() == "true" or not folder.is_dir():
        return ""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return min((name for name in names if "=" not in name and not is_hidden(name)), default="")


def sentence(source: str, path: str, name: str) -> str:
    """The warning of a subfolder."""
    return (
        f"source {source!r}: files in subfolders of {path}, such as {name}, are not read: give sf.files "
        "options={'recursiveFileLookup': 'true'} if they are meant"
    )

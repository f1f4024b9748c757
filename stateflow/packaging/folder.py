"""The folder of a package: whether files can be put there, and what the packages in it hold."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateflow.errors import UsageError

_NO_URI = frozenset(' ,%?#[]{}<>"\\^`|')
"""`spark.archives` is a list with commas of URIs, in which `#` begins the name of the unpacked archive."""
_MOST_BYTES = 1 << 20
"""No manifest is larger."""


def check_folder(folder: Path) -> None:
    """UsageError for a folder in which nothing can be written, or from which Spark takes no archives."""
    for character in str(folder):
        if character in _NO_URI or not character.isprintable():
            raise UsageError(
                f"Spark takes no archives from {str(folder)!r}, because of the {character!r} in it: name another folder with --to"
            )
    place = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not place.is_dir():
        raise UsageError(f"{place} is no folder, so no package can be put there: name a folder with --to")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(
            f"{place} is a folder that you may not write into: name another one with --to, or ask for the permission"
        )


def archives_of(manifest: Path) -> Mapping[str, Any] | None:
    """What a manifest says of its archives; None for a file that is no manifest."""
    try:
        if not manifest.is_file() or manifest.stat().st_size > _MOST_BYTES:
            return None
        archives = json.loads(manifest.read_bytes())["archives"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return archives if isinstance(archives, dict) else None


def checksums(folder: Path) -> dict[str, set[str]]:
    """The checksums that the manifests of a folder have of each archive: packages of one folder may share an environment."""
    sums: dict[str, set[str]] = {}
    for manifest in folder.glob("*.json"):
        for archive in (archives_of(manifest) or {}).values():
            if isinstance(archive, dict):
                sums.setdefault(str(archive.get("file")), set()).add(str(archive.get("sha256")))
    return sums

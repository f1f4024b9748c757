"""Where an export may write, and what it may replace there: Spark deletes the whole folder that it overwrites."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from stateflow.checkpoint.log import is_job
from stateflow.errors import UsageError
from stateflow.savepoints.location import require_outside
from stateflow.spark.state_tables.snapshots import TableSnapshot
from stateflow.storage.file_urls import file_url
from stateflow.storage.places import paths_inside
from stateflow.storage.probe import delta_table_around
from stateflow.storage.roots import local_folder, open_store
from stateflow.storage.store import Store

_ELSEWHERE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_EXPORTED = re.compile(r"part-[^/]*|_SUCCESS|_(started|committed)_\d+|\.[^/]*\.crc|_temporary/")
"""Names that Spark gives to what it writes; the last is of an export that was killed."""


def require_target(path: str, snapshot: TableSnapshot, *, overwrite: bool) -> None:
    """UsageError when the folder belongs to a checkpoint root, a savepoint or a Delta table, or holds what is no export and would be replaced.

    Without Spark nothing lists a folder of another host: `require_export` does so later.
    """
    folder = None if _ELSEWHERE.match(path) else local_folder(path)
    url = path if folder is None else file_url(folder)
    if snapshot.owner is None and paths_inside(url, snapshot.origin.url):
        raise UsageError(
            f"{path} is no place for an export: {snapshot.origin.label} is there; choose a folder outside of it"
        )
    if (root := _root(snapshot)) is not None:
        require_outside(url, root.url, partial(is_job, root))
    if folder is None:
        return
    if table := delta_table_around(folder):
        raise UsageError(
            f"{path} is no place for an export: it is in the folder of the Delta table {table}, whose files would be replaced or whose "
            "VACUUM would delete the export; choose a folder outside of the table"
        )
    if overwrite:
        require_export(path, _names(folder))


def require_export(path: str, names: Iterable[str] | None) -> None:
    """UsageError unless all names in the folder, those of folders with a slash behind, are of an earlier export. None: nobody knows them."""
    if names is None:
        raise UsageError(
            f"{path} cannot be listed, and --overwrite (overwrite=True) would replace whatever is there: export to a new folder without it"
        )
    if other := min((name for name in names if not _EXPORTED.fullmatch(name)), default=""):
        raise UsageError(
            f"{path} holds {other}, which no export has written, and --overwrite (overwrite=True) would delete it: choose a new folder"
        )


def _root(snapshot: TableSnapshot) -> Store | None:
    """The checkpoint root, if one is known."""
    if snapshot.owner is not None:
        return snapshot.owner.store
    options = snapshot.options
    return open_store(options.checkpoint_dir, options.storage_options) if options.checkpoint_dir else None


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return [folder.name] if folder.exists() else []
    return [f"{each.name}/" if each.is_dir() else each.name for each in folder.iterdir()]

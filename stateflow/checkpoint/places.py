"""Where a savepoint lies: inside the root of the job or elsewhere, and how records name the one and the other.

A savepoint in the job's own root is named relative to it, so that a root which is moved takes its state along, and a copy
of a root has a savepoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stateflow.checkpoint.retention import bases, with_references
from stateflow.errors import UsageError
from stateflow.format.layout import SAVEPOINTS, default_savepoint
from stateflow.format.records import FileRef, Record


def path_inside(url: str, root: str) -> str | None:
    """The path of a folder in a root, empty for the root itself; None when it is elsewhere."""
    url, root = url.rstrip("/"), root.rstrip("/")
    if url == root:
        return ""
    return url.removeprefix(f"{root}/") if url.startswith(f"{root}/") else None


def as_stored(record: Record, root: str) -> Record:
    """The record with savepoints in its own root named by their paths in there."""
    return _renamed(record, lambda base: path_inside(base, root) or base)


def as_read(record: Record, root: str) -> Record:
    """The record with every savepoint named by its URL."""
    return _renamed(record, lambda base: base if "://" in base else f"{root.rstrip('/')}/{base}")


def _renamed(record: Record, named: Callable[[str], str]) -> Record:
    names = {base: named(base) for base in bases([record])}
    if all(before == after for before, after in names.items()):
        return record

    def renamed(ref: FileRef) -> FileRef:
        return msgspec.structs.replace(ref, base=names[ref.base]) if ref.base else ref

    return msgspec.structs.replace(with_references(record, renamed), sinks=record.sinks)


def require_fit(url: str, root: str, job: str, is_job: Callable[[str], bool]) -> None:
    """UsageError for a place in the root (empty: none is known) where a savepoint of the job would be taken for something else.

    What lies in a job's folder goes with the job, and what another job finds among its own savepoints it may clean up.
    """
    path = path_inside(url, root) if root else None
    if path is None:
        return
    first, *rest = path.split("/")
    if first == SAVEPOINTS:
        if len(rest) == 2 and rest[0] == job and path == default_savepoint(*rest):
            return
    elif first and first != job and not first.startswith("_") and not is_job(first):
        return
    raise UsageError(
        f"{url} is no place for a savepoint of job {job!r}: what lies there belongs to the checkpoint root {root}; choose a "
        f"folder outside of it, or {root.rstrip('/')}/{default_savepoint(job, 'NAME')}"
    )

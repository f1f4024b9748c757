"""Which folders can hold a savepoint of a job, or what is exported of one."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.errors import UsageError
from stateflow.format.layout import SAVEPOINTS, default_savepoint
from stateflow.storage.places import paths_inside


def require_fit(url: str, root: str, job: str, is_job: Callable[[str], bool]) -> None:
    """UsageError when the folder `url` is inside the root (empty: no root is known) and belongs to something else.

    Deleting a job deletes everything in its folder, and a job's clean-up may delete whatever is among its savepoints.
    """
    for path in paths_inside(url, root) if root else ():
        if not _fits(path, job, is_job):
            raise UsageError(
                f"{url} is no place for a savepoint of job {job!r}: that folder belongs to the checkpoint root {root}; choose a "
                f"folder outside of it, or {root.rstrip('/')}/{default_savepoint(job, 'NAME')}"
            )


def require_outside(url: str, root: str, is_job: Callable[[str], bool]) -> None:
    """UsageError when the folder `url`, for files of other programs, belongs to a job, to savepoints or to the root itself."""
    if any(_is_taken(path.split("/")[0], is_job) for path in paths_inside(url, root)):
        raise UsageError(
            f"{url} is no place for an export: that folder belongs to the checkpoint root {root}; choose a folder outside of it"
        )


def _fits(path: str, job: str, is_job: Callable[[str], bool]) -> bool:
    first, *rest = path.split("/")
    if first == SAVEPOINTS:
        return len(rest) == 2 and rest[0] == job and path == default_savepoint(*rest)
    return first != job and not _is_taken(first, is_job)


def _is_taken(first: str, is_job: Callable[[str], bool]) -> bool:
    """Whether the folder of this name in a root, or the root itself if it is empty, holds what stateflow keeps."""
    return not first or first.startswith("_") or is_job(first)

"""Which folders can hold a savepoint of a job."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.errors import UsageError
from stateflow.format.layout import SAVEPOINTS, default_savepoint
from stateflow.format.references import path_inside


def require_fit(url: str, root: str, job: str, is_job: Callable[[str], bool]) -> None:
    """UsageError when the folder `url` is inside the root (empty: no root is known) and belongs to something else.

    Deleting a job deletes everything in its folder, and a job's clean-up may delete whatever is among its savepoints.
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
        f"{url} is no place for a savepoint of job {job!r}: that folder belongs to the checkpoint root {root}; choose a "
        f"folder outside of it, or {root.rstrip('/')}/{default_savepoint(job, 'NAME')}"
    )

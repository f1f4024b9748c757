"""Which folders can hold a savepoint of a job."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.errors import UsageError
from stateflow.format.layout import SAVEPOINTS, default_savepoint
from stateflow.format.references import path_inside


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

"""Other jobs whose rows a table has: a job that begins anew on the table of an earlier one would count each row twice."""

from __future__ import annotations

from collections.abc import Iterable

_PREFIX = "stateflow/"


def other_writers(app_ids: Iterable[str], job: str) -> list[tuple[str, str]]:
    """Id and sink of the jobs that have committed to a table, without `job` itself; none once `job` has, too. `app_ids` are
    Delta's names of the writers, for each writer's last transaction.
    """
    written = [
        parts
        for name in app_ids
        if len(parts := name.removeprefix(_PREFIX).split("/", 1)) == 2 and name.startswith(_PREFIX)
    ]
    if any(other == job for other, _ in written):
        return []
    return sorted((other, sink) for other, sink in written)


def sentence(table: str, others: list[tuple[str, str]]) -> str:
    """The warning of a job's first run about a table that has rows of other jobs."""
    named = ", ".join(f"sink {sink!r} of the job with id {job}" for job, sink in others)
    return (
        f"{table} has rows of another job ({named}), and this job adds its own: if both read the same input, rows are there "
        "twice or take turns; give this job another output, or carry the other one on with its name and checkpoint root"
    )

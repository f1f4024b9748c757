"""Other jobs whose rows a target has: a job that begins anew on the output of an earlier one would count each row twice."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "stateflow/"


def other_writers(writers: Mapping[str, str], job: str) -> list[str]:
    """The sinks of other jobs among `Sink.writers`, in words; none once `job`, an id, has written there, too. What is no name of a
    sink's is left out: a Delta table tells all applications that have written to it."""
    written = {
        (parts[0], parts[1]): job_name
        for name, job_name in writers.items()
        if len(parts := name.removeprefix(_PREFIX).split("/", 1)) == 2 and name.startswith(_PREFIX)
    }
    if any(other == job for other, _ in written):
        return []
    return [
        f"sink {sink!r} of the job {f'{name!r} ' if name else ''}with id {other}"
        for (other, sink), name in sorted(written.items())
    ]


def sentence(target: str, others: list[str]) -> str:
    """The warning of a job's first run about a target that has rows of other jobs."""
    return (
        f"{target} has rows of another job ({', '.join(others)}), and this job adds its own: if both read the same input, rows are there "
        "twice or take turns; give this job another output, or carry the other one on with its name and checkpoint root"
    )

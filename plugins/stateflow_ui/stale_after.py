"""When a job is stale: a bound for all, and others for single jobs. Pure."""

from __future__ import annotations

from datetime import timedelta

from stateflow.quantities import duration

STALE_AFTER = "26 hours"
"""A day and some slack: what a job that runs once a day may need."""


class StaleAfter:
    """`stale_after`: `26 hours`, or with exceptions for single jobs, `26 hours, orders=15 minutes, replay=never`."""

    def __init__(self, text: str) -> None:
        self._of_all: timedelta | None = duration(STALE_AFTER)
        self._of_job: dict[str, timedelta | None] = {}
        self.problem = ""
        for part in filter(None, (each.strip() for each in text.split(","))):
            job, named, length = part.rpartition("=")
            try:
                bound = None if length.strip() == "never" else duration(length.strip())
            except ValueError as error:
                self.problem = f"[stateflow] stale_after: {error}"
                continue
            if named:
                self._of_job[job.strip()] = bound
            else:
                self._of_all = bound

    def of(self, job: str) -> timedelta | None:
        """How long a job may be without anything new; None: for ever."""
        return self._of_job.get(job, self._of_all)

"""A restore together with the jobs that have read what it undoes: each goes back to its newest checkpoint from before that.

Every restore is an edit of its own. The last readers go first and the job itself goes last: until then its plan still finds
whoever has not gone back, so that running the same again after a crash finishes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateflow.errors import NotFoundError, UsageError
from stateflow.pipelines.pipeline import Pipeline
from stateflow.restore.plan import Progress, Restored
from stateflow.restore.planned import RestorePlan
from stateflow.restore.readers import Reader

PlanReader = Callable[[str, int], RestorePlan]
"""Plans the restore of a job to a checkpoint of its own."""


@dataclass(frozen=True)
class RestoreTogether:
    """The plans of a job and of its readers, in the order of their execution."""

    plans: tuple[RestorePlan, ...]
    given: tuple[str, ...]
    """The jobs whose pipelines were given, each with the digest of its code."""

    @property
    def first(self) -> RestorePlan:
        """The plan of the job itself."""
        return self.plans[-1]

    @property
    def digest(self) -> str:
        """What an approval names: the job's plan, and who may go back with it. It stays the same when some already have."""
        parts = [self.first.digest, *self.given]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def require(self, approved: str) -> None:
        """Refuses another plan than the approved one."""
        if approved != self.digest:
            raise UsageError(
                f"the restore of job {self.first.request.job.name!r} with its readers is not the one that was approved: its digest was "
                f"{approved[:12]} and is {self.digest[:12]}; nothing was restored, so plan again and have that approved"
            )

    def apply(self, progress: Progress = lambda what, done, total: None) -> dict[str, Restored]:
        """Restores one job after the other. Repeating it after a crash finishes it."""
        return {plan.request.job.name: plan.apply(progress) for plan in self.plans}

    def document(self) -> dict[str, Any]:
        readers = [plan.document() for plan in self.plans[:-1]]
        return {**self.first.document(), "with_readers": readers, "digest": self.digest}

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.plans), f"digest of all: {self.digest}"])


def plan_together(
    first: RestorePlan, plan_reader: PlanReader, given: Mapping[str, Pipeline]
) -> RestoreTogether:
    """`given`: by name of a job, its pipeline."""
    back = back_to(first.readers)
    if missing := [name for name in back if name not in given]:
        wanted = " ".join(f"--reader {name}=FILE" for name in missing)
        raise UsageError(
            f"the jobs {', '.join(map(repr, missing))} have read what would be undone, and go back with it: say which pipelines they "
            f"run ({wanted})"
        )
    plans = [plan_reader(name, slot) for name, slot in reversed(back.items())]
    return RestoreTogether(
        (*plans, first), tuple(f"{name} {given[name].code.digest}" for name in sorted(given))
    )


def back_to(readers: Sequence[Reader]) -> dict[str, int]:
    """By job, the checkpoint that it goes back to; a job stands before its readers."""
    back: dict[str, int] = {}
    for reader in readers:
        if reader.back_to is None:
            raise NotFoundError(
                f"job {reader.job!r} has read version {reader.first} of {reader.table}, which would be undone, and has no checkpoint "
                "from before that: restore without --with-readers, and then that job from a savepoint"
            )
        back[reader.job] = reader.back_to
    return back

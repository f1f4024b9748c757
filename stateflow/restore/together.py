"""A restore together with the jobs that have read what it undoes: each goes back to its newest checkpoint from before that.

Every restore is an edit of its own. The last readers go first and the job itself goes last: until then its plan still finds
whoever has not gone back, so that running the same again after a crash finishes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.errors import NotFoundError, UsageError
from stateflow.restore.description import describe_together
from stateflow.restore.digest import checked_digest
from stateflow.restore.gone_back import find_gone_back
from stateflow.restore.plan import Progress, Restored
from stateflow.restore.planned import RestorePlan
from stateflow.restore.printing import markdown
from stateflow.restore.readers import Reader

PlanReader = Callable[[str, int], RestorePlan]
"""Plans the restore of a job to a checkpoint of its own."""
HistoryOf = Callable[[str], Iterable[HistoryLine]]
"""The history of the job of that name."""


@dataclass(frozen=True)
class RestoreTogether:
    """The plans of a job and of its readers, in the order of their execution."""

    plans: tuple[RestorePlan, ...]
    approved: str | None = None
    """The digest of what was approved. Nothing else is carried out."""
    gone_back: Mapping[str, str] = field(default_factory=dict)
    """By job: the digest of the plan that an earlier try of what was approved has carried out."""

    @property
    def first(self) -> RestorePlan:
        """The plan of the job itself."""
        return self.plans[-1]

    @property
    def digest(self) -> str:
        """What an approval names: every plan. It stays the same while one after the other is carried out."""
        parts = {plan.request.job.name: plan.digest for plan in self.plans} | dict(self.gone_back)
        if len(parts) == 1:
            return self.first.digest  # the same is done without readers
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def require_approved(self) -> None:
        """Refuses another plan than the approved one."""
        if self.approved is not None and self.approved != self.digest:
            raise UsageError(
                f"the restore of job {self.first.request.job.name!r} with its readers is not the one that was approved any more: its "
                f"digest was {self.approved[:12]} and is {self.digest[:12]}; nothing was restored, so plan again and have that approved"
            )

    def apply(self, progress: Progress = lambda what, done, total: None) -> dict[str, Restored]:
        """Restores one job after the other. Repeating it after a crash finishes it."""
        self.require_approved()
        return {plan.request.job.name: self._marked(plan).apply(progress) for plan in self.plans}

    def _marked(self, plan: RestorePlan) -> RestorePlan:
        together = self.digest if self.digest != plan.digest else ""
        approved = plan.digest if self.approved is not None else plan.request.approved
        return replace(plan, request=replace(plan.request, together=together, approved=approved))

    def document(self) -> dict[str, Any]:
        readers = [plan.document() for plan in self.plans[:-1]]
        return {**self.first.document(), "with_readers": readers, "digest": self.digest}

    def markdown(self) -> str:
        """The plans for the person who approves them: that of the job itself comes first."""
        if len(self.plans) == 1:
            return self.first.markdown()
        head = markdown(describe_together(self.plans, self.digest))
        return "\n\n".join([head, *(plan.markdown() for plan in (self.first, *self.plans[:-1]))])

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.plans), f"digest of all: {self.digest}"])


def plan_together(
    first: RestorePlan,
    plan_reader: PlanReader,
    given: Iterable[str],
    *,
    approved: str | None = None,
    history_of: HistoryOf = lambda job: (),
) -> RestoreTogether:
    """`given`: the jobs whose pipelines are known."""
    known = sorted(given)
    back = back_to(first.readers)
    if missing := [name for name in back if name not in known]:
        wanted = " ".join(f"--reader {name}=FILE" for name in missing)
        raise UsageError(
            f"the jobs {', '.join(map(repr, missing))} have read what would be undone, and go back with it: say which pipelines they "
            f"run ({wanted}; an operator takes `readers`, and Airflow's recovery DAG the `jobs` of the Variable stateflow)"
        )
    plans = [plan_reader(name, slot) for name, slot in reversed(back.items())]
    gone_back = {}
    if approved is not None:
        checked_digest(approved)
        for name in known:
            found = find_gone_back(history_of(name), approved)
            # One that has read it again since would go back another time, which nobody has approved.
            if found is not None and not (found.finished and name in back):
                gone_back[name] = found.plan
    return RestoreTogether((*plans, first), approved, gone_back)


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

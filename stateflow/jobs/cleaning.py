"""A clean-up of a job: what its retention gives up, what crashed runs left, and savepoints that are over. Planned, or done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from stateflow.checkpoint.collection import CollectionPlan, CollectionReport
from stateflow.config.retention_rule import RetentionRule
from stateflow.jobs.job import Job
from stateflow.jobs.savepoints import (
    dispose_expired,
    dispose_unfinished,
    expired_savepoints,
    unfinished_savepoints,
)


@dataclass(frozen=True, slots=True)
class CleanUp:
    plan: CollectionPlan
    done: CollectionReport | None
    """None of one that only says what it would delete."""
    expired: Sequence[str]
    """URLs of savepoints."""
    unfinished: Sequence[str]
    freed: Mapping[str, int]
    """The bytes of each of these savepoints that is deleted."""

    @property
    def records(self) -> dict[int, str]:
        removed = self.plan.records if self.done is None else self.done.removed
        return {slot: reason for slot, reason in self.plan.records.items() if slot in removed}

    @property
    def files(self) -> int:
        return len(self.plan.files) if self.done is None else self.done.files

    @property
    def bytes_by_reason(self) -> Mapping[str, int]:
        """Without savepoints."""
        return (self.done or self.plan).bytes_by_reason


def clean_up(
    job: Job,
    retained: int,
    age: timedelta,
    rule: RetentionRule,
    *,
    delete: bool,
    savepoints: bool = True,
    without: Collection[str] = (),
    collected: Callable[[CollectionReport], object] = lambda report: None,
) -> CleanUp:
    """Safe beside runs, and each deletion can be repeated. `collected` hears of the checkpoints before savepoints go, which may fail.

    A plan is made as if the pins `without` were released; what deletes takes the pins as they are.
    """
    without = () if delete else without
    plan = job.garbage(retained, age, rule, without=without)
    done = job.collect(retained, age, rule) if delete else None
    if done is not None:
        collected(done)
    if not savepoints:
        return CleanUp(plan, done, (), (), {})
    if not delete:
        return CleanUp(plan, done, expired_savepoints(job), unfinished_savepoints(job, without), {})
    over, halves = dispose_expired(job), dispose_unfinished(job)
    return CleanUp(plan, done, list(over), list(halves), {**over, **halves})

"""Records that no run makes: restore, rescale, erase. Each claims the job, settles what was decided, adds one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stateflow.checkpoint.claim import CarryOut, StillOwner, claim
from stateflow.checkpoint.layout import JobLayout
from stateflow.checkpoint.records import Outcome, Owner, Record
from stateflow.checkpoint.store import Store
from stateflow.checkpoint.writer import CommitPermit, Writer

Draft = Callable[[Writer], Record]
"""The record to add, once everything below it is carried out. May bring files in: the slot and epoch are known."""

Commit = Callable[[CommitPermit, StillOwner], Mapping[str, str]]
"""Carries the new record out in its sinks."""


@dataclass(frozen=True, slots=True)
class Edited:
    """The record that was added."""

    record: Record
    outcome: Outcome

    @property
    def slot(self) -> int:
        return self.record.slot


def edit(
    store: Store,
    layout: JobLayout,
    draft: Draft,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    carry_out: CarryOut,
    commit: Commit = lambda permit, still_owner: {},
    retained: int | None = None,
    claimed_epoch: Callable[[int], object] = lambda epoch: None,
) -> Edited:
    """Fences a running writer; a crash at any point leaves the old state or the new one, and may be repeated."""
    writer = claim(
        store,
        layout,
        owner=owner,
        ids=ids,
        clock=clock,
        carry_out=carry_out,
        retained=retained,
        claimed_epoch=claimed_epoch,
    )
    made = draft(writer)
    # What took long may have been overtaken: found out here it costs nothing, after the decision a stuck record.
    writer.still_owner()
    permit = writer.decide(made)
    outcomes = commit(permit, writer.still_owner) if permit.record.sinks else {}
    return Edited(permit.record, writer.complete(permit, outcomes))

"""Records that no run makes: restore, rescale, erase. Each claims the job, settles what was decided, adds one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from stateflow.checkpoint.claim import CarryOut, StillOwner, claim
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.idempotency import history_line_of, made_by
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.statistics import history
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.errors import FencedError, StateflowError, UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Kind, Outcome, Owner, Record
from stateflow.storage.store import Store, refused_for_good

MakeDraft = Callable[[Writer], Draft]
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
    draft: MakeDraft,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    carry_out: CarryOut,
    commit: Commit = lambda permit, still_owner: {},
    retained: int | None = None,
    claimed_epoch: Callable[[int], object] = lambda epoch: None,
    once: Kind | None = None,
) -> Edited:
    """Fences a running writer; a crash at any point leaves the old state or the new one, and may be repeated.

    `once`: a record of this kind that an earlier try of the same deed has added, as `owner.run` tells, stands for the new
    one; whoever repeats a deed gets that. A try that another has overtaken so far that this record was collected is fenced.
    """
    if once is not None:
        # Asked before the claim, which would fence a run, and after it, when no other try can do the deed any more.
        _refuse_overtaken(store, layout, read_log(store, layout), owner.run, once)
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
    if once is not None and (stands := made_by(writer.log, owner.run, once)) is not None:
        outcome = writer.log.slots[stands.slot].outcome
        assert outcome is not None  # the claim has carried out whatever was pending
        return Edited(stands, outcome)
    if once is not None:
        _refuse_overtaken(store, layout, writer.log, owner.run, once)
    try:
        made = draft(writer)
        # What took long may have been overtaken: found out here it costs nothing, after the decision a stuck record.
        writer.still_owner()
    except (Exception, KeyboardInterrupt):
        _take_away(writer)
        raise
    slot = writer.next_slot
    try:
        permit = writer.decide(made)
    except UnavailableError:
        if refused_for_good(store, layout.pending(slot)):
            _take_away(writer)
        raise
    outcomes = commit(permit, writer.still_owner) if permit.record.sinks else {}
    return Edited(permit.record, writer.complete(permit, outcomes))


def _refuse_overtaken(store: Store, layout: JobLayout, log: Log, run: str, kind: Kind) -> None:
    if made_by(log, run, kind) is not None or log.identity is None:
        return
    told = history_line_of(history(store, layout, log=log), run, kind)
    if told is not None:
        raise FencedError(
            f"another try of this {kind} of job {layout.job!r} has made record {told.id}, and the job has gone on since"
        )


def _take_away(writer: Writer) -> None:
    """Deletes what was brought in for a record that is never decided. Left there it would be collected only behind the
    next claim, and a full disk may not have room for that."""
    layout = writer.layout
    with suppress(StateflowError):
        for beginning in (layout.shared_file, layout.staged_file):
            brought = writer.store.list(beginning(writer.epoch, writer.next_slot, "", ""))
            writer.store.delete([entry.path for entry in brought])

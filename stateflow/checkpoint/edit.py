"""Records that are added outside of a batch: restore, rescale, erase. Each claims the job, carries out what is pending, adds one record.

None has a retention of its own: it repeats what was announced. Only the job's runs let its past go."""

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
from stateflow.errors import FencedError, IncompatibleError, StateflowError, UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Kind, Outcome, Owner, Record
from stateflow.storage.local import held_root
from stateflow.storage.store import Store, refused_for_good

MakeDraft = Callable[[Writer], Draft]
"""Makes the record to add, once everything below it is carried out. It may copy files in: it knows the slot and epoch."""

Commit = Callable[[CommitPermit, StillOwner], Mapping[str, str]]
"""Commits the new record in its sinks and returns the outcome by sink uid."""


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
    claimed_epoch: Callable[[int], object] = lambda epoch: None,
    once: Kind | None = None,
) -> Edited:
    """Adds one record and fences a running writer. A crash leaves the old state or the new one, and the caller can repeat it.

    `once`: if an earlier try with the same idempotency key (`owner.run`) has added a record of this kind, it returns that
    record and adds none. If that record has been collected since, it raises FencedError.
    """
    if once is not None:
        # Checked before the claim, which would fence a run, and again after it, when no other try can add the record any more.
        _refuse_overtaken(store, layout, read_log(store, layout), owner.run, once)
    writer = claim(
        store,
        layout,
        owner=owner,
        ids=ids,
        clock=clock,
        carry_out=carry_out,
        claimed_epoch=claimed_epoch,
        restores=once == "restore",
    )
    if once is not None and (earlier := made_by(writer.log, owner.run, once)) is not None:
        outcome = writer.log.slots[earlier.slot].outcome
        assert outcome is not None  # the claim has carried out every pending record
        return Edited(earlier, outcome)
    if once is not None:
        _refuse_overtaken(store, layout, writer.log, owner.run, once)
    try:
        new_draft = draft(writer)
        # Making the draft may have taken long enough for a newer run to take over. Noticed here it costs nothing; noticed
        # after the decision it would leave a pending record.
        writer.still_owner()
    except (Exception, KeyboardInterrupt):
        _delete_files(writer)
        raise
    slot = writer.next_slot
    try:
        permit = writer.decide(new_draft)
    except IncompatibleError:  # nobody could read the record, so it was not created
        _delete_files(writer)
        raise
    except UnavailableError:
        if refused_for_good(store, layout.pending(slot)):
            _delete_files(writer)
        raise
    outcomes = commit(permit, writer.still_owner) if permit.record.sinks else {}
    return Edited(permit.record, writer.complete(permit, outcomes))


def _refuse_overtaken(store: Store, layout: JobLayout, log: Log, run: str, kind: Kind) -> None:
    if made_by(log, run, kind) is not None or log.identity is None:
        return
    line = history_line_of(history(store, layout, log=log), run, kind)
    if line is not None:
        raise FencedError(
            f"another try of this {kind} of job {layout.job!r} has made record {line.id}, and the job has gone on since"
        )


def _delete_files(writer: Writer) -> None:
    """Deletes the files that were copied in for a record that was not decided. On a full disk the next claim may fail, and no
    collection would follow: so they are deleted here."""
    layout = writer.layout
    with suppress(StateflowError), held_root(writer.store) as store:
        for file_path in (layout.shared_file, layout.staged_file):
            entries = store.list(file_path(writer.epoch, writer.next_slot, "", ""))
            store.delete([entry.path for entry in entries])

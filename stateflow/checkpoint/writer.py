"""The one run that may add to a job's log: it decides records and completes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import InitVar, dataclass
from typing import Any, Literal, cast

import msgspec

from stateflow.checkpoint.collection import CollectionReport, DisposeSavepoint, collect
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.feeds import shown_after
from stateflow.checkpoint.lacks import lacks_after
from stateflow.checkpoint.log import BodyCache, Log, SlotContent, assemble, read_epochs
from stateflow.checkpoint.recovery import commits_after, continued, late_after, link_to
from stateflow.checkpoint.retention import Retention, announced_by
from stateflow.errors import CorruptError, FencedError, IncompatibleError, StateflowError, UsageError
from stateflow.format.layout import LAST_EPOCH, JobLayout
from stateflow.format.records import Outcome, Owner, Record, ShownState, decode, encode
from stateflow.format.references import as_stored
from stateflow.storage.store import Store, create_once

SinkOutcome = Literal["committed", "already", "abandoned", "none"]
CUTS = ("restore", "rescale")
"""Kinds of records that bring in shards from elsewhere, or give them other key groups."""
_GRANTED = object()


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that `record` is decided: a sink commits nothing without it."""

    record: Record
    granted: InitVar[object]

    def __post_init__(self, granted: object) -> None:
        if granted is not _GRANTED:
            raise TypeError(
                "a CommitPermit comes from Writer.decide, or from recovery for a record that stands"
            )

    @property
    def slot(self) -> int:
        return self.record.slot

    @classmethod
    def to_carry_out(cls, record: Record) -> CommitPermit:
        """For the callback that carries out a decided record during recovery."""
        if not isinstance(record, Record):
            raise TypeError("this record is a draft: only a decided one can be carried out")
        return cls(record, _GRANTED)


class Writer:
    """Made by `claim`. One record is pending at a time: decide, commit the sinks, complete. Another thread may prepare the next one
    meanwhile."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        *,
        log: Log,
        epoch: int,
        owner: Owner,
        ids: Callable[[], str],
        clock: Callable[[], int],
        retained: Retention | int | None,
        cache: BodyCache,
    ) -> None:
        assert log.identity is not None
        self.store = store
        self.layout = layout
        self.job = log.identity.uuid
        self.epoch = epoch
        self.owner = owner
        self._ids = ids
        self._clock = clock
        self._retained = retained
        self._cache = cache
        self._log = log
        self._open: CommitPermit | None = None
        self._changing = threading.Lock()
        self._stopped: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether this writer decides no record any more."""
        return self._stopped is not None

    @property
    def log(self) -> Log:
        """The log that this writer read when it claimed the job, with the records it has added."""
        return self._log

    @property
    def next_slot(self) -> int:
        """The slot of the next record. Files and sinks of the batch use it before the record is decided."""
        return self._log.next_slot

    @property
    def parent(self) -> Record | None:
        """The record whose state the next one continues: the one on its way, or the newest complete one."""
        with self._changing:
            permit = self._open
            return permit.record if permit is not None and permit.record.carries_state else self._log.head

    @property
    def next_timeline(self) -> int:
        return self._log.next_timeline

    @property
    def last_commits(self) -> Mapping[str, int]:
        return self._log.last_commits

    @property
    def feeds(self) -> tuple[ShownState, ...]:
        """What the tables of feeds show once the record on its way is carried out, too."""
        with self._changing:
            permit, log = self._open, self._log
        if permit is None:
            return log.feeds
        return shown_after(permit.record, dict.fromkeys(permit.record.sinks, "committed"), log.feeds)

    @property
    def late(self) -> Mapping[str, tuple[int, ...]]:
        """By sink uid: the abandoned slots whose output a fenced run may still have delivered."""
        return self._log.late

    def still_owner(self) -> None:
        """Raises FencedError when a newer run owns the job."""
        newest = max(read_epochs(self.store, self.layout), default=0)
        if newest > self.epoch:
            self._stopped = f"epoch {newest} has taken over"
            raise taken_over(self.layout, newest, self.epoch)

    def decide(self, draft: Draft) -> CommitPermit:
        """Creates the record in the next slot. After a FencedError the record may exist all the same: commit nothing."""
        self._require_running()
        if self._open is not None:
            raise UsageError(
                f"record {self._open.slot} of job {self.layout.job!r} is not complete yet: one at a time"
            )
        self.still_owner()
        top = self._log.decided
        late, last = self._log.late, self._log.last_commits
        sinks = {
            uid: msgspec.structs.replace(prepared, prev=last.get(uid), late=late.get(uid, ()))
            for uid, prepared in draft.sinks.items()
        }
        announced = announced_by(self._log, draft.kind, self._retained)
        based_on = draft.based_on if draft.based_on is not None else continued(self.parent)
        record = msgspec.structs.replace(draft, sinks=sinks, based_on=based_on).record(
            job=self.job,
            slot=self.next_slot,
            epoch=self.epoch,
            writer=self._ids(),
            owner=self.owner,
            at=self._clock(),
            previous=link_to(top),
            floor=announced.floor,
            kept=announced.kept,
            cut=self.next_slot if draft.kind in CUTS else self.parent.cut if self.parent else 0,
        )
        path = self.layout.pending(record.slot)
        body = encode(as_stored(record, self.store.url))
        self._require_readable(body, record.slot)
        # Until the store answers, nobody knows whether the slot is ours: a second attempt with another body could store
        # the batch twice. So any error here stops this writer.
        self._stopped = f"whether record {record.slot} was decided is not known"
        current = create_once(self.store, path, body)
        if current != body:
            raise self._lost(record, decode(current, Record, path))
        self._observe(SlotContent(record.slot, record=record, paths=(path,)))
        # A newer run may have claimed the job during the create. The record is decided, and the newer run carries it
        # out. A commit from here could come after that run has rewound the sinks.
        self.still_owner()
        self._stopped = None
        self._open = CommitPermit(record, _GRANTED)
        return self._open

    def _require_readable(self, body: bytes, slot: int) -> None:
        """A record out of bounds would stop every later run. A foreign snapshot can bring numbers that lead to one."""
        try:
            decode(body, Record, self.layout.pending(slot))
        except CorruptError as error:
            raise IncompatibleError(
                f"record {slot} of job {self.layout.job!r} was not written, because nobody could read it ({error}); if it "
                "is a restore, choose another snapshot"
            ) from error

    def complete(
        self, permit: CommitPermit, outcomes: Mapping[str, str], statistics: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Notes that every sink has the record. When an answer was lost, call it again with the same permit."""
        self._require_running()
        if permit is not self._open:
            raise UsageError(
                f"record {permit.slot} of job {self.layout.job!r} is not the one this run has decided last"
            )
        outcome = complete_record(
            self.store,
            self.layout,
            permit.record,
            outcomes,
            log=self._log,
            epoch=self.epoch,
            owner=self.owner,
            writer=self._ids(),
            at=self._clock(),
            statistics=dict(statistics or {}),
        )
        slot = permit.slot
        paths = (self.layout.metadata(slot), self.layout.pending(slot))
        self._observe(SlotContent(slot, record=permit.record, outcome=outcome, paths=paths))
        self._open = None
        return outcome

    def collect(
        self, retained: Retention | int, *, orphans: bool, dispose: DisposeSavepoint | None = None
    ) -> CollectionReport:
        """Deletes what no kept record needs. With `orphans` also the remains of crashed runs, which takes a listing of
        all files."""
        self._retained = retained
        before = self._log
        report = collect(
            self.store,
            self.layout,
            collector=f"e{self.epoch}-{self._ids()}",
            retained=retained,
            orphans=orphans,
            cache=self._cache,
            dispose=dispose,
            job=self.job,
        )
        # Others collect, too: below the floor no record comes back, and each that stayed in this log would be walked for every batch.
        gone = (slot for slot in before.slots if slot < before.floor and slot not in report.there)
        self._forget({*report.removed, *report.lost, *gone})
        return report

    def _lost(self, ours: Record, theirs: Record) -> StateflowError:
        name, slot = self.layout.job, ours.slot
        if theirs.job == self.job and theirs.epoch > self.epoch:
            self._stopped = f"epoch {theirs.epoch} has taken over"
            return FencedError(
                f"slot {slot} of job {name!r} was decided by epoch {theirs.epoch}, newer than this run's "
                f"{self.epoch}; "
                "do not retry, the newer run carries on"
            )
        # Our batch continues a state that is no longer the newest. The next claim adopts the other record and carries it
        # out. To go on from here would fork the log.
        return StateflowError(
            f"slot {slot} of job {name!r} holds a record of epoch {theirs.epoch} that this run (epoch "
            f"{self.epoch}) did "
            "not expect; run again: the next run carries that record out and goes on from it"
        )

    def _require_running(self) -> None:
        if self._stopped is not None:
            raise StateflowError(
                f"this run of job {self.layout.job!r} has stopped ({self._stopped}): run again, a new run "
                "goes on from what was decided"
            )

    def _observe(self, slot: SlotContent) -> None:
        # Only this writer adds to the log, so it need not list it for every batch.
        with self._changing:
            slots = {**self._log.slots, slot.number: slot}
            self._log = assemble(self._log.job, self._log.identity, (self.epoch,), slots)

    def _forget(self, gone: Set[int]) -> None:
        # Another thread collects while the next batch adds its record.
        with self._changing:
            slots = {n: s for n, s in self._log.slots.items() if n not in gone}
            self._log = assemble(self._log.job, self._log.identity, (self.epoch,), slots)


def taken_over(layout: JobLayout, newest: int, epoch: int) -> FencedError:
    if newest == LAST_EPOCH:
        return FencedError(
            f"job {layout.job!r} was deleted while this run (epoch {epoch}) had it: do not retry"
        )
    return FencedError(
        f"job {layout.job!r} was taken over: epoch {newest} is newer than this run's {epoch}; "
        "do not retry, the newer run carries on"
    )


def complete_record(
    store: Store,
    layout: JobLayout,
    record: Record,
    outcomes: Mapping[str, str],
    *,
    log: Log,
    epoch: int,
    owner: Owner,
    writer: str,
    at: int,
    statistics: dict[str, Any],
) -> Outcome:
    """Creates a record's `_metadata`, or returns the outcome that another run has created for the same record."""
    if set(outcomes) != set(record.sinks):
        missing = sorted(set(record.sinks) ^ set(outcomes))
        raise UsageError(
            f"record {record.slot} of job {layout.job!r} cannot be completed: the record and its "
            f"outcomes name different sinks, {missing}"
        )
    outcome = Outcome(
        slot=record.slot,
        record=record.writer,
        writer=writer,
        epoch=epoch,
        sinks=cast(dict[str, SinkOutcome], dict(outcomes)),
        at=at,
        owner=owner,
        last_commits=commits_after(record, outcomes, log.last_commits),
        feeds=shown_after(record, outcomes, log.feeds),
        late=late_after(record, outcomes, log.late),
        lacks=lacks_after(record, outcomes, log.lacks, log.lacked_at),
        statistics=statistics,
    )
    path = layout.metadata(record.slot)
    current = decode(create_once(store, path, encode(outcome)), Outcome, path)
    if current.record != record.writer:
        raise CorruptError(
            f"{path} completes another record than the one decided in slot {record.slot}: run `stateflow "
            f"verify {layout.job}`"
        )
    return current

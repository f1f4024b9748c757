"""A job's log as one process reads it, and what follows from it: the chain, the head, the pending and the void records.

`assemble` is pure: from the same facts a writer, a reader and a collector get the same log. Nothing here depends on a
clock, or on the order in which listings return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, NotFoundError
from stateflow.format.layout import LAST_EPOCH, JobLayout, epoch_of, slot_of
from stateflow.format.records import EpochClaim, JobIdentity, Outcome, Record, decode
from stateflow.format.references import as_read
from stateflow.storage.store import Store

BodyCache = MutableMapping[tuple[str, int], Any]
"""Decoded bodies by path and size. Reading drops a body that the last listing lacks, because a name can be used again."""

LISTINGS = 8
"""How often to list before a gap counts as real: a listing may miss a record that was there."""


@dataclass(frozen=True, slots=True)
class SlotContent:
    """What one record's folder holds."""

    number: int
    record: Record | None = None
    outcome: Outcome | None = None
    marks: tuple[str, ...] = ()
    """The collectors that have marked it."""
    doomed: bool = False
    """A collector marked it, then found no pin, and deletes its files: no pin can save the record any more."""
    paths: tuple[str, ...] = ()
    """Every object in the folder, also those with unknown names."""

    @property
    def complete(self) -> bool:
        """Whether the outcome belongs to this record, and not to another one that was created in the slot."""
        if self.record is None or self.outcome is None:
            return False
        return self.outcome.record == self.record.writer


@dataclass(frozen=True, slots=True)
class Log:
    """The facts that one process has read, and what follows from them."""

    job: str
    """The job's name."""
    identity: JobIdentity | None
    epochs: tuple[int, ...]
    slots: Mapping[int, SlotContent]
    unreadable: tuple[str, ...]
    """Paths that should hold a record or an outcome, and cannot be decoded."""
    chain: tuple[Record, ...]
    """The job's records, ascending: those linked from the newest one down, and below the floor the complete ones that
    a pin or the retention has kept."""
    gaps: tuple[int, ...]
    """Slots at or above the floor that should hold a record of the chain, or its outcome, and do not."""

    @property
    def newest_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    @property
    def sound(self) -> bool:
        """Whether every record that must exist was read. Otherwise the floor is not known either."""
        return not (self.unreadable or self.gaps)

    @property
    def identity_is_lost(self) -> bool:
        """Whether the job's identity is missing. It is created first, and deleted last, when the job has a tombstone."""
        return self.identity is None and bool(self.epochs or self.slots) and LAST_EPOCH not in self.epochs

    @property
    def decided(self) -> Record | None:
        """The highest decided record: a writer's next record follows it."""
        return self.chain[-1] if self.chain else None

    @property
    def floor(self) -> int:
        return self.chain[-1].floor if self.chain else 1

    @property
    def next_slot(self) -> int:
        slot = self.chain[-1].slot + 1 if self.chain else 1
        while (content := self.slots.get(slot)) is not None and content.record is not None:
            slot += 1  # a run of a deleted job of this name wrote it
        return slot

    @property
    def next_timeline(self) -> int:
        """The timeline that a restore begins: 1 in a new job, otherwise one more than the last."""
        top = self.decided
        return top.timeline + 1 if top is not None and self.head is not None else 1

    @property
    def last_complete(self) -> Record | None:
        return next((r for r in reversed(self.chain) if self.slots[r.slot].complete), None)

    @property
    def head(self) -> Record | None:
        """The record that a reader sees: the highest complete one that carries state."""
        complete = (r for r in reversed(self.chain) if self.slots[r.slot].complete)
        return next((r for r in complete if r.carries_state), None)

    @property
    def head_outcome(self) -> Outcome | None:
        head = self.head
        return self.slots[head.slot].outcome if head else None

    @property
    def pending(self) -> tuple[Record, ...]:
        """The records that are decided but not carried out, in the order in which they have to be."""
        above = last.slot if (last := self.last_complete) else 0
        return tuple(r for r in self.chain if r.slot > above)

    @property
    def checkpoints(self) -> tuple[Record, ...]:
        """Complete checkpoints without a mark, ascending: a marked one may have lost files already."""
        return tuple(
            r
            for r in self.chain
            if r.kind == "checkpoint" and self.slots[r.slot].complete and not self.slots[r.slot].marks
        )

    @property
    def void(self) -> tuple[Record, ...]:
        """Records that count for nothing: another job made them, or a zombie in a slot whose record had been collected."""
        members = {r.slot for r in self.chain}
        return tuple(
            slot.record
            for number, slot in sorted(self.slots.items())
            if slot.record is not None and number not in members
        )

    @property
    def last_commits(self) -> dict[str, int]:
        """By sink uid: the highest slot whose output the sink has."""
        outcome = self._last_outcome
        return dict(outcome.last_commits) if outcome else {}

    @property
    def late(self) -> dict[str, tuple[int, ...]]:
        """By sink uid: the slots that were abandoned since. A fenced run may still deliver their output."""
        outcome = self._last_outcome
        return dict(outcome.late) if outcome else {}

    @property
    def _last_outcome(self) -> Outcome | None:
        last = self.last_complete
        return self.slots[last.slot].outcome if last else None

    def record(self, slot: int) -> Record:
        """The record of a slot on the chain."""
        for record in self.chain:
            if record.slot == slot:
                return record
        raise NotFoundError(
            f"job {self.job!r} has no checkpoint {slot} (any more): kept are "
            f"{', '.join(str(r.slot) for r in self.chain if r.carries_state) or 'none'}; "
            f"`stateflow checkpoints {self.job}` lists them"
        )

    def require_sound(self) -> None:
        """Raises unless every record that must exist was read. Without them nothing may be decided or deleted."""
        if self.identity_is_lost:
            raise CorruptError(
                f"{self.job}/job, which says who job {self.job!r} is, is missing, so nothing of it may be decided or deleted: "
                "put it back from a copy of the store"
            )
        if self.unreadable:
            raise CorruptError(
                f"{self.unreadable[0]} cannot be read, so nothing of job {self.job!r} may be decided or "
                "deleted: "
                f"run `stateflow verify {self.job}`"
            )
        if self.gaps:
            raise CorruptError(
                f"slot {self.gaps[0]} of job {self.job!r} has no record, although its log starts at "
                f"{self.floor}: "
                f"run `stateflow verify {self.job}`"
            )


def assemble(
    job: str,
    identity: JobIdentity | None,
    epochs: Iterable[int],
    slots: Mapping[int, SlotContent],
    unreadable: Iterable[str] = (),
) -> Log:
    """The log that follows from the facts."""
    uuid = identity.uuid if identity else None
    own = {n: s.record for n, s in slots.items() if s.record is not None and s.record.job == uuid}
    chain: dict[int, Record] = {}
    gaps: list[int] = []
    if own:
        newest = own[max(own)]
        # Each record names the slot and the writer id of the one before it. So a record that a zombie created in a
        # collected slot is not in the chain, whatever the record itself says.
        current: Record | None = newest
        while current is not None:
            chain[current.slot] = current
            link = current.previous
            below = own.get(link.slot) if link and link.slot < current.slot else None
            if below is not None and link is not None and below.writer == link.writer:
                current = below
            else:
                if link is not None and link.slot >= newest.floor:
                    gaps.append(link.slot)
                current = None
        for number, record in own.items():
            if number < newest.floor and slots[number].complete:
                chain.setdefault(number, record)
        complete = max((n for n in chain if slots[n].complete), default=0)
        for number in sorted(chain):
            if number < complete and not slots[number].complete:
                if number >= newest.floor:
                    gaps.append(number)  # a later record is complete, so this outcome was missed or is lost
                del chain[number]
    # An outcome proves that its record was decided: to decide the slot again would deliver the output twice. And the
    # lost record may have announced a higher floor, so records missing below it may be no gaps.
    if lost := list(_lost_above(max(own, default=0), slots)):
        gaps = lost
    return Log(
        job=job,
        identity=identity,
        epochs=tuple(sorted(epochs)),
        slots=dict(slots),
        unreadable=tuple(unreadable),
        chain=tuple(chain[n] for n in sorted(chain)),
        gaps=tuple(sorted(gaps)),
    )


def _lost_above(newest: int, slots: Mapping[int, SlotContent]) -> Iterator[int]:
    """Slots with an outcome but no record, directly above the newest record (another job's records in between are skipped)."""
    for number in count(newest + 1):
        slot = slots.get(number)
        if slot is None or (slot.record is None and slot.outcome is None):
            return
        if slot.record is None:
            yield number


def read_log(store: Store, layout: JobLayout, *, cache: BodyCache | None = None) -> Log:
    """The current log. It lists again when a listing missed a record, or ran while one was being deleted."""
    bodies: BodyCache = {} if cache is None else cache
    for _ in range(LISTINGS):
        log = _observe(store, layout, bodies)
        if not log.gaps:
            break
    return log


def read_identity(store: Store, layout: JobLayout) -> JobIdentity | None:
    """Who the job is; None before its first claim."""
    try:
        return decode(store.read(layout.identity), JobIdentity, layout.identity)
    except NotFoundError:
        return None


def read_epochs(store: Store, layout: JobLayout) -> tuple[int, ...]:
    """Claimed epochs whose claims were not collected, ascending; the newest is always among them."""
    epochs = (epoch_of(entry.path) for entry in store.list(layout.epochs))
    return tuple(sorted(epoch for epoch in epochs if epoch is not None))


def read_epoch_claim(store: Store, layout: JobLayout, epoch: int) -> EpochClaim:
    """Who claimed an epoch, and when."""
    path = layout.epoch(epoch)
    return decode(store.read(path), EpochClaim, path)


def list_jobs(store: Store) -> list[str]:
    """The names of the jobs of a root."""
    return [name for name in sorted(store.folders("")) if is_job(store, name)]


def is_job(store: Store, name: str) -> bool:
    """Whether a folder of a root is a job's."""
    return any(entry.path == f"{name}/job" for entry in store.list(f"{name}/job"))


def _observe(store: Store, layout: JobLayout, bodies: BodyCache) -> Log:
    identity = read_identity(store, layout)
    epochs = read_epochs(store, layout)
    seen: set[tuple[str, int]] = set()
    unreadable: list[str] = []
    slots: dict[int, SlotContent] = {}
    folders: dict[int, list[tuple[str, str, int]]] = {}
    for entry in store.list(layout.log):
        if (parts := slot_of(entry.path)) is not None:
            folders.setdefault(parts[0], []).append((parts[1], entry.path, entry.size))
    for number, objects in folders.items():
        bodies_read: dict[str, Any] = {}
        for name, path, size in objects:
            if name not in ("_pending", "_metadata"):
                continue
            seen.add((path, size))
            try:
                bodies_read[name] = read_body(
                    store, path, size, Record if name == "_pending" else Outcome, bodies
                )
            except NotFoundError:
                continue  # collected since the listing
            except (CorruptError, IncompatibleError):
                unreadable.append(path)
        slots[number] = SlotContent(
            number=number,
            record=bodies_read.get("_pending"),
            outcome=bodies_read.get("_metadata"),
            marks=tuple(n.removeprefix("_dead-") for n, _, _ in objects if n.startswith("_dead-")),
            doomed=any(n.startswith("_doomed-") for n, _, _ in objects),
            paths=tuple(path for _, path, _ in objects),
        )
    for key in [k for k in bodies if k[0].startswith(layout.log) and k not in seen]:
        del bodies[key]
    return assemble(layout.job, identity, epochs, slots, unreadable)


B = TypeVar("B", bound=msgspec.Struct)


def read_body(store: Store, path: str, size: int, kind: type[B], bodies: BodyCache) -> B:
    """An immutable body, decoded only once."""
    key = (path, size)
    if key not in bodies:
        decoded = decode(store.read(path), kind, path)
        bodies[key] = as_read(decoded, store.url) if isinstance(decoded, Record) else decoded
    body: B = bodies[key]
    return body

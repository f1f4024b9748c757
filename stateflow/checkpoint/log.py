"""A job's log as it is observed, and what follows from it: the chain, the head, what is pending and what is
void.

`assemble` is pure: the same facts give the same log for a writer, a reader and a collector, and nothing here
looks at a clock or at the order in which listings returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, NotFoundError
from stateflow.format.layout import LAST_EPOCH, JobLayout, epoch_of, slot_of
from stateflow.format.records import Claim, JobIdentity, Outcome, Record, decode
from stateflow.format.references import as_read
from stateflow.storage.store import Store

BodyCache = MutableMapping[tuple[str, int], Any]
"""Decoded bodies by path and size. What was not in the last listing is dropped: a name can be used again."""

LISTINGS = 8
"""How often a torn listing is taken again before the gap is believed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What lies in one record's folder."""

    number: int
    record: Record | None = None
    outcome: Outcome | None = None
    marks: tuple[str, ...] = ()
    """Collectors that have chosen it."""
    doomed: bool = False
    """A collector has found no pin after it had marked it, and deletes its files: no pin can save it any more."""
    paths: tuple[str, ...] = ()
    """Every object in the folder, whether its name means something or not."""

    @property
    def complete(self) -> bool:
        """An outcome speaks for the very body it names, not for one created under its slot later."""
        if self.record is None or self.outcome is None:
            return False
        return self.outcome.record == self.record.writer


@dataclass(frozen=True, slots=True)
class Log:
    """The facts of one observation, and what is derived from them."""

    job: str
    """The job's name."""
    identity: JobIdentity | None
    epochs: tuple[int, ...]
    slots: Mapping[int, Slot]
    unreadable: tuple[str, ...]
    """Objects that should hold a record and do not."""
    chain: tuple[Record, ...]
    """The records that hold the job's history, ascending: linked from the newest one down, and below the
    floor the complete ones that a pin or the retention has kept."""
    gaps: tuple[int, ...]
    """Slots at or above the floor that should hold a record of the chain, or its outcome, and do not."""

    @property
    def newest_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    @property
    def sound(self) -> bool:
        """Whether every record that must be there was read. If not, where the log begins is not known either."""
        return not (self.unreadable or self.gaps)

    @property
    def identity_is_lost(self) -> bool:
        """It is the first thing that is created and the last one that is deleted, after the tombstone was made."""
        return self.identity is None and bool(self.epochs or self.slots) and LAST_EPOCH not in self.epochs

    @property
    def decided(self) -> Record | None:
        """The highest decided record: what a writer's next record follows."""
        return self.chain[-1] if self.chain else None

    @property
    def floor(self) -> int:
        return self.chain[-1].floor if self.chain else 1

    @property
    def next_slot(self) -> int:
        slot = self.chain[-1].slot + 1 if self.chain else 1
        while (taken := self.slots.get(slot)) is not None and taken.record is not None:
            slot += 1  # left there by a run of a deleted job of this name
        return slot

    @property
    def next_timeline(self) -> int:
        """The one that a restore begins: a new job's first, else one above all before."""
        top = self.decided
        return top.timeline + 1 if top is not None and self.head is not None else 1

    @property
    def last_complete(self) -> Record | None:
        return next((r for r in reversed(self.chain) if self.slots[r.slot].complete), None)

    @property
    def head(self) -> Record | None:
        """What a reader sees: the highest complete record that carries state."""
        complete = (r for r in reversed(self.chain) if self.slots[r.slot].complete)
        return next((r for r in complete if r.carries_state), None)

    @property
    def pending(self) -> tuple[Record, ...]:
        """Decided and not carried out, in the order in which that has to happen."""
        above = last.slot if (last := self.last_complete) else 0
        return tuple(r for r in self.chain if r.slot > above)

    @property
    def checkpoints(self) -> tuple[Record, ...]:
        """Complete checkpoints, ascending. One that a collector has marked may have lost files already."""
        return tuple(
            r
            for r in self.chain
            if r.kind == "checkpoint" and self.slots[r.slot].complete and not self.slots[r.slot].marks
        )

    @property
    def void(self) -> tuple[Record, ...]:
        """Records that mean nothing: created in a slot whose record had been collected, or by another job."""
        members = {r.slot for r in self.chain}
        return tuple(
            slot.record
            for number, slot in sorted(self.slots.items())
            if slot.record is not None and number not in members
        )

    @property
    def last_commits(self) -> dict[str, int]:
        """Per sink uid, the highest slot whose output the sink has."""
        outcome = self._last_outcome
        return dict(outcome.last_commits) if outcome else {}

    @property
    def late(self) -> dict[str, tuple[int, ...]]:
        """Per sink uid, the slots abandoned since, which a run that was fenced may deliver all the same."""
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
        """Raises unless every record that must be there was read: nothing may be decided or deleted on
        less."""
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
    slots: Mapping[int, Slot],
    unreadable: Iterable[str] = (),
) -> Log:
    """The log that the facts amount to."""
    uuid = identity.uuid if identity else None
    own = {n: s.record for n, s in slots.items() if s.record is not None and s.record.job == uuid}
    chain: dict[int, Record] = {}
    gaps: list[int] = []
    if own:
        newest = own[max(own)]
        # Linked: each record names the one before it, body and all. So what a zombie created in a slot from
        # the grave is off the chain, whatever it says of itself.
        at: Record | None = newest
        while at is not None:
            chain[at.slot] = at
            link = at.previous
            below = own.get(link.slot) if link and link.slot < at.slot else None
            if below is not None and link is not None and below.writer == link.writer:
                at = below
            else:
                if link is not None and link.slot >= newest.floor:
                    gaps.append(link.slot)
                at = None
        for number, record in own.items():
            if number < newest.floor and slots[number].complete:
                chain.setdefault(number, record)
        complete = max((n for n in chain if slots[n].complete), default=0)
        for number in sorted(chain):
            if number < complete and not slots[number].complete:
                if number >= newest.floor:
                    gaps.append(number)  # carried out in order, so its outcome was overlooked or is lost
                del chain[number]
    # What was carried out was decided: to decide the slot again would do its output twice. And what is missing below may
    # be what it had announced as its floor.
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


def _lost_above(newest: int, slots: Mapping[int, Slot]) -> Iterator[int]:
    """Slots with an outcome and no record, right above the newest record and what another job has left there."""
    for number in count(newest + 1):
        slot = slots.get(number)
        if slot is None or (slot.record is None and slot.outcome is None):
            return
        if slot.record is None:
            yield number


def read_log(store: Store, layout: JobLayout, *, cache: BodyCache | None = None) -> Log:
    """The log as it stands. A listing that missed a record, or met one being deleted, is taken again."""
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
    """Claimed epochs that are still noted, ascending; the newest always is."""
    found = (epoch_of(entry.path) for entry in store.list(layout.epochs))
    return tuple(sorted(epoch for epoch in found if epoch is not None))


def read_claim(store: Store, layout: JobLayout, epoch: int) -> Claim:
    """Who claimed an epoch, and when."""
    path = layout.epoch(epoch)
    return decode(store.read(path), Claim, path)


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
    slots: dict[int, Slot] = {}
    folders: dict[int, list[tuple[str, str, int]]] = {}
    for entry in store.list(layout.log):
        if (found := slot_of(entry.path)) is not None:
            folders.setdefault(found[0], []).append((found[1], entry.path, entry.size))
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
                continue  # collected since it was listed
            except (CorruptError, IncompatibleError):
                unreadable.append(path)
        slots[number] = Slot(
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
    """An immutable body, decoded once."""
    key = (path, size)
    if key not in bodies:
        read = decode(store.read(path), kind, path)
        bodies[key] = as_read(read, store.url) if isinstance(read, Record) else read
    body: B = bodies[key]
    return body

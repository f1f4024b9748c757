"""A job's log as one process reads it, and what follows from it: the chain, the head, the pending and the void records.

`assemble` is pure: from the same facts a writer, a reader and a collector get the same log. Nothing here depends on a
clock, or on the order in which listings return.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from sys import intern
from typing import Any, TypeVar, cast

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, UnavailableError, UsageError
from stateflow.format.layout import LAST_EPOCH, JobLayout, epoch_of, slot_of
from stateflow.format.records import (
    DeadMark,
    EpochClaim,
    JobIdentity,
    Outcome,
    Prepared,
    Record,
    ShownState,
    Spans,
    decode,
)
from stateflow.format.references import as_read
from stateflow.storage.store import Entry, Store
from stateflow.storage.transfer import at_distance

_log = logging.getLogger(__name__)

BodyCache = MutableMapping[tuple[str, int], Any]
"""Decoded bodies by path and size. Reading drops a body that the last listing lacks, because a name can be used again."""

LISTINGS = 8
"""How often to list before a gap counts as real: a listing may miss a record that was there."""


def half_deleted(job: str) -> str:
    """What to do about a job whose deletion has broken off."""
    return f"job {job!r} is half deleted: `stateflow delete {job} --yes` finishes it"


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
    unreadable: tuple[str, ...] = ()
    """Paths of its objects that should hold the record or the outcome, and cannot be decoded."""

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
    whole: bool = True
    """Whether every record's folder was read. False when only the newest were: then gaps below them are unknown."""
    trace: str = ""
    """Of a log without any record: what there is that only a job with records has; empty for a new job."""

    @property
    def newest_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    @property
    def sound(self) -> bool:
        """Whether every record that must exist was read. Otherwise the floor is not known either."""
        return self.whole and not (self.unreadable or self.gaps or self.trace)

    @property
    def identity_is_lost(self) -> bool:
        """Whether the job's identity is missing. It is created first, and deleted last, when the job has a tombstone."""
        return self.identity is None and bool(self.epochs or self.slots) and LAST_EPOCH not in self.epochs

    @property
    def half_deleted(self) -> str:
        """What to do about a job whose deletion has broken off; empty for any other job."""
        if LAST_EPOCH not in self.epochs or (self.identity is None and not self.slots):
            return ""
        return half_deleted(self.job)

    @property
    def decided(self) -> Record | None:
        """The highest decided record: a writer's next record follows it."""
        return self.chain[-1] if self.chain else None

    @property
    def floor(self) -> int:
        return self.chain[-1].floor if self.chain else 1

    @property
    def kept(self) -> tuple[int, ...]:
        """Slots below the floor whose records nobody may delete: the newest record says so."""
        return self.chain[-1].kept if self.chain else ()

    @property
    def lost(self) -> tuple[int, ...]:
        """Those of `kept` that have no complete record: it was damaged or deleted, or the listing missed it."""
        members = {record.slot for record in self.chain}
        return tuple(slot for slot in self.kept if slot not in members)

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
    def pending(self) -> tuple[Record, ...]:
        """The records that are decided but not carried out, in the order in which they have to be."""
        above = last.slot if (last := self.last_complete) else 0
        return tuple(r for r in self.chain if r.slot > above)

    @property
    def last_erasure(self) -> int:
        """The slot of the newest record that has erased a key, 0 without one: what a pin keeps below it still holds the key. One that is not
        carried out has erased nothing: the head, which all read until then, lies below it."""
        erasures = (r.slot for r in self.chain if r.kind == "erase" and self.slots[r.slot].complete)
        return max(erasures, default=0)

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
    def newest_sinks(self) -> dict[str, Prepared]:
        """By sink uid: the newest prepared output."""
        newest: dict[str, Prepared] = {}
        for record in self.chain:
            newest.update(record.sinks)
        return newest

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
    def lacks(self) -> dict[str, Spans]:
        """By sink uid: the slots whose output a way back has taken out of it."""
        outcome = self._last_outcome
        return dict(outcome.lacks) if outcome else {}

    def lacked_at(self, slot: int) -> dict[str, Spans] | None:
        """The same behind a slot; None where its record is gone."""
        if slot == 0:
            return {}
        outcome = self.slots[slot].outcome if slot in self.slots else None
        return dict(outcome.lacks) if outcome else None

    @property
    def feeds(self) -> tuple[ShownState, ...]:
        """What the tables of feeds show."""
        outcome = self._last_outcome
        return outcome.feeds if outcome else ()

    @property
    def _last_outcome(self) -> Outcome | None:
        last = self.last_complete
        return self.slots[last.slot].outcome if last else None

    def member(self, slot: int) -> Record | None:
        """The record of a slot on the chain, if there is one."""
        return next((record for record in self.chain if record.slot == slot), None)

    def record(self, slot: int) -> Record:
        """The same; NotFoundError names those that there are."""
        if (found := self.member(slot)) is not None:
            return found
        raise NotFoundError(
            f"job {self.job!r} has no checkpoint {slot} (any more): it keeps "
            f"{', '.join(str(r.slot) for r in self.chain if r.carries_state) or 'none'}; "
            f"`stateflow checkpoints {self.job}` lists them"
        )

    @property
    def damage(self) -> str:
        """What of the log cannot be read, or is missing, as a part of a sentence; empty if nothing is."""
        if self.unreadable:
            return f"{self.unreadable[0]} cannot be read"
        if self.gaps:
            return f"slot {self.gaps[0]} has no record, although its log starts at {self.floor}"
        if self.trace:
            return f"it has no record any more, although {self.trace} tells of some"
        return ""

    def require_identity(self) -> None:
        """CorruptError when the job is there and nobody can say who it is."""
        if self.identity_is_lost:
            raise CorruptError(
                f"{self.job}/job, which says who job {self.job!r} is, is missing, so nothing of it may be decided or deleted: "
                "put it back from a copy of the store"
            )

    def require_sound(self) -> None:
        """Raises unless every record that must exist was read. Without them nothing may be decided or deleted."""
        if not self.whole:
            raise UsageError(
                f"only the newest records of job {self.job!r} were read, so nothing of it may be decided or deleted: "
                "read the whole log"
            )
        self.require_identity()
        if self.damage:
            # Without its records a run would begin with slot 1, and take the outputs that have later slots for done.
            raise CorruptError(
                f"nothing of job {self.job!r} may be decided or deleted, because {self.damage}: run `stateflow verify {self.job}`"
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


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """One record's folder, as a listing shows it."""

    slot: int
    entries: tuple[Entry, ...]


def _one_by_one(
    read: Callable[[RecordFolder], SlotContent], folders: Sequence[RecordFolder]
) -> Iterable[SlotContent]:
    return map(read, folders)


class SlotCache:
    """Keeps a job's slots from one reading to the next: it does not read a folder with the same objects again.

    `slim` removes the parts of a slot that this reader never uses, before the next slot is read. `each` calls the reading
    function for several folders, perhaps in parallel. It gets the newest folders first.
    """

    def __init__(
        self,
        slim: Callable[[SlotContent], SlotContent] = lambda slot: slot,
        each: Callable[
            [Callable[[RecordFolder], SlotContent], Sequence[RecordFolder]], Iterable[SlotContent]
        ] = _one_by_one,
    ) -> None:
        self._slim, self._each = slim, each
        self._uuid = ""
        self._slots: dict[int, tuple[tuple[tuple[str, int], ...], SlotContent]] = {}

    def read(
        self, uuid: str, folders: Sequence[RecordFolder], read: Callable[[RecordFolder], SlotContent]
    ) -> dict[int, SlotContent]:
        if uuid != self._uuid:
            # A new job under the name of a deleted one may have other bodies with the same names and sizes.
            self._uuid, self._slots = uuid, {}
        objects = {
            folder.slot: tuple((intern(_name(entry)), entry.size) for entry in folder.entries)
            for folder in folders
        }
        slots = {
            number: self._slots[number]
            for number, names in objects.items()
            if number in self._slots and self._slots[number][0] == names
        }
        changed = [folder for folder in reversed(folders) if folder.slot not in slots]
        for slot in self._each(lambda folder: self._slim(read(folder)), changed):
            slots[slot.number] = (objects[slot.number], slot)
        # One put back in place of a damaged one has the same name and size.
        self._slots = {number: kept for number, kept in slots.items() if not kept[1].unreadable}
        return {number: slots[number][1] for number in objects}


def read_log(
    store: Store,
    layout: JobLayout,
    *,
    cache: BodyCache | None = None,
    slots: SlotCache | None = None,
    newest: int | None = None,
    listings: int = LISTINGS,
) -> Log:
    """The current log. It lists again when a listing missed a record, or ran while one was being deleted.

    `slots` keeps what the caller needs of each slot from one reading to the next; without it, `cache` keeps whole bodies.
    `newest` reads only that many of the newest slots: nobody may decide anything from such a log.
    """
    bodies: BodyCache | None = None if slots is not None else {} if cache is None else cache
    for _ in range(listings):
        log = _observe(store, layout, bodies, slots, newest)
        if not log.gaps and not log.trace:
            break
    return _with_kept(store, layout, log) if log.whole and log.lost else log


def read_identity(store: Store, layout: JobLayout) -> JobIdentity | None:
    """Who the job is; None before its first claim. CorruptError for the folder of another job: its records name the files of that one, so
    whoever deletes or collects one of the two takes the state of both."""
    identity = read_if_there(store, layout.identity, JobIdentity)
    if identity is not None and identity.name != layout.job:
        raise CorruptError(
            f"{layout.identity} in {store.url} is that of job {identity.name!r}, whose folder somebody has renamed or copied: name it "
            f"{identity.name} again, or remove the copy, and take its state to another job with `stateflow restore {layout.job} FILE:PIPELINE "
            f"--from latest --from-job {identity.name}`"
        )
    return identity


def read_epochs(store: Store, layout: JobLayout) -> tuple[int, ...]:
    """Claimed epochs whose claims were not collected, ascending; the newest is always among them."""
    epochs = (epoch_of(entry.path) for entry in store.list(layout.epochs))
    return tuple(sorted(epoch for epoch in epochs if epoch is not None))


def read_epoch_claim(store: Store, layout: JobLayout, epoch: int) -> EpochClaim:
    """Who claimed an epoch, and when."""
    path = layout.epoch(epoch)
    return decode(store.read(path), EpochClaim, path)


def list_jobs(store: Store) -> list[str]:
    """The names of the jobs of a root. A job that has lost its identity is among them, so that somebody hears of it; so is a folder that
    could be a job's, and that the store does not show."""

    def counts(name: str) -> bool:
        try:
            return is_job(store, name)
        except UnavailableError as error:
            _log.warning("whether the folder %s of %s is a job is not known: %s", name, store.url, error)
            return True

    names = sorted(store.folders(""))
    answers = at_distance(store, counts, names)
    return [name for name, answer in zip(names, answers, strict=True) if answer]


def names_by_id(store: Store) -> dict[str, str]:
    """The names of the jobs of a root by their ids. A job whose identity cannot be read is left out: whatever runs it refuses it."""

    def identity(name: str) -> JobIdentity | None:
        try:
            return read_identity(store, JobLayout(name))
        except (CorruptError, IncompatibleError, UnavailableError):
            return None

    return {known.uuid: known.name for known in at_distance(store, identity, list_jobs(store)) if known}


def is_job(store: Store, name: str) -> bool:
    """Whether a folder of a root is a job's: it has an identity, or claims or records that only a job has. Of a deleted job nothing stays
    but its tombstone."""
    try:
        layout = JobLayout(name)
    except UsageError:
        return False
    if any(entry.path == layout.identity for entry in store.list(layout.identity)):
        return True
    if epochs := read_epochs(store, layout):
        return LAST_EPOCH not in epochs
    return any(slot_of(entry.path) is not None for entry in store.list(layout.log))


def has_tombstone(store: Store, layout: JobLayout) -> bool:
    """Whether a job of the name was deleted, and none has been made since."""
    return LAST_EPOCH in read_epochs(store, layout)


def _observe(
    store: Store, layout: JobLayout, bodies: BodyCache | None, cache: SlotCache | None, newest: int | None
) -> Log:
    identity = read_identity(store, layout)
    epochs = read_epochs(store, layout)
    folders = _folders(store, layout)
    chosen = folders if newest is None else folders[-newest:]

    def read(folder: RecordFolder) -> SlotContent:
        return _read_slot(store, folder, bodies)

    if cache is not None:
        slots = cache.read(identity.uuid if identity else "", chosen, read)
    else:
        slots = {slot.number: slot for slot in at_distance(store, read, chosen)}
    if bodies is not None:
        drop_unlisted(bodies, layout.log, (entry for folder in chosen for entry in folder.entries))
    unreadable = [path for slot in slots.values() for path in slot.unreadable]
    log = assemble(layout.job, identity, epochs, slots, unreadable)
    if not folders and identity is not None and LAST_EPOCH not in epochs:
        return replace(log, trace=_trace(store, layout))
    if len(chosen) == len(folders):
        return log
    # A slot below the lowest one that was read is not missing: the caller did not ask for it.
    lowest = min(slots, default=0)
    return replace(log, whole=False, gaps=tuple(gap for gap in log.gaps if gap >= lowest))


def _trace(store: Store, layout: JobLayout) -> str:
    """What outlives records: lines of the history, and what a run has reported of a batch. Both are written behind a complete record."""
    listed = [*store.list(layout.statistics), *store.list(layout.progress_of_runs)]
    return next((entry.path for entry in listed), "")


def _with_kept(store: Store, layout: JobLayout, log: Log) -> Log:
    """The log with what there is of the kept records below its floor that the listing lacks: there a gap does not show."""
    slots = dict(log.slots)
    unreadable = list(log.unreadable)
    for slot in log.lost:
        paths = (layout.pending(slot), layout.metadata(slot))
        found = _read_slot(store, RecordFolder(slot, tuple(Entry(path, 0) for path in paths)), None)
        unreadable += [path for path in found.unreadable if path not in unreadable]
        if found.record is not None or found.outcome is not None:
            slots[slot] = found
    return assemble(log.job, log.identity, log.epochs, slots, unreadable)


def _folders(store: Store, layout: JobLayout) -> list[RecordFolder]:
    """The folders of all records, ascending by slot."""
    entries: dict[int, list[Entry]] = {}
    for entry in store.list(layout.log):
        if (parts := slot_of(entry.path)) is not None:
            entries.setdefault(parts[0], []).append(entry)
    return [RecordFolder(slot, tuple(entries[slot])) for slot in sorted(entries)]


def _read_slot(store: Store, folder: RecordFolder, bodies: BodyCache | None) -> SlotContent:
    named = {_name(entry): entry for entry in folder.entries}
    unreadable: list[str] = []

    def body(name: str, kind: type[Numbered]) -> Numbered | None:
        entry = named.get(name)
        if entry is None:
            return None
        try:
            found = read_body(store, entry.path, entry.size, kind, bodies)
        except NotFoundError:
            return None  # collected since the listing
        except (CorruptError, IncompatibleError):
            unreadable.append(entry.path)
            return None
        if found.slot != folder.slot:
            unreadable.append(entry.path)  # no stateflow has put it there
            return None
        return found

    def dooms(name: str) -> bool:
        entry = named[name]
        try:
            mark = read_body(store, entry.path, entry.size, DeadMark, bodies)
        except NotFoundError:
            return True  # deleted since the listing, behind its record
        except (CorruptError, IncompatibleError):
            return False
        return mark.collector == name.removeprefix("_doomed-")

    return SlotContent(
        number=folder.slot,
        record=body("_pending", Record),
        outcome=body("_metadata", Outcome),
        marks=tuple(name.removeprefix("_dead-") for name in named if name.startswith("_dead-")),
        doomed=any(dooms(name) for name in named if name.startswith("_doomed-")),
        paths=tuple(entry.path for entry in folder.entries),
        unreadable=tuple(unreadable),
    )


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


B = TypeVar("B", bound=msgspec.Struct)
Numbered = TypeVar("Numbered", Record, Outcome)


def read_if_there(store: Store, path: str, kind: type[B]) -> B | None:
    """The body at a path; None where there is none."""
    try:
        return decode(store.read(path), kind, path)
    except NotFoundError:
        return None


def drop_unlisted(bodies: BodyCache, prefix: str, entries: Iterable[Entry]) -> None:
    """Drops the bodies below `prefix` that a listing of it lacks. A run lives for months, and what it has read goes."""
    listed = {(entry.path, entry.size) for entry in entries}
    for key in [key for key in bodies if key[0].startswith(prefix) and key not in listed]:
        del bodies[key]


def read_body(store: Store, path: str, size: int, kind: type[B], bodies: BodyCache | None) -> B:
    """An immutable body. With a cache it is decoded only once."""
    key = (path, size)
    if bodies is not None and key in bodies:
        cached: B = bodies[key]
        return cached
    body = decode(store.read(path), kind, path)
    if isinstance(body, Record):
        body = cast(B, as_read(body, store.url))
    if bodies is not None:
        bodies[key] = body
    return body

"""Deleting exactly what nothing needs: subsumed records and their files, and the remains of crashed runs.

A plan is pure. `collect` marks the records it has chosen, reads the pins and the log again, and only then deletes. So it
needs no lock: runs, makers of pins and other collectors need not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stateflow.checkpoint.log import BodyCache, Log
from stateflow.checkpoint.pins import damage_of, list_pins, read_with_pins
from stateflow.checkpoint.retention import YOUNG, Retention, restorable, roots
from stateflow.checkpoint.statistics import keep_history
from stateflow.errors import CorruptError, FencedError, IncompatibleError, StateflowError
from stateflow.format.layout import JobLayout, epoch_of, origin_of
from stateflow.format.records import DeadMark, Pin, Record, decode, encode
from stateflow.format.references import bases, job_files
from stateflow.storage.local import in_held_root
from stateflow.storage.store import Entry, Store, create_once, is_there
from stateflow.storage.transfer import at_distance

_log = logging.getLogger(__name__)

Reason = Literal["subsumed", "orphan"]
_FEW, _MARKERS = 8, 16
ANNOUNCED = "announced"
"""Reason for a checkpoint that nobody asked to keep: the newest record announced that it stays."""
DisposeSavepoint = Callable[[str], str | None]
"""Deletes a savepoint by its URL. The job has claimed it, and its records no longer name it. It gives why the savepoint stays, if it is
not the job's to delete in this root."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """One file that no record needs."""

    path: str
    size: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a collection would delete, and what it keeps and why."""

    records: Mapping[int, str]
    """Slots of the records to delete, ascending, with the reason: subsumed, void, residue."""
    files: tuple[Garbage, ...]
    savepoints: tuple[str, ...]
    """Claimed savepoints that no record names any more."""
    leftovers: tuple[str, ...]
    """Claims and control files of past epochs, and pins of records that are gone."""
    kept: Mapping[int, str]
    """Slots of the records to keep, with the reason."""

    @property
    def announced(self) -> tuple[int, ...]:
        """Checkpoints that only the job's own retention keeps: they may go once a run has announced that it keeps less."""
        return tuple(slot for slot, reason in self.kept.items() if reason == ANNOUNCED)

    @property
    def young(self) -> tuple[int, ...]:
        """Checkpoints that only their age keeps."""
        return tuple(slot for slot, reason in self.kept.items() if reason == YOUNG)

    @property
    def bytes_by_reason(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file in self.files:
            sizes[file.reason] = sizes.get(file.reason, 0) + file.size
        return sizes

    @property
    def empty(self) -> bool:
        return not (self.records or self.files or self.savepoints or self.leftovers)


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What a collection deleted."""

    removed: tuple[int, ...]
    files: int
    bytes_by_reason: Mapping[str, int]
    withdrawn: tuple[int, ...]
    """Records that were marked, but that a pin or the log turned out to need."""
    savepoints: tuple[str, ...]
    """Claimed savepoints that no record names any more, and that `dispose` deleted."""
    undisposed: Mapping[str, str] = field(default_factory=dict)
    """Savepoints that `dispose` failed to delete, with the reason. Their records stay for the next collection."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Savepoints that are not the job's to delete in this root, with the reason. No record names them any more."""
    lost: tuple[int, ...] = ()
    """Checkpoints that the retention keeps, and that somebody has deleted."""
    there: frozenset[int] = frozenset()
    """Slots that the log still has."""

    @property
    def warnings(self) -> list[str]:
        return [
            *(
                f"{url} stays, and so do the records that name it: {why}"
                for url, why in self.undisposed.items()
            ),
            *(f"{url} stays: {why}" for url, why in self.left.items()),
        ]


def candidates(log: Log, pins: Iterable[Pin], retained: Retention | int) -> dict[int, str]:
    """Slots whose records may be deleted, ascending, with the reason."""
    needed = roots(log, pins, retained)
    void = {record.slot for record in log.void}
    announced = frozenset(log.kept)
    reasons: dict[int, str] = {}
    for number, slot in sorted(log.slots.items()):
        # At or above the floor a missing record means an incomplete listing. So nothing there may be deleted before
        # a record has announced a higher floor; nor what the newest record keeps below it, whatever this collector would keep.
        if number >= log.floor or number in announced or number in needed:
            continue
        reasons[number] = "residue" if slot.record is None else "void" if number in void else "subsumed"
    return reasons


def plan(
    log: Log,
    pins: Iterable[Pin],
    retained: Retention | int,
    *,
    chosen: Iterable[int] | None = None,
    files: Iterable[Entry] = (),
    others: Iterable[Entry] = (),
) -> CollectionPlan:
    """What may be deleted, from the facts of one moment.

    With `chosen` only records in these slots. `files` are the listings of `shared/` and `staged/`, for orphans; `others` are the
    listings of claims and control files.
    """
    pins = list(pins)
    allowed = candidates(log, pins, retained)
    selected = set(allowed) if chosen is None else set(chosen)
    removals = {slot: reason for slot, reason in allowed.items() if slot in selected}
    removed_records = [
        slot.record for number, slot in log.slots.items() if number in removals and slot.record is not None
    ]
    live_records = [
        slot.record
        for number, slot in log.slots.items()
        if number not in removals and slot.record is not None
    ]
    reached = job_files(live_records)
    garbage: dict[str, Garbage] = {}
    for path, size in job_files(removed_records).items():
        # A record that names a file outside the job's own folders is damaged or forged: leave that file alone.
        if path not in reached and _is_file_of(log.job, path):
            garbage[path] = Garbage(path, size, "subsumed")
    for entry in files:
        if entry.path not in reached and entry.path not in garbage and is_over(log, entry.path):
            garbage[entry.path] = Garbage(entry.path, entry.size, "orphan")
    return CollectionPlan(
        records=removals,
        files=tuple(garbage[path] for path in sorted(garbage)),
        savepoints=tuple(sorted(bases(removed_records) - bases(live_records))),
        leftovers=tuple(sorted([*_old_claims(log, others), *_dangling(log, pins)])),
        kept=_kept(log, pins, retained),
    )


def _kept(log: Log, pins: Iterable[Pin], retained: Retention | int) -> dict[int, str]:
    stay = {*log.kept, *(record.slot for record in restorable(log) if record.slot >= log.floor)}
    return dict.fromkeys(sorted(stay), ANNOUNCED) | roots(log, pins, retained)


def is_over(log: Log, path: str) -> bool:
    """Whether no future record can name the file, by the epoch and slot in the file's name.

    A claim of a higher epoch proves nothing: the older run may be about to decide. A record of a higher epoch proves it:
    it is in the slot that the older run would need.
    """
    origin = origin_of(path)
    if origin is None:
        return False
    epoch, slot = origin
    return any(r.epoch > epoch or (r.epoch == epoch and r.slot > slot) for r in log.chain)


def inspect(
    store: Store, layout: JobLayout, retained: Retention | int, *, without: Collection[str] = ()
) -> CollectionPlan:
    """What `collect` with orphans would delete now, or once the pins `without` are released. It deletes nothing."""
    pins, log = _observed(store, layout, None, without)
    files, others = _files(store, layout), _others(store, layout)
    return plan(log, pins, retained, files=files, others=others)


@in_held_root
def collect(
    store: Store,
    layout: JobLayout,
    *,
    collector: str,
    retained: Retention | int,
    orphans: bool,
    cache: BodyCache | None = None,
    dispose: DisposeSavepoint | None = None,
    job: str = "",
) -> CollectionReport:
    """Deletes what no kept record needs. `collector` is a name that was never used before.

    `job`: the UUID of the job that `cache` was filled from, if that was before. It refuses another job.
    """
    cache = {} if cache is None else cache
    pins, log = _observed(store, layout, cache)
    if job and (log.identity is None or log.identity.uuid != job):
        raise FencedError(
            f"another job {layout.job!r} is in {store.url} by now, and nothing of it is deleted: find out who has moved the root"
        )
    chosen = tuple(candidates(log, pins, retained))
    # A doomed record keeps the mark of the collector that doomed it until the record is gone.
    marked = [slot for slot in chosen if not log.slots[slot].doomed]
    _mark(store, {layout.dead(slot, collector): slot for slot in marked}, collector)
    if chosen:
        # A collector marks first and then reads the pins. Whoever pins does it the other way round, so one of the two
        # sees the other. The log is read after the pins, because a restore first decides its record and then releases
        # its pin: whoever misses the pin must find the record.
        pins, log = _observed(store, layout, cache)
    files = _files(store, layout) if orphans else []
    others = _others(store, layout) if orphans else []
    confirmed = [slot for slot in chosen if slot in marked or (slot in log.slots and log.slots[slot].doomed)]
    final_plan = plan(log, pins, retained, chosen=confirmed, files=files, others=others)
    withdrawn = tuple(slot for slot in marked if slot not in final_plan.records)
    # Only this collector's marks: another collector may be deleting the record, and its mark warns whoever pins it.
    store.delete([layout.dead(slot, collector) for slot in withdrawn])
    _free(store, layout, log, pins, collector)
    keep_history(store, layout, log, final_plan.records)
    # The doomed mark comes before the deletion. If this collector dies halfway, the next one finds a record without some
    # of its files and, perhaps, a pin whose maker died too. Without the mark it would have to keep that pin.
    doomed = [slot for slot in final_plan.records if not log.slots[slot].doomed]
    if spared := set(doomed) - _doom(store, layout, doomed, collector):
        store.delete([layout.dead(slot, collector) for slot in sorted(spared)])
        withdrawn = (*withdrawn, *sorted(spared))
        confirmed = [slot for slot in final_plan.records if slot not in spared]
        final_plan = plan(log, pins, retained, chosen=confirmed, files=files, others=others)
    store.delete([file.path for file in final_plan.files])
    disposals = (
        dispose_all(final_plan.savepoints, dispose)
        if dispose is not None
        else Disposals(final_plan.savepoints)
    )
    # Only records tell which savepoints were claimed. So a record stays, doomed, while its savepoint could not be deleted.
    removed = tuple(
        slot for slot in final_plan.records if not _names(log.slots[slot].record, disposals.undisposed)
    )
    for slot in removed:
        # Oldest first, and the record before its outcome and marks. So at every point in between it is still a
        # candidate: never a record that waits to be carried out, nor one without a mark that somebody could pin.
        store.delete([layout.pending(slot)])
        mine = (layout.dead(slot, collector), layout.doomed(slot, collector))
        paths = {*log.slots[slot].paths, *mine}
        store.delete(sorted(paths - {layout.pending(slot)}, key=lambda p: ("_dead-" in p, p)))
    store.delete(final_plan.leftovers)
    return CollectionReport(
        removed=removed,
        files=len(final_plan.files),
        bytes_by_reason=final_plan.bytes_by_reason,
        withdrawn=withdrawn,
        savepoints=disposals.disposed,
        undisposed=disposals.undisposed,
        left=disposals.left,
        lost=log.lost,
        there=frozenset(log.slots).difference(removed),
    )


class Disposals(NamedTuple):
    """What became of savepoints that no record names any more."""

    disposed: tuple[str, ...]
    undisposed: Mapping[str, str] = {}
    """Those that could not be deleted, with the reason."""
    left: Mapping[str, str] = {}
    """Those that are not the job's to delete in this root, with the reason."""


def dispose_all(savepoints: Sequence[str], dispose: DisposeSavepoint) -> Disposals:
    """Disposes of each savepoint."""
    failed, left = {}, {}
    for url in savepoints:
        try:
            if why := dispose(url):
                left[url] = why
        except StateflowError as error:
            failed[url] = str(error)
    return Disposals(tuple(url for url in savepoints if url not in failed and url not in left), failed, left)


def _names(record: Record | None, savepoints: Mapping[str, str]) -> bool:
    return record is not None and any(url in savepoints for url in bases([record]))


def _observed(
    store: Store, layout: JobLayout, cache: BodyCache | None, without: Collection[str] = ()
) -> tuple[list[Pin], Log]:
    """The pins, and then the log. Raises when a record that a pin keeps is damaged."""
    pins = list_pins(store, layout, cache=cache, without=without)
    log, damaged = read_with_pins(store, layout, pins, cache=cache)
    log.require_sound()
    for pin in damaged:
        remedy = (
            f"`stateflow tag {layout.job} {pin.name} --remove`"
            if pin.kind == "tag"
            else f"`stateflow gc {layout.job} --release {pin.id} --yes`"
        )
        raise CorruptError(
            f"{damage_of(layout, pin)}, and nothing of the job may be deleted: put it back from a copy of the store, or "
            f"give the checkpoint up with {remedy}"
        )
    for slot in log.lost:
        if slot in log.slots:
            raise CorruptError(
                f"{damage_of(layout, slot)}, and nothing of the job may be deleted: put it back from a copy of the store, or "
                f"give the checkpoint up: remove the folder {layout.slot(slot)} of the store"
            )
        _log.warning("%s: somebody has deleted it", damage_of(layout, slot))
    return pins, log


def _mark(store: Store, marks: Mapping[str, int], collector: str) -> list[int]:
    """Creates marks, in any order. Each waits for the disk, so it creates many at once. Gives the slots whose mark nobody else had
    created."""

    def create(path: str) -> bool:
        body = encode(DeadMark(slot=marks[path], collector=collector))
        return create_once(store, path, body) == body

    if len(marks) <= _FEW:
        own = list(map(create, marks))
    else:
        with ThreadPoolExecutor(_MARKERS, "stateflow-marks") as pool:
            own = list(pool.map(create, marks))
    return [slot for slot, created in zip(marks.values(), own, strict=True) if created]


def _doom(store: Store, layout: JobLayout, slots: Collection[int], collector: str) -> set[int]:
    """Dooms records that this collector has marked. Gives the slots of those that it may delete."""
    own = _mark(store, {layout.doomed(slot, collector): slot for slot in slots}, collector)

    def is_marked(slot: int) -> bool:
        return is_there(store, layout.dead(slot, collector))

    # Another collector may have freed the record of the mark and, when nobody pinned it any more, have deleted it, with what said so.
    # A restore in between may have taken over its files.
    may = {slot for slot, marked in zip(own, at_distance(store, is_marked, own), strict=True) if marked}
    store.delete([layout.doomed(slot, collector) for slot in own if slot not in may])
    return may


def _free(store: Store, layout: JobLayout, log: Log, pins: Iterable[Pin], collector: str) -> None:
    """Takes the marks of other collectors off pinned records. One that has died withdraws no mark, and nobody could pin the record again.

    It may as well live, and have seen no pin: then nobody who pins the record now may miss its mark. So the name under which it would
    doom the record is taken first. Only one of the two can create that.
    """
    for pin, other in marks_on_pinned(log, pins):
        if other == collector:
            continue  # withdrawn a moment ago
        path = layout.doomed(pin.slot, other)
        there = create_once(store, path, encode(DeadMark(slot=pin.slot, collector=collector)))
        try:
            frees = decode(there, DeadMark, path).collector != other
        except (CorruptError, IncompatibleError) as error:
            # Whether the other one has doomed the record is not known any more. All else can be collected.
            _log.warning("the mark on %s stays: %s", layout.slot(pin.slot), error)
            continue
        if frees:
            store.delete([layout.dead(pin.slot, other)])


def marks_on_pinned(log: Log, pins: Iterable[Pin]) -> Iterator[tuple[Pin, str]]:
    """The collectors whose marks are on pinned records that nobody has doomed, each with a pin of the record."""
    for slot, pin in sorted({pin.slot: pin for pin in pins}.items()):
        content = log.slots.get(slot)
        if content is not None and content.record is not None and not content.doomed:
            yield from ((pin, collector) for collector in content.marks)


def _is_file_of(job: str, path: str) -> bool:
    layout = JobLayout(job)
    return path.startswith((layout.shared, layout.staged)) and ".." not in path.split("/")


def _files(store: Store, layout: JobLayout) -> list[Entry]:
    return [*store.list(layout.shared), *store.list(layout.staged)]


def _others(store: Store, layout: JobLayout) -> list[Entry]:
    return [*store.list(layout.epochs), *store.list(layout.control)]


def _old_claims(log: Log, others: Iterable[Entry]) -> list[str]:
    top = log.decided
    if top is None:
        return []
    paths = []
    for entry in others:
        epoch = epoch_of(entry.path)
        if epoch is None:
            _, _, digits = entry.path.rpartition("-")
            epoch = int(digits) if digits.isdigit() else None
        # The claim of the newest epoch that has a record stays, and so does every newer one.
        if epoch is not None and epoch < top.epoch:
            paths.append(entry.path)
    return paths


def _dangling(log: Log, pins: Iterable[Pin]) -> list[str]:
    layout = JobLayout(log.job)
    members = {record.slot for record in log.chain}
    # Below the floor no record ever appears again: the attempt to pin failed, and its maker died before it removed the pin.
    return [
        layout.pin(p.id)
        for p in pins
        if p.slot < log.floor and (p.slot not in members or log.slots[p.slot].doomed)
    ]


def unreached(log: Log, files: Iterable[Entry]) -> list[Entry]:
    """Files that no record names and no future record can name."""
    records: list[Record] = [slot.record for slot in log.slots.values() if slot.record is not None]
    reached = job_files(records)
    return [entry for entry in files if entry.path not in reached and is_over(log, entry.path)]

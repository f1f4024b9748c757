"""Deleting exactly what nothing reaches: subsumed records and their files, and what crashed runs left behind.

A plan is pure. The executor marks what it has chosen, reads the pins, looks at the log again, and only then
deletes, so that it needs no lock: neither a run, nor a pinner, nor another collector has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from stateflow.checkpoint.log import BodyCache, Log
from stateflow.checkpoint.pins import damage_of, list_pins, read_kept
from stateflow.checkpoint.retention import roots
from stateflow.checkpoint.statistics import keep_history
from stateflow.errors import CorruptError, StateflowError
from stateflow.format.layout import JobLayout, epoch_of, origin_of
from stateflow.format.records import DeadMark, Pin, Record, encode
from stateflow.format.references import bases, job_files
from stateflow.storage.store import Entry, Store, create_once

Reason = Literal["subsumed", "orphan"]
_FEW, _MARKERS = 8, 16
DisposeSavepoint = Callable[[str], None]
"""Deletes a savepoint, by URL, that the job has claimed and no longer names."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """One file that nothing reaches."""

    path: str
    size: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """What a collection would delete, and what it keeps and why."""

    records: Mapping[int, str]
    """Slots whose records go, ascending, each with the reason: subsumed, void, residue."""
    files: tuple[Garbage, ...]
    savepoints: tuple[str, ...]
    """Claimed savepoints that no record names any more."""
    leftovers: tuple[str, ...]
    """Claims and control files of epochs that are over, and pins of records that are gone."""
    kept: Mapping[int, str]
    """Roots, each with the reason."""

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
    """Records that were chosen and then found pinned, or needed after all."""
    savepoints: tuple[str, ...]
    """Claimed savepoints that no record names any more, disposed of when a way to do so was given."""
    undisposed: Mapping[str, str] = field(default_factory=dict)
    """Those that could not be, with the reason; the records that name them stay, for the next collection."""


def candidates(log: Log, pins: Iterable[Pin], retained: int) -> dict[int, str]:
    """Slots whose records may go, ascending, each with the reason."""
    kept = roots(log, pins, retained)
    void = {record.slot for record in log.void}
    found: dict[int, str] = {}
    for number, slot in sorted(log.slots.items()):
        # Above the floor a missing record means a torn listing, so nothing there may go before a record has
        # said so.
        if number >= log.floor or number in kept:
            continue
        found[number] = "residue" if slot.record is None else "void" if number in void else "subsumed"
    return found


def plan(
    log: Log,
    pins: Iterable[Pin],
    retained: int,
    *,
    chosen: Iterable[int] | None = None,
    files: Iterable[Entry] = (),
    others: Iterable[Entry] = (),
) -> Plan:
    """What may go, given the facts of one moment.

    Only slots in `chosen` go, if it is given. `files` are the listings of `shared/` and `staged/`, for
    orphans; `others` those of claims and control files.
    """
    pins = list(pins)
    may_go = candidates(log, pins, retained)
    picked = set(may_go) if chosen is None else set(chosen)
    going = {slot: reason for slot, reason in may_go.items() if slot in picked}
    gone = [slot.record for number, slot in log.slots.items() if number in going and slot.record is not None]
    live = [
        slot.record for number, slot in log.slots.items() if number not in going and slot.record is not None
    ]
    reached = job_files(live)
    garbage: dict[str, Garbage] = {}
    for path, size in job_files(gone).items():
        # A record that names a file outside the job's own folders is damaged or forged: not ours to delete.
        if path not in reached and _is_file_of(log.job, path):
            garbage[path] = Garbage(path, size, "subsumed")
    for entry in files:
        if entry.path not in reached and entry.path not in garbage and is_over(log, entry.path):
            garbage[entry.path] = Garbage(entry.path, entry.size, "orphan")
    return Plan(
        records=going,
        files=tuple(garbage[path] for path in sorted(garbage)),
        savepoints=tuple(sorted(bases(gone) - bases(live))),
        leftovers=tuple(sorted([*_old_claims(log, others), *_dangling(log, pins)])),
        kept=roots(log, pins, retained),
    )


def is_over(log: Log, path: str) -> bool:
    """Whether no record that is yet to be decided can name a file, going by the epoch and slot in its name.

    A claim of a higher epoch proves nothing: the older run may be about to decide. A record of a higher epoch
    does, for it stands in the slot that the older run would need.
    """
    origin = origin_of(path)
    if origin is None:
        return False
    epoch, slot = origin
    return any(r.epoch > epoch or (r.epoch == epoch and r.slot > slot) for r in log.chain)


def inspect(store: Store, layout: JobLayout, retained: int, *, cache: BodyCache | None = None) -> Plan:
    """What `collect` with orphans would delete now; deletes nothing."""
    pins, log = _observed(store, layout, cache)
    return plan(log, pins, retained, files=_files(store, layout), others=_others(store, layout))


def collect(
    store: Store,
    layout: JobLayout,
    *,
    collector: str,
    retained: int,
    orphans: bool,
    cache: BodyCache | None = None,
    dispose: DisposeSavepoint | None = None,
) -> CollectionReport:
    """Deletes what no root reaches. `collector` is a name never used before."""
    cache = {} if cache is None else cache
    pins, log = _observed(store, layout, cache)
    chosen = tuple(candidates(log, pins, retained))
    # What is doomed has the mark of whoever doomed it, until its record is gone.
    marked = [slot for slot in chosen if not log.slots[slot].doomed]
    _mark(store, {layout.dead(slot, collector): slot for slot in marked}, collector)
    if chosen:
        # Marked first, read after: a pinner does it the other way round, so one of the two sees the other.
        # And the log is read after the pins, for a restore decides its record and then lets go of its pin:
        # whoever finds the pin gone must find the record that took its place.
        pins, log = _observed(store, layout, cache)
    files = _files(store, layout) if orphans else []
    others = _others(store, layout) if orphans else []
    sure = [slot for slot in chosen if slot in marked or (slot in log.slots and log.slots[slot].doomed)]
    todo = plan(log, pins, retained, chosen=sure, files=files, others=others)
    withdrawn = tuple(slot for slot in marked if slot not in todo.records)
    # One's own marks only: another collector's may be all that keeps a pinner from trusting a record it is
    # deleting.
    store.delete([layout.dead(slot, collector) for slot in withdrawn])
    keep_history(store, layout, log, todo.records)
    # Said before it is done: should this collector die halfway, the next one finds a record that has lost files and,
    # perhaps, a pin whose maker died too. Without a word it would have to take that for a tag to keep.
    doomed = [slot for slot in todo.records if not log.slots[slot].doomed]
    _mark(store, {layout.doomed(slot, collector): slot for slot in doomed}, collector)
    store.delete([file.path for file in todo.files])
    undisposed = disposed_of(todo.savepoints, dispose) if dispose is not None else {}
    # A savepoint is found by the records that name it, so those stay with it: doomed as they are, for the next collector.
    removed = tuple(slot for slot in todo.records if not _names(log.slots[slot].record, undisposed))
    for slot in removed:
        # Oldest first, and the record before its outcome and marks: at every point in between it is still a
        # candidate, never a record that waits to be carried out, nor one that a pinner finds unmarked.
        store.delete([layout.pending(slot)])
        mine = (layout.dead(slot, collector), layout.doomed(slot, collector))
        paths = {*log.slots[slot].paths, *mine}
        store.delete(sorted(paths - {layout.pending(slot)}, key=lambda p: ("_dead-" in p, p)))
    store.delete(todo.leftovers)
    return CollectionReport(
        removed=removed,
        files=len(todo.files),
        bytes_by_reason=todo.bytes_by_reason,
        withdrawn=withdrawn,
        savepoints=tuple(url for url in todo.savepoints if url not in undisposed),
        undisposed=undisposed,
    )


def disposed_of(savepoints: Iterable[str], dispose: DisposeSavepoint) -> dict[str, str]:
    """Disposes of each; those that it fails for, with the reason."""
    failed = {}
    for url in savepoints:
        try:
            dispose(url)
        except StateflowError as error:
            failed[url] = str(error)
    return failed


def _names(record: Record | None, savepoints: Mapping[str, str]) -> bool:
    return record is not None and any(url in savepoints for url in bases([record]))


def _observed(store: Store, layout: JobLayout, cache: BodyCache | None) -> tuple[list[Pin], Log]:
    """Pins, and the log as it stands after they were read. Raises unless all that they keep was found."""
    pins = list_pins(store, layout, cache=cache)
    log, damaged = read_kept(store, layout, pins, cache=cache)
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
    return pins, log


def _mark(store: Store, marks: Mapping[str, int], collector: str) -> None:
    """Creates marks, in no order that matters. Each waits for the disk, so many are made at once."""

    def create(path: str) -> None:
        create_once(store, path, encode(DeadMark(slot=marks[path], collector=collector)))

    if len(marks) <= _FEW:
        for path in marks:
            create(path)
        return
    with ThreadPoolExecutor(_MARKERS, "stateflow-marks") as pool:
        for _ in pool.map(create, marks):
            pass


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
    old = []
    for entry in others:
        epoch = epoch_of(entry.path)
        if epoch is None:
            _, _, digits = entry.path.rpartition("-")
            epoch = int(digits) if digits.isdigit() else None
        # Below an epoch that has a record: its own claim stays, so the newest one always does.
        if epoch is not None and epoch < top.epoch:
            old.append(entry.path)
    return old


def _dangling(log: Log, pins: Iterable[Pin]) -> list[str]:
    layout = JobLayout(log.job)
    members = {record.slot for record in log.chain}
    # Below the floor no record appears again, so such a pin failed and its maker died before removing it.
    return [
        layout.pin(p.id)
        for p in pins
        if p.slot < log.floor and (p.slot not in members or log.slots[p.slot].doomed)
    ]


def unreached(log: Log, files: Iterable[Entry]) -> list[Entry]:
    """Files that no record names and no run can name any more."""
    records: list[Record] = [slot.record for slot in log.slots.values() if slot.record is not None]
    reached = job_files(records)
    return [entry for entry in files if entry.path not in reached and is_over(log, entry.path)]

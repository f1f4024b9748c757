"""Checking a job from outside: whether its files are whole, its log is sound, and nothing is lost.

It only reads. Each finding is one sentence that names the thing and the next step.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import xxhash

from stateflow.checkpoint.collection import marks_on_pinned, unreached
from stateflow.checkpoint.log import Log, read_epoch_claim, read_epochs
from stateflow.checkpoint.pins import damage_of, read_pins, read_with_pins
from stateflow.checkpoint.statistics import damaged_segments
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError
from stateflow.format.layout import SAVEPOINT_CLAIM, SAVEPOINT_STATE, JobLayout, slot_of
from stateflow.format.records import FileRef, Outcome, Pin, Record, SavepointClaim, decode
from stateflow.format.references import references
from stateflow.storage.roots import open_recorded
from stateflow.storage.store import Entry, Store, is_there
from stateflow.storage.transfer import read_through

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: something that the job needs is missing or damaged. `warning`: something exists that nobody needs."""

    severity: Severity
    text: str
    path: str = ""
    slot: int | None = None

    def __str__(self) -> str:
        return self.text


def verify(
    store: Store,
    layout: JobLayout,
    *,
    deep: bool = False,
    open_base: Callable[[str], Store] | None = None,
) -> list[Finding]:
    """Everything that is wrong with a job; with `deep` every file is read and its checksum compared.

    `open_base` opens a savepoint that the job has claimed, by URL.
    """
    pins, unreadable = read_pins(store, layout)
    log, damaged = read_with_pins(store, layout, pins)
    if log.identity_is_lost:
        text = (
            f"{layout.identity}, which says who the job is, is missing: put it back from a copy of the store"
        )
        return [Finding("error", text, path=layout.identity)]
    if log.identity is None:
        raise NotFoundError(
            f"job {layout.job!r} does not exist in {store.url}: `stateflow jobs` lists those that do"
        )
    if log.half_deleted:
        return [Finding("error", log.half_deleted)]
    # Listed after the log: a file exists before any record names it, so a file that is missing now is lost.
    listed = [*store.list(layout.shared), *store.list(layout.staged)]
    sizes = {entry.path: entry.size for entry in listed}
    findings = [
        *(_unreadable_pin(layout, pin_id, error) for pin_id, error in unreadable.items()),
        *_log_findings(store, layout, log),
        *_claim_findings(store, layout, log),
        *(_damaged(layout, pin) for pin in damaged),
        *(
            Finding("error", f"{damage_of(layout, slot)}: put it back from a copy of the store", slot=slot)
            for slot in log.lost
        ),
    ]
    bases = _Bases(log.identity.uuid, open_base or (lambda url: open_recorded(url, root=store.url)))
    seen: set[tuple[str, ExpectedFile]] = set()
    for record in log.chain:
        if _being_collected(log, record, pins):
            continue
        missing = list(_file_findings(store, record, sizes, bases, seen, deep))
        if missing and not _collected_meanwhile(store, layout, record):
            findings += missing
    findings += bases.findings()
    findings += _forgotten_marks(store, layout, log, pins)
    if log.sound and not damaged and not log.lost and not unreadable:
        findings += _unneeded(store, layout, log, pins, listed)
    findings += [
        Finding(
            "warning",
            f"{path}, in which lines of the history are kept, is damaged: put it back from a copy of the store; nothing but "
            "the history needs it",
            path=path,
        )
        for path in damaged_segments(store, layout)
    ]
    return findings


def _log_findings(store: Store, layout: JobLayout, log: Log) -> Iterator[Finding]:
    for path in log.unreadable:
        parts = slot_of(path)
        yield Finding(
            "error",
            _newer(store, path) or f"{path} cannot be read: {_way_out(layout, log, path)}",
            path=path,
            slot=parts[0] if parts else None,
        )
    for slot in log.gaps:
        if layout.pending(slot) in log.unreadable or layout.metadata(slot) in log.unreadable:
            continue
        yield Finding(
            "error",
            f"slot {slot} is missing from the chain of job {layout.job!r}, or its outcome is: "
            f"put the files of its folder back from a copy of the store, or {_as_another_job(log)}",
            slot=slot,
        )
    if log.trace:
        yield Finding(
            "error",
            f"job {layout.job!r} has no record any more, although {log.trace} tells of some: put its folders epochs and chk-... back "
            f"from a copy of the store, or {_as_another_job(log)}",
            path=log.trace,
        )
    for number, facts in sorted(log.slots.items()):
        if facts.record is not None and facts.outcome is not None and not facts.complete:
            yield Finding(
                "error" if number >= log.floor else "warning",
                f"{layout.metadata(number)} completes another record than the one in its slot: "
                f"`stateflow show {layout.job}` tells which run wrote it",
                path=layout.metadata(number),
                slot=number,
            )
        if (
            facts.record is None
            and facts.outcome is not None
            and number >= log.floor
            and number not in log.gaps
        ):
            yield Finding(
                "error",
                f"{layout.pending(number)} is missing, although what it decided was carried out: put it back from a copy of "
                "the store",
                path=layout.pending(number),
                slot=number,
            )


def _newer(store: Store, path: str) -> str:
    """Which stateflow reads a record or an outcome that is whole and of a newer format; empty for one that is damaged."""
    try:
        decode(store.read(path), Outcome if path.endswith("/_metadata") else Record, path)
    except IncompatibleError as error:
        return str(error)
    except (CorruptError, NotFoundError):
        return ""
    return ""


def _way_out(layout: JobLayout, log: Log, path: str) -> str:
    copied = "put it back from a copy of the store, or"
    outcomes = {layout.metadata(record.slot): record.slot for record in log.pending}
    if path not in outcomes or log.unreadable != (path,) or log.gaps:
        return f"{copied} {_as_another_job(log)}"
    # The record says all that its outputs need, and nothing is complete above it. So it is as if the run had died before it
    # created the outcome.
    return (
        f"{copied}, while no run of the job works, delete it and start the next run, which carries record {outcomes[path]} out "
        "again, as after a crash"
    )


def _as_another_job(log: Log) -> str:
    """The way without what the log has lost. Nobody knows what that decided and which output has it, so nothing can follow it: a job
    of another name goes on, with outputs of its own."""
    snapshot = (
        f"checkpoint:{log.checkpoints[-1].slot} --from-job {log.job}" if log.checkpoints else "SAVEPOINT"
    )
    return (
        f"go on under another name with outputs of its own: `stateflow restore NAME PIPELINE --from {snapshot}`; docs/runbooks.md "
        "(a damaged record) says what they begin with"
    )


def _claim_findings(store: Store, layout: JobLayout, log: Log) -> Iterator[Finding]:
    known, top = read_epochs(store, layout), log.decided
    if top is not None and top.epoch not in known:
        # No collector deletes this claim, so that nobody can claim the epoch again.
        yield Finding(
            "error",
            f"{layout.epoch(top.epoch)}, the claim of the run that decided record {top.slot}, is missing: put it back from a "
            "copy of the store, or start runs until one of them is not taken over",
            path=layout.epoch(top.epoch),
        )
    for epoch in known:
        try:
            read_epoch_claim(store, layout, epoch)
        except NotFoundError:
            continue  # collected since
        except (CorruptError, IncompatibleError):
            yield Finding(
                "warning",
                f"{layout.epoch(epoch)} cannot be read, so who claimed the epoch is not known: put it back from a copy of the "
                "store, if that matters",
                path=layout.epoch(epoch),
            )


def _unreadable_pin(layout: JobLayout, pin_id: str, error: StateflowError) -> Finding:
    path = layout.pin(pin_id)
    if isinstance(error, IncompatibleError):
        return Finding("error", str(error), path=path)
    return Finding(
        "error",
        f"{path} cannot be read, and nobody knows which checkpoint it keeps, so that nothing of job {layout.job!r} is deleted: put it back from "
        f"a copy of the store, or give up what it keeps with `stateflow gc {layout.job} --release {shlex.quote(pin_id)} --yes`",
        path=path,
    )


def _damaged(layout: JobLayout, pin: Pin) -> Finding:
    text = f"{damage_of(layout, pin)}: put it back from a copy of the store"
    return Finding("error", text, path=layout.slot(pin.slot), slot=pin.slot)


def _unneeded(
    store: Store, layout: JobLayout, log: Log, pins: list[Pin], listed: list[Entry]
) -> Iterator[Finding]:
    """Things that nobody needs and that a collection deletes. The caller has made sure that every needed record was read."""
    for record in log.void:
        yield Finding(
            "warning",
            f"record {record.slot} of epoch {record.epoch} is void, created by a run that had been fenced: "
            f"`stateflow gc {layout.job}` deletes it",
            slot=record.slot,
        )
    members = {record.slot for record in log.chain}
    for pin in pins:
        # Readers release their pins at any time: since the listing the pin may be gone and its record collected.
        if pin.slot not in members and is_there(store, layout.pin(pin.id)):
            yield Finding(
                "warning",
                f"{pin.kind} {pin.name or pin.id} pins checkpoint {pin.slot} of job {layout.job!r}, "
                f"which is gone: `stateflow gc {layout.job}` removes it",
                path=layout.pin(pin.id),
                slot=pin.slot,
            )
    for entry in unreached(log, listed):
        yield Finding(
            "warning",
            f"{entry.path} ({entry.size} bytes) is reached by no record: `stateflow gc {layout.job}` "
            "deletes it",
            path=entry.path,
        )


def _forgotten_marks(store: Store, layout: JobLayout, log: Log, pins: list[Pin]) -> Iterator[Finding]:
    """Marks on pinned records: their collectors have died, or withdraw them in a moment."""
    for pin, collector in marks_on_pinned(log, pins):
        if is_there(store, path := layout.dead(pin.slot, collector)):
            yield Finding(
                "warning",
                f"checkpoint {pin.slot} of job {layout.job!r}, which {pin.kind} {pin.name or pin.id} keeps, cannot be restored, since a "
                f"collector that was cut off has left {path}: `stateflow gc {layout.job} --yes` takes it away",
                path=path,
                slot=pin.slot,
            )


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file that has to exist: by itself, inside a container, or inside the record."""

    path: str
    size: int
    xxh3: str
    offset: int | None = None
    data: bytes | None = None
    name: str = ""
    sha256: bytes = b""

    @classmethod
    def by(cls, ref: FileRef) -> ExpectedFile:
        return cls(ref.path, ref.size, ref.xxh3, ref.offset, ref.data, ref.name, ref.sha256)

    def named(self, root: str) -> str:
        return f"{root}/{self.path}" if self.path else f"{self.name} (kept inside {root})"


def damage(store: Store, sizes: Mapping[str, int], file: ExpectedFile, *, deep: bool) -> str:
    """What is wrong with a file, as the end of a sentence; empty when nothing is. `sizes` come from a listing."""
    if not file.path:
        whole = file.data is not None and xxhash.xxh3_64_hexdigest(file.data) == file.xxh3
        return "" if whole else f"does not have the checksum {file.xxh3}"
    size = sizes.get(file.path)
    start = file.offset or 0
    if size is None:
        return "is a symbolic link, or lies behind one" if _linked(store, file.path) else "is missing"
    if size < start + file.size or (file.offset is None and size != file.size):
        return f"has {size} bytes instead of {start + file.size}"
    if deep:
        try:
            for _ in read_through(store, file.path, start, file.size, file.xxh3, sha256=file.sha256):
                pass
        except (NotFoundError, CorruptError):
            return f"does not have the checksum {file.sha256.hex() or file.xxh3}"
    return ""


def _linked(store: Store, path: str) -> bool:
    """Whether a listing lacks the file because it, or a folder above it, is a symbolic link."""
    if store.local_root is None:
        return False
    try:
        store.read_range(path, 0, 0)
    except CorruptError:
        return True
    except StateflowError:
        return False
    return False


class _Bases:
    """The savepoints that a job has claimed and whose files it uses. Each is opened and listed once."""

    def __init__(self, job: str, open_base: Callable[[str], Store]) -> None:
        self._job = job
        self._open_base = open_base
        self._known: dict[str, tuple[Store, dict[str, int]]] = {}
        self._unopened: dict[str, str] = {}

    def of(self, url: str) -> tuple[Store, dict[str, int]] | None:
        """None when it cannot be listed, as behind a symbolic link: `findings` says why, and the check goes on."""
        if url not in self._known and url not in self._unopened:
            try:
                store = self._open_base(url)
                sizes = {entry.path: entry.size for entry in store.list(SAVEPOINT_STATE)}
            except CorruptError as error:
                self._unopened[url] = str(error)
            except StateflowError as error:
                self._unopened[url] = (
                    f"the savepoint {url}, whose files the job uses, was not checked: {error}"
                )
            else:
                self._known[url] = store, sizes
        return self._known.get(url)

    def findings(self) -> Iterator[Finding]:
        """Findings for savepoints that were not opened, and for opened ones that the job has not claimed: somebody else may
        delete these."""
        for url, text in self._unopened.items():
            yield Finding("error", text, path=url)
        for url, (store, _) in self._known.items():
            path = f"{url}/{SAVEPOINT_CLAIM}"
            try:
                claim = decode(store.read(SAVEPOINT_CLAIM), SavepointClaim, path)
                if claim.job == self._job:
                    continue
                whose = f"is claimed by {claim.name!r}" if claim.job else "is being disposed of"
            except (NotFoundError, CorruptError, IncompatibleError):
                whose = f"has lost its {SAVEPOINT_CLAIM}"
            text = f"the savepoint {url}, whose files the job uses, {whose}: make a new savepoint and restore from it"
            yield Finding("error", text, path=path)


def _file_findings(
    store: Store,
    record: Record,
    sizes: dict[str, int],
    bases: _Bases,
    seen: set[tuple[str, ExpectedFile]],
    deep: bool,
) -> Iterator[Finding]:
    for ref in references(record):
        each = ExpectedFile.by(ref)
        if ref.path and (ref.base, each) in seen:
            continue
        seen.add((ref.base, each))
        opened = bases.of(ref.base) if ref.base else (store, sizes)
        if opened is None:
            continue
        where, listed = opened
        if wrong := damage(where, listed, each, deep=deep):
            file = f"{ref.base}/{ref.path}" if ref.base else ref.path or f"{ref.name}, kept inside its record"
            yield Finding(
                "error",
                f"{file}, needed by record {record.slot}, {wrong}: restore an earlier checkpoint or a savepoint",
                path=ref.path,
                slot=record.slot,
            )


def _being_collected(log: Log, record: Record, pins: list[Pin]) -> bool:
    slot = log.slots[record.slot]
    # A marked record with a pin is not deleted: its collector will withdraw the mark, or the next one. So the record has to be whole.
    return slot.doomed or (bool(slot.marks) and all(pin.slot != record.slot for pin in pins))


def _collected_meanwhile(store: Store, layout: JobLayout, record: Record) -> bool:
    """Whether the record was marked or deleted meanwhile, by a running job's collection: then it needs no files."""
    names = {parts[1] for e in store.list(layout.slot(record.slot)) if (parts := slot_of(e.path)) is not None}
    return "_pending" not in names or any(name.startswith("_dead-") for name in names)

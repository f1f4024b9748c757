"""Checking a job from the outside: files are whole, the log holds together, nothing is lost.

Reads only. Each finding is one sentence that names the thing and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from stateflow.checkpoint.collection import unreached
from stateflow.checkpoint.layout import JobLayout, slot_of
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.records import Pin, Record
from stateflow.checkpoint.retention import references
from stateflow.checkpoint.store import Store
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: something that is needed is missing or damaged. `warning`: something is there that nobody
    needs."""

    severity: Severity
    text: str
    path: str = ""
    slot: int | None = None

    def __str__(self) -> str:
        return self.text


def verify(store: Store, layout: JobLayout, *, deep: bool = False) -> list[Finding]:
    """Everything that is wrong with a job; with `deep` every file is read and its checksum compared."""
    log = read_log(store, layout)
    if log.identity is None:
        raise NotFoundError(
            f"job {layout.job!r} does not exist in {store.url}: `stateflow jobs` lists those that do"
        )
    try:
        pins = list_pins(store, layout)
        unreadable_pin: list[Finding] = []
    except (CorruptError, IncompatibleError) as error:
        pins, unreadable_pin = [], [Finding("error", str(error))]
    # Listed after the log: a file that a record names was there before the record, so what is missing now is
    # missing.
    listed = [*store.list(layout.shared), *store.list(layout.staged)]
    sizes = {entry.path: entry.size for entry in listed}
    findings = [*unreadable_pin, *_log_findings(log, layout), *_pin_findings(log, pins, layout)]
    seen: set[str] = set()
    for record in log.chain:
        if _being_collected(log, record, pins):
            continue
        missing = list(_file_findings(store, record, sizes, seen, deep))
        if missing and not _gone_meanwhile(store, layout, record):
            findings += missing
    findings += [
        Finding(
            "warning",
            f"{entry.path} ({entry.size} bytes) is reached by no record: `stateflow gc {layout.job}` "
            "deletes it",
            path=entry.path,
        )
        for entry in unreached(log, listed)
    ]
    return findings


def _log_findings(log: Log, layout: JobLayout) -> Iterator[Finding]:
    for path in log.unreadable:
        found = slot_of(path)
        yield Finding(
            "error",
            f"{path} cannot be read: restore it from a copy of the store, or restore the job from a "
            "savepoint",
            path=path,
            slot=found[0] if found else None,
        )
    for slot in log.gaps:
        if layout.pending(slot) in log.unreadable or layout.metadata(slot) in log.unreadable:
            continue
        yield Finding(
            "error",
            f"slot {slot} is missing from the chain of job {layout.job!r}, or its outcome is: "
            "restore the files of its folder from a copy of the store",
            slot=slot,
        )
    for record in log.void:
        yield Finding(
            "warning",
            f"record {record.slot} of epoch {record.epoch} is void, created by a run that had been fenced: "
            f"`stateflow gc {layout.job}` deletes it",
            slot=record.slot,
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


def _pin_findings(log: Log, pins: list[Pin], layout: JobLayout) -> Iterator[Finding]:
    members = {record.slot for record in log.chain}
    for pin in pins:
        if pin.slot not in members:
            yield Finding(
                "warning",
                f"{pin.kind} {pin.name or pin.id} pins checkpoint {pin.slot} of job {layout.job!r}, "
                f"which is gone: `stateflow gc {layout.job}` removes it",
                path=layout.pin(pin.id),
                slot=pin.slot,
            )


def _file_findings(
    store: Store, record: Record, sizes: dict[str, int], seen: set[str], deep: bool
) -> Iterator[Finding]:
    for ref in references(record):
        if not ref.path:
            if ref.data is None or xxhash.xxh3_64_hexdigest(ref.data) != ref.xxh3:
                yield Finding(
                    "error",
                    f"{ref.name}, inside record {record.slot}, does not have its checksum: "
                    "restore an earlier checkpoint or a savepoint",
                    slot=record.slot,
                )
            continue
        if ref.base or ref.path in seen:
            continue  # files of a claimed savepoint are verified with the savepoint
        seen.add(ref.path)
        advice = "restore an earlier checkpoint or a savepoint"
        needed = f"{ref.path}, needed by record {record.slot},"
        if ref.path not in sizes:
            text = f"{needed} is missing: {advice}"
        elif sizes[ref.path] != ref.size:
            text = f"{needed} has {sizes[ref.path]} bytes instead of {ref.size}: {advice}"
        elif deep and not _whole(store, ref.path, ref.xxh3):
            text = f"{needed} does not have the checksum {ref.xxh3}: {advice}"
        else:
            continue
        yield Finding("error", text, path=ref.path, slot=record.slot)


def _whole(store: Store, path: str, xxh3: str) -> bool:
    try:
        return xxhash.xxh3_64_hexdigest(store.read(path)) == xxh3
    except NotFoundError:
        return False


def _being_collected(log: Log, record: Record, pins: list[Pin]) -> bool:
    slot = log.slots[record.slot]
    # A mark with a pin beside it is one that its collector has not withdrawn, so the record has to be whole.
    return slot.doomed or (bool(slot.marks) and all(pin.slot != record.slot for pin in pins))


def _gone_meanwhile(store: Store, layout: JobLayout, record: Record) -> bool:
    """A running job collects while it is verified: a record that is marked or gone by now needs no files."""
    names = {found[1] for e in store.list(layout.slot(record.slot)) if (found := slot_of(e.path)) is not None}
    return "_pending" not in names or any(name.startswith("_dead-") for name in names)

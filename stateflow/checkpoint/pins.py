"""Pins keep one record and everything it reaches: tags, savepoints being made, forks, readers, abandoned
outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from stateflow.checkpoint.log import LISTINGS, BodyCache, Log, Slot, read_body, read_log
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.layout import JobLayout, checked_name, slot_of
from stateflow.format.records import Outcome, Owner, Pin, Record, decode, encode
from stateflow.storage.store import Store, create_once

_log = logging.getLogger(__name__)

PinKind = Literal["tag", "savepoint", "fork", "reader", "abandoned"]


def pin(
    store: Store,
    layout: JobLayout,
    slot: int,
    *,
    kind: PinKind,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    name: str = "",
    reason: str = "",
) -> Pin:
    """Pins a record. Fails, leaving nothing behind, when the record is being collected or is not there."""
    if kind == "tag":
        checked_name("tag", name)
        if any(p.kind == "tag" and p.name == name for p in list_pins(store, layout)):
            raise UsageError(
                f"job {layout.job!r} has a tag {name!r} already: remove it first or choose another name"
            )
    meant = _writer(store, layout, slot)
    if meant is None:
        raise _gone(layout, slot)
    made = Pin(
        id=ids(), slot=slot, kind=kind, name=name, owner=owner, reason=reason, at=clock(), writer=meant
    )
    create_once(store, layout.pin(made.id), encode(made))
    # Created first, looked after: a collector marks first and reads the pins after, so one of the two sees
    # the other.
    marked = any(
        (found := slot_of(entry.path)) is not None and found[1].startswith("_dead-")
        for entry in store.list(layout.slot(slot))
    )
    # And the record is read after the marks: when a collector is done, the record goes before its mark does.
    if marked or _writer(store, layout, slot) != meant:
        release(store, layout, made.id)
        raise _gone(layout, slot)
    return made


def release(store: Store, layout: JobLayout, pin_id: str) -> None:
    """Removes a pin; what only it kept goes with the next collection."""
    store.delete([layout.pin(pin_id)])


def list_pins(store: Store, layout: JobLayout, *, cache: BodyCache | None = None) -> list[Pin]:
    """Every pin, by slot and then by time. An unreadable one raises: it may protect anything."""
    found = []
    bodies: BodyCache = {} if cache is None else cache
    for entry in store.list(layout.pins):
        try:
            found.append(read_body(store, entry.path, entry.size, Pin, bodies))
        except NotFoundError:
            continue  # released since
    return sorted(found, key=lambda p: (p.slot, p.at, p.id))


def tags(store: Store, layout: JobLayout) -> dict[str, Pin]:
    """Tags by name. When two were made at the same instant under one name, the lower id has it."""
    found: dict[str, Pin] = {}
    for made in sorted(list_pins(store, layout), key=lambda p: p.id):
        if made.kind == "tag":
            found.setdefault(made.name, made)
    return found


@contextmanager
def pinned(
    store: Store,
    layout: JobLayout,
    slot: int,
    *,
    kind: PinKind,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    reason: str = "",
) -> Iterator[Pin]:
    """Keeps a record for the length of a block: whoever reads a snapshot pins it first."""
    made = pin(store, layout, slot, kind=kind, owner=owner, ids=ids, clock=clock, reason=reason)
    try:
        yield made
    finally:
        try:
            release(store, layout, made.id)
        except StateflowError as error:
            # What was done under the pin is done, or has an error of its own, which says more than this one.
            _log.warning("a pin of job %s stays, until `stateflow gc` is run: %s", layout.job, error)


def read_kept(
    store: Store, layout: JobLayout, pins: Iterable[Pin], *, cache: BodyCache | None = None
) -> tuple[Log, list[Pin]]:
    """The log, and the pins whose records are there, and not whole: damaged, and kept by nothing but these pins.

    Below the floor no gap tells that a listing missed something, so one that misses what a pin keeps is taken again.
    """
    for _ in range(LISTINGS):
        log = read_log(store, layout, cache=cache)
        damaged = [pin for pin in pins if _is_damaged(store, layout, log, pin)]
        if not damaged:
            break
    return log, damaged


def damage_of(layout: JobLayout, pin: Pin) -> str:
    """What `read_kept` has found, as a sentence up to its next step."""
    return (
        f"{layout.slot(pin.slot)}_pending or _metadata is missing, so that checkpoint {pin.slot}, which {pin.kind} "
        f"{pin.name or pin.id} of job {layout.job!r} keeps, cannot be read"
    )


def _is_damaged(store: Store, layout: JobLayout, log: Log, pin: Pin) -> bool:
    if pin.slot >= log.floor:
        return False  # a gap says so, or the record is younger than the listing
    slot = log.slots.get(pin.slot)
    if slot is None:
        slot = _looked_at(store, layout, pin.slot)
        return _is_of(pin, slot)
    if slot.complete or slot.marks or slot.doomed:
        return False  # whole, or about to go
    return bool(pin.writer) and _is_of(pin, slot)


def _is_of(pin: Pin, slot: Slot) -> bool:
    """Whether the slot holds something of the record that was pinned. Pins of early versions do not say which that is."""
    writers = {slot.record.writer if slot.record else None, slot.outcome.record if slot.outcome else None}
    found = writers - {None}
    return pin.writer in found if pin.writer else bool(found)


def _looked_at(store: Store, layout: JobLayout, slot: int) -> Slot:
    """A record's folder without a listing."""
    record = outcome = None
    with suppress(NotFoundError):
        record = decode(store.read(layout.pending(slot)), Record, layout.pending(slot))
    with suppress(NotFoundError):
        outcome = decode(store.read(layout.metadata(slot)), Outcome, layout.metadata(slot))
    return Slot(slot, record=record, outcome=outcome)


def _writer(store: Store, layout: JobLayout, slot: int) -> str | None:
    """Of the record that stands in a slot; None when there is none."""
    path = layout.pending(slot)
    try:
        return decode(store.read(path), Record, path).writer
    except NotFoundError:
        return None


def _gone(layout: JobLayout, slot: int) -> NotFoundError:
    return NotFoundError(
        f"checkpoint {slot} of job {layout.job!r} is being collected or gone, so it cannot be pinned: "
        f"`stateflow checkpoints {layout.job}` lists those that stay"
    )

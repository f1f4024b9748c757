"""A pin keeps one record and everything it names: for a tag, a savepoint being made, a fork, a reader, an abandoned
output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from stateflow.checkpoint.log import (
    LISTINGS,
    BodyCache,
    Log,
    SlotContent,
    drop_unlisted,
    read_body,
    read_if_there,
    read_log,
)
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import JobLayout, checked_name, slot_of
from stateflow.format.records import Outcome, Owner, Pin, Record, encode
from stateflow.storage.store import Store, create_once

_log = logging.getLogger(__name__)

_Found = TypeVar("_Found")
_Held = TypeVar("_Held")
_TRIES = 5

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
    """Pins a record. Raises and leaves no pin when the record is being collected or does not exist."""
    if kind == "tag":
        checked_name("tag", name)
        if name in tags(store, layout):
            raise UsageError(
                f"job {layout.job!r} has a tag {name!r} already: remove it first or choose another name"
            )
    writer = _writer(store, layout, slot)
    if writer is None:
        raise _not_pinned(layout, slot)
    new_pin = Pin(
        id=ids(), slot=slot, kind=kind, name=name, owner=owner, reason=reason, at=clock(), writer=writer
    )
    create_once(store, layout.pin(new_pin.id), encode(new_pin))
    # First the pin is created, then the marks are read. A collector marks first and then reads the pins, so one of the two
    # sees the other.
    marked = any(
        (parts := slot_of(entry.path)) is not None and parts[1].startswith("_dead-")
        for entry in store.list(layout.slot(slot))
    )
    # The record is read after the marks: a collector deletes the record before its mark.
    if marked or _writer(store, layout, slot) != writer:
        release(store, layout, new_pin.id)
        raise _not_pinned(layout, slot)
    if kind == "tag" and _is_taken(store, layout, new_pin):
        release(store, layout, new_pin.id)
        raise UsageError(
            f"somebody else has made a tag {name!r} of job {layout.job!r} at the same moment: `stateflow show {layout.job}` lists the tags; if "
            "it is not among them, tag again"
        )
    return new_pin


def _is_taken(store: Store, layout: JobLayout, mine: Pin) -> bool:
    """Whether another tag has the name. Of two that are made at once, whoever has created his second finds the first here. If both find
    each other, neither stays: that is better than two checkpoints of one name."""
    return any(p.kind == "tag" and p.name == mine.name and p.id != mine.id for p in list_pins(store, layout))


def before_drop(slot: int, pins: Iterable[Pin] = ()) -> str:
    """The name of the tag by which a run keeps the checkpoint that alone has what the run drops. `pins` are those of the job: somebody
    may have given the name to another checkpoint."""
    taken = {name for name, tag in tags_among(pins).items() if tag.slot != slot}
    name, number = f"before-drop-{slot}", 1
    while name in taken:
        number += 1
        name = f"before-drop-{slot}-{number}"
    return name


def keep_before_drop(
    store: Store,
    layout: JobLayout,
    slot: int,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
) -> str:
    """Makes the tag, unless an earlier try of the run has made it, and returns its name."""
    pins = list_pins(store, layout)
    name = before_drop(slot, pins)
    if name not in tags_among(pins):
        reason = "the run behind it drops what this checkpoint has"
        pin(store, layout, slot, kind="tag", owner=owner, ids=ids, clock=clock, name=name, reason=reason)
    return name


def release(store: Store, layout: JobLayout, pin_id: str) -> None:
    """Removes a pin. The next collection deletes what only this pin kept."""
    store.delete([layout.pin(pin_id)])


def list_pins(
    store: Store, layout: JobLayout, *, cache: BodyCache | None = None, without: Collection[str] = ()
) -> list[Pin]:
    """Every pin but those with the ids `without`, sorted by slot and time. Raises for an unreadable pin, since it may protect anything."""
    pins, unreadable = read_pins(store, layout, cache=cache, without=without)
    for error in unreadable.values():
        raise error
    return pins


def read_pins(
    store: Store, layout: JobLayout, *, cache: BodyCache | None = None, without: Collection[str] = ()
) -> tuple[list[Pin], dict[str, CorruptError | IncompatibleError]]:
    """The same, and by their ids the pins that cannot be read, with the reason."""
    pins: list[Pin] = []
    unreadable: dict[str, CorruptError | IncompatibleError] = {}
    bodies: BodyCache = {} if cache is None else cache
    entries = list(store.list(layout.pins))
    drop_unlisted(bodies, layout.pins, entries)
    for entry in entries:
        if (pin_id := entry.path.removeprefix(layout.pins)) in without:
            continue
        try:
            pins.append(read_body(store, entry.path, entry.size, Pin, bodies))
        except NotFoundError:
            continue  # released since the listing
        except (CorruptError, IncompatibleError) as error:
            unreadable[pin_id] = error
    return sorted(pins, key=lambda p: (p.slot, p.at, p.id)), unreadable


def tags(store: Store, layout: JobLayout) -> dict[str, Pin]:
    """Tags by name."""
    return tags_among(list_pins(store, layout))


def tags_among(pins: Iterable[Pin]) -> dict[str, Pin]:
    """Tags by name. If two were made at once under one name, the lower id wins, wherever somebody looks."""
    by_name: dict[str, Pin] = {}
    for tag in sorted(pins, key=lambda p: p.id):
        if tag.kind == "tag":
            by_name.setdefault(tag.name, tag)
    return by_name


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
    """Pins a record during a block: whoever reads a snapshot pins it first."""
    new_pin = pin(store, layout, slot, kind=kind, owner=owner, ids=ids, clock=clock, reason=reason)
    try:
        yield new_pin
    finally:
        try:
            release(store, layout, new_pin.id)
        except StateflowError as error:
            # Only logged: the block is done, or its own error says more.
            _log.warning("a pin of job %s stays, until `stateflow gc` is run: %s", layout.job, error)


def found_and_held(
    find: Callable[[], _Found], hold: Callable[[_Found], _Held], *, again: bool = True
) -> tuple[_Found, _Held]:
    """What `find` returns, and what `hold` makes of it by pinning. What is the newest may be collected before it is pinned: then it is
    looked for anew, unless the caller has named one record and wants no other (`again`)."""
    for tries_left in reversed(range(_TRIES if again else 1)):
        found = find()
        try:
            return found, hold(found)
        except NotFoundError:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def read_with_pins(
    store: Store, layout: JobLayout, pins: Iterable[Pin], *, cache: BodyCache | None = None
) -> tuple[Log, list[Pin]]:
    """The log, and the pins whose records are damaged: only part of the record or outcome exists.

    Below the floor missing records are normal, so a gap does not show that the listing was incomplete. The function
    therefore lists again when a pinned record is missing.
    """
    for _ in range(LISTINGS):
        log = read_log(store, layout, cache=cache)
        damaged = [pin for pin in pins if _is_damaged(store, layout, log, pin)]
        if not damaged:
            break
    return log, damaged


def damage_of(layout: JobLayout, kept: Pin | int) -> str:
    """The damage that `read_with_pins` has found, as a sentence without its next step: of a pinned checkpoint, or of one below the floor
    that the job's retention keeps."""
    slot, keeper = (
        (kept, "the retention")
        if isinstance(kept, int)
        else (kept.slot, f"{kept.kind} {kept.name or kept.id}")
    )
    return (
        f"{layout.slot(slot)}_pending or _metadata is missing, so that checkpoint {slot}, which {keeper} of job "
        f"{layout.job!r} keeps, cannot be read"
    )


def _is_damaged(store: Store, layout: JobLayout, log: Log, pin: Pin) -> bool:
    if pin.slot >= log.floor:
        return False  # not damage: the log reports it as a gap, or the record is newer than the listing
    slot = log.slots.get(pin.slot)
    if slot is None:
        slot = _read_slot(store, layout, pin.slot)
        return _is_of(pin, slot)
    if slot.complete or slot.marks or slot.doomed:
        return False  # complete, or being collected
    return _is_of(pin, slot)


def _is_of(pin: Pin, slot: SlotContent) -> bool:
    """Whether the slot holds a part of the pinned record."""
    writers = {slot.record.writer if slot.record else None, slot.outcome.record if slot.outcome else None}
    return pin.writer in writers


def _read_slot(store: Store, layout: JobLayout, slot: int) -> SlotContent:
    """A record's folder, read without a listing."""
    return SlotContent(
        slot,
        record=read_if_there(store, layout.pending(slot), Record),
        outcome=read_if_there(store, layout.metadata(slot), Outcome),
    )


def _writer(store: Store, layout: JobLayout, slot: int) -> str | None:
    """The writer id of the record in a slot; None when there is no record."""
    record = read_if_there(store, layout.pending(slot), Record)
    return record.writer if record is not None else None


def _not_pinned(layout: JobLayout, slot: int) -> NotFoundError:
    return NotFoundError(
        f"checkpoint {slot} of job {layout.job!r} is being collected or gone, so it cannot be pinned: "
        f"`stateflow checkpoints {layout.job}` lists those that stay"
    )

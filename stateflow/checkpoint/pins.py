"""Pins keep one record and everything it reaches: tags, savepoints being made, forks, readers, abandoned
outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from stateflow.checkpoint.layout import JobLayout, checked_name, slot_of
from stateflow.checkpoint.log import BodyCache, read_body
from stateflow.checkpoint.records import Owner, Pin, Record, decode, encode
from stateflow.checkpoint.store import Store, create_once
from stateflow.errors import NotFoundError, StateflowError, UsageError

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
    made = Pin(id=ids(), slot=slot, kind=kind, name=name, owner=owner, reason=reason, at=clock())
    create_once(store, layout.pin(made.id), encode(made))
    # Created first, looked after: a collector marks first and reads the pins after, so one of the two sees
    # the other.
    marked = any(
        (found := slot_of(entry.path)) is not None and found[1].startswith("_dead-")
        for entry in store.list(layout.slot(slot))
    )
    # And the record is read after the marks: when a collector is done, the record goes before its mark does.
    if marked or not _stands(store, layout, slot):
        release(store, layout, made.id)
        raise NotFoundError(
            f"checkpoint {slot} of job {layout.job!r} is being collected or gone, so it cannot be pinned: "
            f"`stateflow checkpoints {layout.job}` lists those that stay"
        )
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


def _stands(store: Store, layout: JobLayout, slot: int) -> bool:
    path = layout.pending(slot)
    try:
        decode(store.read(path), Record, path)
    except NotFoundError:
        return False
    return True

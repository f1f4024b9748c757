"""Pins of processes that died. A killed process does not release its pins, and they would keep their records for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.processes import has_ended, process_start
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Pin
from stateflow.storage.store import Store


def stale(
    pins: Iterable[Pin], here: Owner, started: Callable[[int], str | None] = process_start
) -> list[Pin]:
    """The pins of dead processes on this host (`here`). From here nobody can tell whether a process lives on another host, or in
    another container or a cloned machine with this host's name, and what was made before this machine last started may be another's. Tags and pins of abandoned outputs stay until somebody releases them."""
    temporary = ("reader", "fork", "savepoint")
    return [pin for pin in pins if pin.kind in temporary and has_ended(pin.owner, here, started)]


def release_stale(store: Store, layout: JobLayout) -> list[Pin]:
    """Releases the stale pins and returns them."""
    pins = stale(list_pins(store, layout), this_process())
    for pin in pins:
        release(store, layout, pin.id)
    return pins

"""Pins of processes that died: a killed process releases nothing, and what it pinned would be kept for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.process import this_process
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Pin
from stateflow.storage.store import Store

_STARTED = "process started "


def note_of_process(start: str) -> str:
    """What an owner notes so that a later process with its number is not taken for it."""
    return f"{_STARTED}{start}" if start else ""


def process_start(pid: int) -> str | None:
    """A mark that tells apart processes with one number, empty where there is none; None for no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _answers(pid) else ""
    fields = text.rpartition(")")[2].split()
    # A process that ended and that nobody has waited for is dead all the same.
    return None if fields[0] in ("Z", "X") else fields[19]


def stale(
    pins: Iterable[Pin], here: Owner, started: Callable[[int], str | None] = process_start
) -> list[Pin]:
    """Pins that processes of the host of `here` made for as long as they ran, and that are gone; those of other hosts, or of another
    container of this name, cannot be judged from here. Tags and abandoned outputs are kept until somebody lets them go."""
    passing = ("reader", "fork", "savepoint")
    return [pin for pin in pins if pin.kind in passing and beside(pin.owner, here) and _gone(pin, started)]


def beside(one: Owner, other: Owner) -> bool:
    """Whether the number of one's process means the same to the other."""
    return one.host == other.host and (not one.pids or one.pids == other.pids)


def release_stale(store: Store, layout: JobLayout) -> list[Pin]:
    """Lets them go; gives those that were."""
    found = stale(list_pins(store, layout), this_process())
    for pin in found:
        release(store, layout, pin.id)
    return found


def _gone(pin: Pin, started: Callable[[int], str | None]) -> bool:
    if pin.owner.pid <= 0:
        return False
    start = started(pin.owner.pid)
    noted = pin.owner.note.removeprefix(_STARTED) if pin.owner.note.startswith(_STARTED) else ""
    return start is None or bool(noted and start and noted != start)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

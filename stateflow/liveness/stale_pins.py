"""Pins of processes that died. A killed process does not release its pins, and they would keep their records for ever."""

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
    """The note in an owner that tells its process apart from a later one with the same number."""
    return f"{_STARTED}{start}" if start else ""


def process_start(pid: int) -> str | None:
    """When the process started, as a mark that tells apart processes with one number. Empty if unknown; None for no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _answers(pid) else ""
    fields = text.rpartition(")")[2].split()
    # A zombie process has ended, although its parent has not waited for it.
    return None if fields[0] in ("Z", "X") else fields[19]


def stale(
    pins: Iterable[Pin], here: Owner, started: Callable[[int], str | None] = process_start
) -> list[Pin]:
    """The pins of dead processes on this host (`here`). From here nobody can tell whether a process lives on another host, or in
    another container with this host's name. Tags and pins of abandoned outputs stay until somebody releases them."""
    temporary = ("reader", "fork", "savepoint")
    return [
        pin for pin in pins if pin.kind in temporary and same_host(pin.owner, here) and _is_dead(pin, started)
    ]


def same_host(one: Owner, other: Owner) -> bool:
    """Whether both owners number processes alike: the same host and the same PID namespace."""
    return one.host == other.host and (not one.pids or one.pids == other.pids)


def release_stale(store: Store, layout: JobLayout) -> list[Pin]:
    """Releases the stale pins and returns them."""
    pins = stale(list_pins(store, layout), this_process())
    for pin in pins:
        release(store, layout, pin.id)
    return pins


def _is_dead(pin: Pin, started: Callable[[int], str | None]) -> bool:
    if pin.owner.pid <= 0:
        return False
    start = started(pin.owner.pid)
    noted_start = pin.owner.note.removeprefix(_STARTED) if pin.owner.note.startswith(_STARTED) else ""
    return start is None or bool(noted_start and start and noted_start != start)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

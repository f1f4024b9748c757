"""Whether the process of an owner has ended. Only a process of the same host can tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stateflow.format.records import Owner

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


def has_ended(owner: Owner, here: Owner, started: Callable[[int], str | None] = process_start) -> bool:
    """Whether the owner is known to be a dead process of this host (`here`)."""
    if owner.pid <= 0 or not same_host(owner, here):
        return False
    start = started(owner.pid)
    noted_start = owner.note.removeprefix(_STARTED) if owner.note.startswith(_STARTED) else ""
    return start is None or bool(noted_start and start and noted_start != start)


def same_host(one: Owner, other: Owner) -> bool:
    """Whether both owners number processes alike: the same host and the same PID namespace."""
    return one.host == other.host and (not one.pids or one.pids == other.pids)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

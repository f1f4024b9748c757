"""Whether a process has ended. Only who sees the same table of processes can tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from stateflow.format.records import Owner

_STARTED = "process started "


class ProcessIdentity(msgspec.Struct, frozen=True):
    """The identity of a process: no other process has it, on any machine, now or later."""

    boot: str
    """The kernel makes it up when it starts: other machines, and later starts of this one, have another."""
    namespaces: str
    """The namespaces of process numbers and of the time since boot. Each container of a machine has its own."""
    pid: int
    started: str


def identity_of_this_process() -> ProcessIdentity | None:
    """None where the system does not say all of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        namespaces = " ".join(str(Path("/proc/self/ns", kind).readlink()) for kind in ("pid", "time"))
        own_table = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return None
    started = process_start(os.getpid())
    # Who entered another namespace without mounting its /proc sees the table of the one that he left.
    if not (own_table and boot and started):
        return None
    return ProcessIdentity(boot, namespaces, os.getpid(), started)


def process_start(pid: int) -> str | None:
    """When the process started, as a mark that tells apart processes with one number. Empty if unknown; None for no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # A system may hide the processes of other users.
        return "" if _answers(pid) else None
    fields = text.rpartition(")")[2].split()
    # A zombie process has ended, although its parent has not waited for it.
    return None if fields[0] in ("Z", "X") else fields[19]


def is_dead(
    process: ProcessIdentity | None,
    here: Callable[[], ProcessIdentity | None] = identity_of_this_process,
    started: Callable[[int], str | None] = process_start,
) -> bool:
    """Whether the process is known to have ended. False for every process of another machine or container, dead or alive."""
    if process is None or (own := here()) is None:
        return False
    if (process.boot, process.namespaces) != (own.boot, own.namespaces):
        return False
    start = started(process.pid)
    return start is None or start not in ("", process.started)


def note_of_process(start: str) -> str:
    """The note in an owner that tells its process apart from a later one with the same number."""
    return f"{_STARTED}{start}" if start else ""


def has_ended(owner: Owner, here: Owner, started: Callable[[int], str | None] = process_start) -> bool:
    """Whether the owner of a pin is known to be a dead process of this host (`here`)."""
    if owner.pid <= 0 or not same_host(owner, here):
        return False
    start = started(owner.pid)
    noted_start = owner.note.removeprefix(_STARTED) if owner.note.startswith(_STARTED) else ""
    return start is None or bool(noted_start and start and noted_start != start)


def same_host(one: Owner, other: Owner) -> bool:
    """Whether both owners number processes alike: the same host since it was switched on, and the same namespaces. Two machines
    may have one name, and then the boot tells them apart; where no system says it, the name alone counts."""
    return one.host == other.host and one.pid_scope == other.pid_scope


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

"""What must stay: the roots of a log, and the floor that a new record may announce. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stateflow.errors import UsageError
from stateflow.format.records import Micros, Pin, Record

if TYPE_CHECKING:
    from stateflow.checkpoint.log import Log


def checked_retained(retained: int) -> int:
    """`retained`, if it is a number of checkpoints that a job can live with."""
    if retained < 1:
        raise UsageError(
            f"retained={retained} would collect the checkpoint that the job runs on: keep at least 1"
        )
    return retained


def roots(log: Log, pins: Iterable[Pin], retained: int) -> dict[int, str]:
    """Slots that must stay, each with the reason."""
    kept = {record.slot: "retained" for record in restorable(log)[-checked_retained(retained) :]}
    members = {record.slot for record in log.chain}
    for pin in pins:
        # A pin beside a doomed record came too late, and its maker died before finding that out.
        if pin.slot in members and not log.slots[pin.slot].doomed:
            kept[pin.slot] = f"{pin.kind} {pin.name or pin.id}"
    if (head := log.head) is not None:
        kept[head.slot] = "head"
    for record in log.pending:
        kept[record.slot] = "pending"
    return kept


def retained_by_age(log: Log, retained: int, age: Micros, now: Micros) -> int:
    """How many checkpoints to keep so that those younger than `age` are among them. By the clocks of those who took
    them: what depends on it is how much history there is, never what is safe."""
    young = sum(record.at > now - age for record in restorable(log)) if age > 0 else 0
    return max(checked_retained(retained), young)


def restorable(log: Log) -> list[Record]:
    """Complete checkpoints that retention counts, ascending: none from before a key was erased."""
    erased = max((record.slot for record in log.chain if record.kind == "erase"), default=0)
    return [record for record in log.checkpoints if record.slot > erased]


def floor_after(log: Log, kind: str, retained: int | None) -> int:
    """The floor that the record in the next slot announces: what will be the lowest one kept, pins aside.

    A floor is announced by a decided record before anything at or above the old one is deleted, so that a
    missing record above the floor always means a torn listing, and one below it never does.
    """
    if kind == "erase":
        # What is below holds the key: only this record and what follows is to stay.
        return log.next_slot
    if retained is None or log.decided is None:
        return log.floor
    checked_retained(retained)
    checkpoints = [record.slot for record in restorable(log)]
    needed = [record.slot for record in log.pending]
    if kind == "checkpoint":
        # Carried out before anything is collected for it, it will be the newest of the retained.
        checkpoints.append(log.next_slot)
    needed += checkpoints[-retained:]
    if kind == "fence" and (head := log.head) is not None:
        needed.append(head.slot)
    # Never lower than before: what is missing below the old floor would look like a torn listing.
    return max(log.floor, min(needed, default=log.floor))

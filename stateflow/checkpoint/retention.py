"""Which records must stay, and the floor that a new record may announce. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stateflow.errors import UsageError
from stateflow.format.records import Micros, Pin, Record

if TYPE_CHECKING:
    from stateflow.checkpoint.log import Log


RETAINED = "retained"
"""Reason for a checkpoint that stays: it is one of the newest."""


def checked_retained(retained: int) -> int:
    """`retained`, if it is a number of checkpoints that a job can live with."""
    if retained < 1:
        raise UsageError(
            f"retained={retained} would collect the checkpoint that the job runs on: keep at least 1"
        )
    return retained


def roots(log: Log, pins: Iterable[Pin], retained: int) -> dict[int, str]:
    """Slots of the records that must stay, each with the reason."""
    reasons = {record.slot: RETAINED for record in restorable(log)[-checked_retained(retained) :]}
    members = {record.slot for record in log.chain}
    for pin in pins:
        # A pin on a doomed record came too late, and its maker died before it noticed.
        if pin.slot in members and not log.slots[pin.slot].doomed:
            reasons[pin.slot] = f"{pin.kind} {pin.name or pin.id}"
    if (head := log.head) is not None:
        reasons[head.slot] = "head"
    for record in log.pending:
        reasons[record.slot] = "pending"
    return reasons


def retained_by_age(log: Log, retained: int, age: Micros, now: Micros) -> int:
    """How many checkpoints to keep so that those younger than `age` are among them. It trusts the clocks of the runs that took
    them, because only the length of the history depends on it."""
    young = sum(record.at > now - age for record in restorable(log)) if age > 0 else 0
    return max(checked_retained(retained), young)


def restorable(log: Log) -> list[Record]:
    """The complete checkpoints that retention counts, ascending: none from before an erasure."""
    erased = max((record.slot for record in log.chain if record.kind == "erase"), default=0)
    return [record for record in log.checkpoints if record.slot > erased]


def floor_after(log: Log, kind: str, retained: int | None) -> int:
    """The floor that the record in the next slot announces: the lowest slot that will be kept, apart from pins.

    A decided record announces a floor before anything at or above the old floor is deleted. So a missing record above
    the floor always means an incomplete listing, and a missing record below it never does.
    """
    if kind == "erase":
        # Records below hold the erased key: only this record and later ones may stay.
        return log.next_slot
    if retained is None or log.decided is None:
        return log.floor
    checked_retained(retained)
    checkpoints = [record.slot for record in restorable(log)]
    slots = [record.slot for record in log.pending]
    if kind == "checkpoint":
        # It is carried out before anything is collected, so it will be the newest of the retained.
        checkpoints.append(log.next_slot)
    slots += checkpoints[-retained:]
    if kind == "fence" and (head := log.head) is not None:
        slots.append(head.slot)
    # Never lower than before: a missing record below the old floor would look like an incomplete listing.
    return max(log.floor, min(slots, default=log.floor))

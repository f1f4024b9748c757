"""What a run that has claimed an epoch does next, as one pure function of what it observes.

The loop around it (`claim`) reads everything again before each step: every step is safe to repeat, to leave
half done, and to find already done by somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateflow.checkpoint.log import Log
from stateflow.format.records import Link, Record

DELIVERED = ("committed", "already")


@dataclass(frozen=True, slots=True)
class Stop:
    """A newer run owns the job: for good."""

    newest: int


@dataclass(frozen=True, slots=True)
class PlaceFence:
    """Try to create the next slot, so that no lower epoch can decide anything any more."""

    slot: int
    previous: Link | None
    based_on: int | None
    timeline: int


@dataclass(frozen=True, slots=True)
class CarryOutRecord:
    """Commit the sinks of a decided record, then complete it."""

    record: Record


@dataclass(frozen=True, slots=True)
class CompleteFence:
    """Everything below the fence is carried out."""

    fence: Record


@dataclass(frozen=True, slots=True)
class Ready:
    """The run may decide records of its own."""


Step = Stop | PlaceFence | CarryOutRecord | CompleteFence | Ready


def next_step(log: Log, epoch: int, fence_writer: str) -> Step:
    """What the holder of `epoch`, whose fence has the writer id `fence_writer`, has to do now."""
    top = log.decided
    newest = max(log.newest_epoch, top.epoch if top else 0)
    if newest > epoch:
        return Stop(newest)
    fence = next((record for record in log.chain if record.writer == fence_writer), None)
    if fence is None:
        # Whatever stands below, be it a zombie's last decision or the fence of a run that never went on, is
        # adopted.
        return PlaceFence(
            slot=log.next_slot,
            previous=link_to(top),
            based_on=continued(top),
            timeline=top.timeline if top else 1,
        )
    for record in log.pending:
        if record.slot < fence.slot:
            return CarryOutRecord(record)
    if not log.slots[fence.slot].complete:
        return CompleteFence(fence)
    return Ready()


def link_to(record: Record | None) -> Link | None:
    """How the next record names the one before it."""
    return Link(slot=record.slot, writer=record.writer) if record else None


def continued(record: Record | None) -> int | None:
    """The slot whose state a fence on top of `record` leaves in force."""
    if record is None:
        return None
    return record.slot if record.carries_state else record.based_on


def commits_after(record: Record, outcomes: Mapping[str, str], before: Mapping[str, int]) -> dict[str, int]:
    """Per sink the highest slot whose output it has, once `record` has come out as `outcomes` says."""
    given = {uid: record.slot for uid, outcome in outcomes.items() if outcome in DELIVERED}
    return {**before, **given}


def late_after(
    record: Record, outcomes: Mapping[str, str], before: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Per sink the abandoned slots that it may turn out to have all the same.

    A run that is fenced between its last look at the epochs and its commit delivers what was abandoned
    meanwhile. The sink is then ahead of the log, rightly so; without this, every later record would disagree
    with it for good.
    """
    late = {uid: slots for uid, slots in before.items() if outcomes.get(uid) not in DELIVERED}
    for uid, outcome in outcomes.items():
        if outcome == "abandoned":
            late[uid] = (*late.get(uid, ()), record.slot)
    return late

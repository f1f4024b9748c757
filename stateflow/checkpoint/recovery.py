"""The next step of a run that has claimed an epoch, as one pure function of the log.

The loop around it (`claim`) reads the log again before each step. Every step can be repeated, interrupted half way, or
done by another run first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateflow.checkpoint.log import Log
from stateflow.format.records import Link, Record

DELIVERED = ("committed", "already")


@dataclass(frozen=True, slots=True)
class Stop:
    """A newer run owns the job, and this run never gets it back."""

    newest: int


@dataclass(frozen=True, slots=True)
class PlaceFence:
    """Try to create a fence in the next slot, so that no lower epoch can decide anything any more."""

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
    """Everything below the fence is carried out: complete the fence itself."""

    fence: Record


@dataclass(frozen=True, slots=True)
class Ready:
    """The run may decide records of its own."""


Step = Stop | PlaceFence | CarryOutRecord | CompleteFence | Ready


def next_step(log: Log, epoch: int, fence_writer: str) -> Step:
    """What the run with this epoch has to do now. `fence_writer` is the writer id of its fence."""
    top = log.decided
    newest = max(log.newest_epoch, top.epoch if top else 0)
    if newest > epoch:
        return Stop(newest)
    fence = next((record for record in log.chain if record.writer == fence_writer), None)
    if fence is None:
        # The new run adopts everything below: a zombie's last record, or the fence of a run that died.
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
    """The link by which the next record names this one."""
    return Link(slot=record.slot, writer=record.writer) if record else None


def continued(record: Record | None) -> int | None:
    """The slot whose state stays in force after a fence on top of `record`."""
    if record is None:
        return None
    return record.slot if record.carries_state else record.based_on


def commits_after(record: Record, outcomes: Mapping[str, str], before: Mapping[str, int]) -> dict[str, int]:
    """By sink uid: the highest slot whose output the sink has, after `record` ended with `outcomes`."""
    delivered = {uid: record.slot for uid, outcome in outcomes.items() if outcome in DELIVERED}
    return {**before, **delivered}


def late_after(
    record: Record, outcomes: Mapping[str, str], before: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """By sink uid: the abandoned slots whose output the sink may still get.

    A run checks the epochs and then commits. If it is fenced in between, it delivers an output that was abandoned
    meanwhile. The sink is then ahead of the log, and that is no error. Without this list every later record would
    disagree with the sink for ever.
    """
    late = {uid: slots for uid, slots in before.items() if outcomes.get(uid) not in DELIVERED}
    for uid, outcome in outcomes.items():
        if outcome == "abandoned":
            late[uid] = (*late.get(uid, ()), record.slot)
    return late

"""Which batches of a job can be run again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateflow.checkpoint.log import Log
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import Record
from stateflow.quantities import several

EDITS = {"restore": "put back an older state", "erase": "erased a key"}
"""Kinds of records that change state, and that no code computes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One record that carried state on, and the one that it went on from."""

    before: Record | None
    """None: the job began here."""
    record: Record

    @property
    def is_batch(self) -> bool:
        """A rescale only hands state over."""
        return self.record.kind == "checkpoint"


def span(log: Log, first: int, last: int) -> tuple[Step, ...]:
    """The steps of the batches `first..last`, in their order.

    Each goes on from the record before it. So the record before `first` has to be there, and every one up to `last`.
    """
    if first > last:
        raise UsageError(f"the batches from checkpoint {first} to {last} are none: give an older one first")
    steps = _contiguous(log, last)
    wanted = tuple(step for step in steps if step.record.slot >= first)
    if not wanted or _starts_late(steps, first):
        raise NotFoundError(_gone_sentence(log, first, last, steps))
    for step in wanted:
        if (what := EDITS.get(step.record.kind)) is not None:
            slot = step.record.slot
            raise UsageError(
                f"record {slot} of job {log.job!r} {what}, which no code computes: take batches before it, up to {_below(log, slot)}, "
                f"or after it, from {_above(log, slot)}"
            )
    return wanted


@dataclass(frozen=True, slots=True)
class NewestBatches:
    """The newest batches that can be run again."""

    first: int
    last: int
    note: str = ""
    """Why they are fewer than were asked for, as a sentence."""


def newest_batches(log: Log, count: int) -> NewestBatches:
    """The newest `count` batches, or those of them that can be run again."""
    if not log.checkpoints:
        raise NotFoundError(f"job {log.job!r} has no batch yet that could be run again: run it first")
    newest = log.checkpoints[-1].slot
    taken: list[int] = []
    earliest: Record | None = log.checkpoints[-1]
    edit = ""
    for step in reversed(_contiguous(log, newest)):
        if what := EDITS.get(step.record.kind):
            edit = f"record {step.record.slot} {what}, which no code computes"
            break
        earliest = step.before
        if step.is_batch:
            taken.append(step.record.slot)
        if len(taken) == count:
            return NewestBatches(taken[-1], taken[0])
    gone = (
        earliest
        and f"{_gone_before(earliest)}; the options retained_checkpoints and retention keep more, but nothing from before an erasure"
    )
    why = edit or gone or f"job {log.job!r} has no more"
    if not taken:
        raise NotFoundError(f"no batch of job {log.job!r} can be run again: {why}")
    fewer = f"{several(len(taken), 'batch', 'batches')} instead of {count} can be run again: {why}"
    return NewestBatches(taken[-1], taken[0], fewer)


def _contiguous(log: Log, last: int) -> list[Step]:
    """From the earliest record whose predecessor is there up to `last`."""
    members = {record.slot: record for record in log.chain if log.slots[record.slot].complete}
    log.record(last)  # says which there are, if it is gone
    steps: list[Step] = []
    record: Record | None = members.get(last)
    while record is not None:
        below, begins = _before(record, members)
        if below is None and not begins:
            break
        steps.append(Step(below, record))
        record = below
    return steps[::-1]


def _before(record: Record, members: dict[int, Record]) -> tuple[Record | None, bool]:
    """The record whose state this one continues, and whether there was none."""
    if record.based_on is None:
        return None, True
    return members.get(record.based_on), False


def _gone_before(record: Record) -> str:
    """Why a record cannot be made once more. What it goes on from need be no checkpoint: a rescale goes as they do."""
    if not record.based_on:
        return f"record {record.slot} goes on from a state of elsewhere"
    return f"record {record.based_on}, from which {record.slot} goes on, is no longer kept"


def _starts_late(steps: Sequence[Step], first: int) -> bool:
    """Whether a batch from `first` on is missing: the earliest step is a later one, and not the job's first."""
    earliest = steps[0]
    return earliest.record.slot > first and earliest.before is not None


def _gone_sentence(log: Log, first: int, last: int, steps: Sequence[Step]) -> str:
    kept = {record.slot for record in log.chain if log.slots[record.slot].complete}
    later = [record.slot for record in log.checkpoints if record.slot > last and record.based_on in kept]
    possible = [step.record.slot for step in steps if step.is_batch] or later
    way = (
        f"the first that can is {possible[0]}"
        if possible
        else "keep more with retained_checkpoints or retention, for what runs from then on"
    )
    earliest = steps[0].before if steps else log.record(last)
    why = f", since {_gone_before(earliest)}" if earliest is not None else ""
    return f"the batch of checkpoint {first} of job {log.job!r} cannot be run again{why}; {way}"


def _below(log: Log, slot: int) -> str:
    kept = [record.slot for record in log.checkpoints if record.slot < slot]
    return str(kept[-1]) if kept else "none that is kept"


def _above(log: Log, slot: int) -> str:
    kept = [record.slot for record in log.checkpoints if record.slot > slot]
    return str(kept[0]) if kept else "the next batch on"

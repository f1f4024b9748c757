"""Giving up a decided record that cannot be carried out. Its output is not delivered, and its files are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stateflow.checkpoint.claim import claim_epoch, observe, place_fence
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.pins import list_pins, pin
from stateflow.checkpoint.recovery import CarryOutRecord, PlaceFence
from stateflow.checkpoint.writer import complete_record
from stateflow.errors import UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Outcome, Owner, Pin, Record
from stateflow.storage.store import Store

Probe = Callable[[Record], Mapping[str, bool]]
"""By sink uid: whether the sink has the record's output."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What became of the record."""

    slot: int
    outcome: Outcome
    delivered: tuple[str, ...]
    """Sinks that had the output already."""
    undelivered: tuple[str, ...]
    """Sinks that did not have it. A run that was fenced in the middle of its commit may still deliver to one of them. The
    next record allows for that (`Prepared.late`), so nothing is delivered twice or blocked."""
    kept: tuple[str, ...]
    """Staged files that hold the undelivered output. The pin keeps them until somebody releases it."""
    pin: Pin


def abandon(
    store: Store,
    layout: JobLayout,
    slot: int,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    probe: Probe,
    reason: str = "",
) -> Abandoned:
    """Completes the lowest pending record without its missing outputs. Its state and offsets stay in force.

    It fences a running writer. After a crash the caller can repeat it.
    """
    # Checked before the claim: a mistyped slot must not stop a healthy run.
    log = read_log(store, layout)
    log.require_sound()
    require_lowest(log.job, log.pending, slot)
    claimed = claim_epoch(store, layout, owner=owner, ids=ids, clock=clock)
    while True:
        log, step = observe(store, layout, claimed)
        if not isinstance(step, PlaceFence):
            break
        place_fence(store, layout, log, step, claimed, owner=owner, at=clock())
    # Checked again: the fenced run may have carried the record out meanwhile.
    below = tuple(r for r in log.pending if r.writer != claimed.fence_writer)
    require_lowest(log.job, below, slot)
    assert isinstance(step, CarryOutRecord)
    record = step.record
    # Pinned while it is pending, when nothing can collect it: between the outcome and a later pin a collector could.
    record_pin = _pin_record(store, layout, record, owner=owner, ids=ids, clock=clock, reason=reason)
    delivered = probe(record)
    if set(delivered) != set(record.sinks):
        raise UsageError(
            f"record {slot} of job {layout.job!r} cannot be abandoned: for each of the sinks "
            f"{sorted(record.sinks)} it must be known whether it has the output, and it is known for {sorted(delivered)}"
        )
    # Read again, as before every step: while the probe asked the sinks, a newer run may have carried the record out.
    log, _ = observe(store, layout, claimed)
    outcome = complete_record(
        store,
        layout,
        record,
        {uid: "already" if delivered[uid] else "abandoned" for uid in record.sinks},
        log=log,
        epoch=claimed.epoch,
        owner=owner,
        writer=ids(),
        at=clock(),
        statistics={},
    )
    undelivered = tuple(sorted(uid for uid, result in outcome.sinks.items() if result == "abandoned"))
    return Abandoned(
        slot=slot,
        outcome=outcome,
        delivered=tuple(sorted(set(outcome.sinks) - set(undelivered))),
        undelivered=undelivered,
        kept=tuple(ref.path for uid in undelivered for ref in record.sinks[uid].files if ref.path),
        pin=record_pin,
    )


def require_lowest(job: str, pending: tuple[Record, ...], slot: int) -> Record:
    """The record in the slot. UsageError unless it is the next one to carry out."""
    if pending and pending[0].carries_state and pending[0].slot == slot:
        return pending[0]
    stuck = [record.slot for record in pending if record.carries_state]
    advice = f"the next one to carry out is {stuck[0]}" if stuck else "every record is carried out"
    raise UsageError(
        f"record {slot} of job {job!r} cannot be abandoned: {advice}; `stateflow checkpoints {job}` shows what is pending"
    )


def _pin_record(
    store: Store,
    layout: JobLayout,
    record: Record,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    reason: str,
) -> Pin:
    for earlier in list_pins(store, layout):
        if earlier.kind == "abandoned" and earlier.slot == record.slot:
            return earlier  # made by an attempt that died before it completed the record
    return pin(store, layout, record.slot, kind="abandoned", owner=owner, ids=ids, clock=clock, reason=reason)

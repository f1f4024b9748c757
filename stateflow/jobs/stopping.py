"""Stopping a job's run from outside: asking, and watching until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stateflow.checkpoint.control import StopRequest, read_heartbeat, request_stop, stop_requested
from stateflow.checkpoint.idempotency import EDITS
from stateflow.checkpoint.log import Log, read_epochs, read_log
from stateflow.errors import BusyError

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle

LOOKED_BACK = 8
"""At most this many runs can have begun since an earlier try with the same idempotency key."""
StopOutcome = Literal["not running", "requested", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop request has led to."""

    epoch: int
    outcome: StopOutcome
    checkpoint: int | None
    """The newest complete checkpoint when the answer was known."""
    drained: bool = False
    """Whether that checkpoint is the job's last: every event-time timer has fired."""


def stop_job(
    job: JobHandle,
    *,
    wait: float | None,
    reason: str,
    drain: bool,
    patience: float,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Stopped:
    """Asks the newest run to end; with `wait` (seconds) watches until it has. BusyError when the time is up."""
    store, layout, owner = job.store, job.layout, job.owner()
    log = job.log()
    epoch = _asked_before(job, owner.run) or log.newest_epoch
    beat = read_heartbeat(store, layout, epoch)
    over = epoch < log.newest_epoch or (beat is not None and beat.ended)
    if epoch == 0 or over or (beat is None and _edited(log, epoch)):
        asked = stop_requested(store, layout, epoch)
        # An earlier try with this idempotency key may have asked without seeing the end.
        return _stopped(job, epoch, "stopped" if asked and asked.by.run == owner.run else "not running")
    request_stop(
        store, layout, StopRequest(epoch=epoch, by=owner, reason=reason, drain=drain, at=job.clock())
    )
    if wait is None:
        return _stopped(job, epoch, "requested")
    began = last_change = monotonic()
    counter = beat.counter if beat else 0
    while True:
        now = monotonic()
        beat = read_heartbeat(store, layout, epoch)
        if (beat is not None and beat.ended) or max(read_epochs(store, layout)) > epoch:
            return _stopped(job, epoch, "stopped")
        if beat is not None and beat.counter != counter:
            counter, last_change = beat.counter, now
        if now - last_change > patience:
            return _stopped(job, epoch, "lost")
        if now - began > wait:
            raise BusyError(
                f"the run of job {job.name!r} (epoch {epoch}) has not ended in {wait:g} s: it was asked to, and will "
                "after its batch"
            )
        sleep(0.25)


def _asked_before(job: JobHandle, key: str) -> int | None:
    """The run that an earlier try with this idempotency key has asked to end. A later run is left alone."""
    for epoch in sorted(read_epochs(job.store, job.layout), reverse=True)[:LOOKED_BACK]:
        asked = stop_requested(job.store, job.layout, epoch)
        if asked is not None and asked.by.run == key:
            return epoch
    return None


def _edited(log: Log, epoch: int) -> bool:
    """Whether the epoch was claimed for an edit, which is done: nobody will ever beat for it."""
    top = log.decided
    return top is not None and top.epoch == epoch and top.kind in EDITS and not log.pending


def _stopped(job: JobHandle, epoch: int, outcome: StopOutcome) -> Stopped:
    head = read_log(job.store, job.layout).head
    return Stopped(epoch, outcome, head.slot if head else None, head is not None and head.final)

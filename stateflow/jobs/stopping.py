"""Stops a job's run from outside: asks it to end, and watches until it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stateflow.checkpoint.control import StopRequest, read_heartbeat, request_stop, stop_requested
from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.idempotency import EDITS
from stateflow.checkpoint.log import Log, read_epochs, read_log
from stateflow.checkpoint.processes import is_dead
from stateflow.errors import BusyError, NotFoundError

RECENT_EPOCHS = 8
"""How many epochs to look through for the stop request of an earlier try."""
StopOutcome = Literal["not running", "requested", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of a stop request."""

    epoch: int
    outcome: StopOutcome
    checkpoint: int | None
    """The newest complete checkpoint at that time."""
    drained: bool = False
    """Whether that checkpoint is the job's last: every event-time timer has fired."""


def stop_job(job: JobHandle, *, wait: float | None, reason: str, drain: bool) -> Stopped:
    """Asks the newest run to end. With `wait` (seconds) watches until it has ended. BusyError when the time is up."""
    store, layout, owner = job.store, job.layout, job.owner()
    log = job.log()
    if log.half_deleted:
        raise NotFoundError(log.half_deleted)
    epoch = _asked_before(job, owner.run) or log.newest_epoch
    beat = read_heartbeat(store, layout, epoch)
    over = epoch < log.newest_epoch or (beat is not None and beat.ended)
    if epoch == 0 or over or (beat is None and _edited(log, epoch)):
        request = stop_requested(store, layout, epoch)
        # An earlier try with this idempotency key may have asked, and may have missed the end.
        return _stopped(job, epoch, "stopped" if request and request.by.run == owner.run else "not running")
    request_stop(
        store, layout, StopRequest(epoch=epoch, by=owner, reason=reason, drain=drain, at=job.clock())
    )
    if wait is None:
        return _stopped(job, epoch, "requested")
    began = last_change = job.monotonic()
    counter = beat.counter if beat else 0
    while True:
        now = job.monotonic()
        dead = beat is not None and is_dead(beat.process)  # before the look that would find its last word
        beat = read_heartbeat(store, layout, epoch)
        newest = max(read_epochs(store, layout), default=0)
        if newest == 0:
            raise job.unknown()
        if (beat is not None and beat.ended) or newest > epoch:
            return _stopped(job, epoch, "stopped")
        if beat is not None and beat.counter != counter:
            counter, last_change = beat.counter, now
        patience = job.heartbeat_timeout
        silent = now - last_change > (patience if beat is None else beat.patience(patience))
        if dead or silent:
            return _stopped(job, epoch, "lost")
        if now - began > wait:
            raise BusyError(
                f"the run of job {job.name!r} (epoch {epoch}) has not ended in {wait:g} s: it was asked to, and will "
                "after its batch"
            )
        job.sleep(0.25)


def _asked_before(job: JobHandle, key: str) -> int | None:
    """The epoch that an earlier try with this idempotency key asked to end. A later run must not be stopped instead."""
    for epoch in sorted(read_epochs(job.store, job.layout), reverse=True)[:RECENT_EPOCHS]:
        request = stop_requested(job.store, job.layout, epoch)
        if request is not None and request.by.run == key:
            return epoch
    return None


def _edited(log: Log, epoch: int) -> bool:
    """Whether a finished edit claimed the epoch: it has no process, and no heartbeat will come."""
    top = log.decided
    return top is not None and top.epoch == epoch and top.kind in EDITS and not log.pending


def _stopped(job: JobHandle, epoch: int, outcome: StopOutcome) -> Stopped:
    head = read_log(job.store, job.layout).head
    return Stopped(epoch, outcome, head.slot if head else None, head is not None and head.final)

"""kill -9 of a run's driver while a batch is under way: no goodbye, no clean-up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from stateflow.errors import StateflowError
from stateflow.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Killed:
    """The run that was killed."""

    pid: int
    epoch: int
    checkpoint: int
    """The last checkpoint that it had completed."""


def kill_in_a_batch(
    job: Job,
    *,
    above: int,
    batches: int = 2,
    pause: float = 0.4,
    patience: float = 240,
    meanwhile: Callable[[], object] = lambda: None,
) -> Killed:
    """Kills the driver of the first run above epoch `above`, its JVM included, after so many checkpoints of it.

    The pause leads into the middle of the next batch. StateflowError when it ended before, or never came so far.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        meanwhile()
        status = job.status() if job.exists else None
        # Before its first heartbeat a run says nothing of itself.
        if status is not None and status.epoch > above and status.heartbeat_at is not None:
            slots = [r.slot for r in job.checkpoints() if r.epoch == status.epoch and r.kind == "checkpoint"]
            if status.status == "IDLE":
                raise StateflowError(
                    "the run ended before it could be killed: it had too little to do, or its log says why"
                )
            if len(slots) >= batches:
                time.sleep(pause)
                pid = int(status.owner["pid"])
                os.killpg(os.getpgid(pid), signal.SIGKILL)
                return Killed(pid, status.epoch, slots[-1])
        time.sleep(0.1)
    raise StateflowError(f"job {job.name!r} took no {batches} checkpoints within {patience:g} s")

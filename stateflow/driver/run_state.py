"""The state of a run, decided from one look at its process and its heartbeat. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from stateflow.checkpoint.control import Heartbeat, RunOutcome
from stateflow.driver.processes import ProcessStatus

START_PATIENCE = 600.0
"""Seconds until the first heartbeat of a driver on another host is overdue: a cluster has queues."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
HUNG = 6
"""A process that is seen to live gets the patience this many times."""


@dataclass(frozen=True, slots=True)
class Running:
    """The run is starting or working."""

    epoch: int | None = None
    """None until the run claims the job."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over, with success or with an error."""

    outcome: RunOutcome
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The run is gone, and nothing says how it ended."""

    reason: str
    epoch: int | None = None


RunState = Running | Ended | Lost


@dataclass(frozen=True, slots=True)
class RunObservation:
    """One look at a run."""

    process: ProcessStatus | None
    """None when the driver is not a process of this host."""
    heartbeat: Heartbeat | None
    """The newest heartbeat of this very run; None before its first."""
    silent_for: float
    """Seconds since the heartbeat's counter changed, by the observer's own clock; without a heartbeat, since the first look."""


def run_state(observation: RunObservation, patience: float, last_words: Sequence[str] = ()) -> RunState:
    """`patience`: seconds without a new heartbeat before the run counts as lost, unless it writes them more rarely. `last_words`: the end of the process's output."""
    beat, silence = observation.heartbeat, observation.silent_for
    epoch = beat.epoch if beat else None
    patience = beat.patience(patience) if beat else patience
    if observation.process is not None:
        if observation.process.running:
            if beat is None or silence <= HUNG * patience:
                return Running(epoch)
            if not beat.ended:
                return Lost(f"its process lives, but its heartbeat stood still for {silence:.0f} s", epoch)
            # The run is over, but something keeps its process alive.
            return Ended(_last(beat), epoch)
        code = observation.process.exit_code
        why = observation.process.reason
        if code is not None and (outcome := _outcome(code, beat, last_words, why)) is not None:
            return Ended(outcome, epoch)
    if beat is not None and beat.ended:
        return Ended(_last(beat), epoch)
    if beat is None:
        if observation.process is not None:
            gone = "the driver was gone before it had claimed the job"
            return Lost(f"{gone}: {observation.process.reason}" if observation.process.reason else gone)
        if silence > START_PATIENCE:
            return Lost(f"no heartbeat came within {silence:.0f} s")
        return Running()
    if silence > patience:
        return Lost(f"the heartbeat stood still for {silence:.0f} s", epoch)
    return Running(epoch)


def _last(beat: Heartbeat) -> RunOutcome:
    return beat.outcome or RunOutcome(exit_code=1, error="the run ended without saying how")


def ended_process(status: ProcessStatus, last_words: Sequence[str]) -> RunOutcome:
    """The outcome of a driver that has no heartbeat, from its exit."""
    if status.exit_code is None:
        return RunOutcome(exit_code=1, error="the driver is lost: nobody saw how it ended")
    return _outcome(status.exit_code, None, last_words, status.reason) or RunOutcome()


def _outcome(
    code: int, beat: Heartbeat | None, last_words: Sequence[str], why: str = ""
) -> RunOutcome | None:
    """None when the process exited with 0 and the run has not reported success yet: then nobody knows the outcome."""
    reported = beat.outcome if beat is not None and beat.ended else None
    if reported is not None and reported.exit_code == code:
        return reported
    if code < 0 or code in (137, 143):
        number = -code if code < 0 else code - 128
        named = f"signal {number}, {why}" if why else f"signal {number}"
        return RunOutcome(exit_code=1, error=f"the driver was killed ({named}){_next_step(number, why)}")
    if reported is not None and reported.exit_code:
        return reported
    if code == 0:
        return None
    if why:
        return RunOutcome(exit_code=code, error=f"the driver ended with exit code {code}: {why}")
    return RunOutcome(
        exit_code=code, error=_sentence(last_words) or f"the driver ended with exit code {code}"
    )


def _next_step(number: int, why: str) -> str:
    """A driver that nobody has killed was killed for its memory: the kernel sends SIGKILL and says so in its own log alone."""
    if number != signal.SIGKILL or (why and "oom" not in why.lower()):
        return ""
    if why:
        return (
            ": its pod needs more memory than its limit: raise driver_memory, or spark.driver.memoryOverhead in conf for what is "
            "outside of Java's heap (Python, RocksDB)"
        )
    return (
        ": if nobody did that, its host ran out of memory (`dmesg` then has a line 'Out of memory: Killed process'): let fewer drivers "
        "run there at once (an Airflow pool), lower SparkSubmit(driver_memory=...), or give the host more memory"
    )


def _sentence(last_words: Sequence[str]) -> str:
    """The command's own sentence about its failure, else its last line."""
    for line in reversed(last_words):
        _, prefix, text = _COLOUR.sub("", line).partition("stateflow: ")
        if prefix:
            return text.strip()
    return next((line.strip() for line in reversed(last_words) if any(map(str.isalnum, line))), "")

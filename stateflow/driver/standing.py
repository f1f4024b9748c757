"""Where a followed run stands, judged from what was seen of its process and of its heartbeat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateflow.checkpoint.control import Heartbeat, RunOutcome
from stateflow.driver.keeping import Sight

START_PATIENCE = 600.0
"""Seconds that a driver which cannot be seen may take until its first heartbeat: a cluster has queues."""
HUNG = 6
"""A process that can be seen gets so many times the patience before it is given up."""


@dataclass(frozen=True, slots=True)
class Running:
    """It starts, or works."""

    epoch: int | None = None
    """None while it has not claimed the job."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It is over, well or not."""

    outcome: RunOutcome
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """It is gone without a word."""

    reason: str
    epoch: int | None = None


Standing = Running | Ended | Lost


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a run."""

    process: Sight | None
    """None when the driver is not a process of this host."""
    heartbeat: Heartbeat | None
    """The newest of this very run; None before its first."""
    silent_for: float
    """Seconds since the heartbeat's counter changed, or since the first look when there is none, by one's own clock."""


def standing(seen: Seen, patience: float, last_words: Sequence[str] = ()) -> Standing:
    """`patience` is how long a heart may stand still; `last_words` the end of the process's output."""
    beat = seen.heartbeat
    epoch = beat.epoch if beat else None
    if seen.process is not None:
        if seen.process.running:
            if beat is None or seen.silent_for <= HUNG * patience:
                return Running(epoch)
            if not beat.ended:
                return Lost(
                    f"its process lives, but its heart stood still for {seen.silent_for:.0f} s", epoch
                )
            # The run is over, and something keeps its process from ending.
            return Ended(_last(beat), epoch)
        code = seen.process.exit_code
        if code is not None and (outcome := _outcome(code, beat, last_words)) is not None:
            return Ended(outcome, epoch)
    if beat is not None and beat.ended:
        return Ended(_last(beat), epoch)
    if beat is None:
        if seen.process is not None:
            return Lost("the driver was gone before it had claimed the job")
        if seen.silent_for > START_PATIENCE:
            return Lost(f"no heartbeat came within {seen.silent_for:.0f} s")
        return Running()
    if seen.silent_for > patience:
        return Lost(f"the heartbeat stood still for {seen.silent_for:.0f} s", epoch)
    return Running(epoch)


def _last(beat: Heartbeat) -> RunOutcome:
    return beat.outcome or RunOutcome(exit_code=1, error="the run ended without saying how")


def _outcome(code: int, beat: Heartbeat | None, last_words: Sequence[str]) -> RunOutcome | None:
    """None when the process says that all is well and the run itself has not said so (yet): then it is not known."""
    told = beat.outcome if beat is not None and beat.ended else None
    if told is not None and told.exit_code == code:
        return told
    if code < 0 or code in (137, 143):
        number = -code if code < 0 else code - 128
        return RunOutcome(exit_code=1, error=f"the driver was killed (signal {number})")
    if told is not None and told.exit_code:
        return told
    if code == 0:
        return None
    return RunOutcome(
        exit_code=code, error=_sentence(last_words) or f"the driver ended with exit code {code}"
    )


def _sentence(last_words: Sequence[str]) -> str:
    """What the command says of its failure, if it came to that."""
    for line in reversed(last_words):
        _, found, text = line.partition("stateflow: ")
        if found:
            return text.strip()
    return last_words[-1].strip() if last_words else ""

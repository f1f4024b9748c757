"""The way of a batch's record: decided, delivered to the sinks, complete. The next batch may be evaluated meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.errors import FencedError
from stateflow.format.records import Record
from stateflow.spark.carry_out import Sinks
from stateflow.spark.in_flight import InFlight, Passage
from stateflow.spark.task.failures import translated

Completed = Callable[[Record, Mapping[str, int], float], None]
"""Hears of a complete checkpoint: its record, how many milliseconds each phase took, and the seconds of the whole batch."""


@dataclass
class Deliveries:
    """The deliveries of a run, one at a time."""

    job: str
    writer: Writer
    sinks: Sinks
    options: Options
    uids: Collection[str]
    """Of the pipeline's sinks."""
    ended: float | None = None
    """When the last batch was complete."""
    in_flight: InFlight = field(init=False)
    _latest_end: float = 0.0
    """Until when the record that is on its way may take."""

    def __post_init__(self) -> None:
        self.in_flight = InFlight(self.job)

    def send(
        self,
        slot: int,
        record: Draft,
        began: float,
        evaluating: float,
        waited: float,
        completed: Completed,
    ) -> None:
        """Begins the way of a record, and returns when it is decided; where records do not overlap, when it is complete.

        `began`: when the batch did. Since then it was evaluated for `evaluating` seconds, and has `waited` for the record before.
        """

        def steps(passage: Passage) -> None:
            try:
                self._deliver(passage, record, began, evaluating, completed)
            except Exception as error:
                # Who waits for the record, or looks at it, may be no batch that would ask for the real reason.
                problem = cause(self.writer, translated(error)) if passage.is_decided else error
                if problem is error:
                    raise
                raise problem from error

        self._latest_end = began + waited + self.options.batch_deadline.total_seconds()
        self.in_flight.send(slot, steps, self._time_left())
        if self.options.max_concurrent_checkpoints == 1:
            self.settle()

    def settle(self) -> None:
        """Waits for the record that is on its way."""
        self.in_flight.arrive(self._time_left())

    def look(self) -> None:
        """Raises what has failed since the last batch was decided, or is overdue: no later batch may come that would wait for it."""
        self.in_flight.look(self._time_left)

    def late(self) -> Mapping[str, tuple[int, ...]]:
        """Per sink the slots that it may or may not have. So it is with that of the record on its way."""
        known, slot = self.writer.late, self.in_flight.slot
        if slot is None:
            return known
        return {uid: (*known.get(uid, ()), slot) for uid in self.uids}

    def _deliver(
        self, passage: Passage, draft: Draft, began: float, evaluating: float, completed: Completed
    ) -> None:
        writer = self.writer
        # 1. The decision.
        deciding = time.perf_counter()
        permit = writer.decide(draft)
        committing = time.perf_counter()
        passage.decided()
        # 2. The sinks make their rows visible.
        outcomes = self.sinks.carry_out(permit, writer.still_owner)
        committed = time.perf_counter()
        # 3. The checkpoint is complete.
        phases = {
            "evaluate_ms": round(evaluating * 1000),
            "decide_ms": round((committing - deciding) * 1000),
            "commit_ms": round((committed - committing) * 1000),
        }
        if self.options.max_concurrent_checkpoints > 1:
            phases["waited_ms"] = round((deciding - began - evaluating) * 1000)
        writer.complete(permit, outcomes, phases)
        self.ended = time.perf_counter()
        # 4. Others hear of it.
        completed(permit.record, phases, self.ended - began)

    def _time_left(self) -> float | None:
        """Seconds until the record that is on its way is overdue; None if it never is."""
        if not self.options.batch_deadline:
            return None
        return max(0.0, self._latest_end - time.perf_counter())


def cause(writer: Writer, problem: Exception) -> Exception:
    """The real reason why a batch failed: when a newer run has taken the job over, its collector deletes this run's files.

    The missing file would invite a retry beside the newer run, so the error says who owns the job.
    """
    if isinstance(problem, FencedError):
        return problem
    try:
        writer.still_owner()
    except FencedError as fenced:
        return fenced
    except Exception:
        return problem  # the store does not say
    return problem

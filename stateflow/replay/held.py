"""The newest batches of a job, held for a replay of them while runs go on and collect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import found_and_held, pinned
from stateflow.replay.evaluation import records_read
from stateflow.replay.span import Step, newest_batches, span


@dataclass(frozen=True)
class HeldBatches:
    """Batches whose records are pinned, and the log that they were found in."""

    log: Log
    steps: Sequence[Step]
    note: str
    """Why they are fewer than were asked for, as a sentence."""


@contextmanager
def held_newest(job: JobHandle, count: int) -> Iterator[HeldBatches]:
    """The newest `count` batches, or those of them that can be run again. They are pinned at once and until the block ends: a pipeline may
    take long to build, and a run collects the oldest of them meanwhile."""

    def find() -> HeldBatches:
        log = job.log()
        cut = newest_batches(log, count)
        return HeldBatches(log, span(log, cut.first, cut.last), cut.note)

    batches, pins = found_and_held(find, lambda found: _pins(job, found))
    with pins:
        yield batches


def _pins(job: JobHandle, found: HeldBatches) -> ExitStack:
    """Pins all of them or none, the oldest first: it is the next to be collected."""
    slots = sorted(record.slot for record in records_read(found.log, found.steps))
    with ExitStack() as pins:
        for slot in slots:
            pins.enter_context(
                pinned(
                    job.store, job.layout, slot, kind="reader", owner=job.owner("replay"), ids=job.new_id, clock=job.clock,
                    reason="replay",
                )
            )  # fmt: skip
        return pins.pop_all()

"""What is known of a run's sources between two batches: how far they are read, which of them wait, and where the watermark stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stateflow.checkpoint.writer import Writer
from stateflow.compatibility.states import as_begun
from stateflow.config.options import Options
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import Record, SourceState
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.admission import Admission
from stateflow.spark.inputs.alignment import waiting
from stateflow.spark.inputs.silence import Looking, recorded_sources
from stateflow.spark.inputs.watermark import Holder, holder_of, timers_due, watermark_of


@dataclass
class SourceProgress:
    flow: Flow
    writer: Writer
    options: Options
    clock: Callable[[], int]
    admission: Admission
    looking: Looking = field(init=False)
    """What the queries look into."""
    draining: bool = False
    """The input is over for good: the watermark stands at its end."""
    _over: set[str] = field(default_factory=set)
    """Sources that this run has read to their end: nobody waits for them any more, nor they for others."""
    _begun: tuple[Record, Record] | None = None
    """The newest record, and what it is to this code."""
    _had_rows: float | None = None
    """When the last batch ended that Spark has begun, since it had something to read."""

    def __post_init__(self) -> None:
        self.looking = Looking(tuple(node.uid for node in self.flow.sources))
        self._hold_first()

    def recorded(self) -> dict[str, SourceState]:
        """The sources as the newest record has them."""
        return recorded_sources(self.writer.parent)

    def known(self, now: int) -> dict[str, SourceState]:
        """The sources as far as they are known: what the record says, and what the run has seen since by looking."""
        return self.looking.known(self.recorded(), now, self.admission.waits)

    def watermark(self, now: int) -> int | None:
        if self.draining:
            return END_OF_TIME
        parent = self.writer.parent
        before = parent.watermark if parent else None
        return watermark_of(self.flow, self.known(now), before, self.idle_after)

    def due(self) -> bool:
        """Whether a timer would fire in an input-free batch now."""
        parent = self.writer.parent
        if parent is None:
            return False
        if self._begun is None or self._begun[0] is not parent:
            self._begun = parent, as_begun(self.flow.operators, parent)
        now = self.clock()
        return timers_due(self._begun[1], self.watermark(now), now, draining=self.draining)

    def held(self) -> Holder | None:
        """What holds the watermark back."""
        parent = self.writer.parent
        if parent is None or parent.final:
            return None
        return holder_of(self.flow, self.known(self.clock()), self.idle_after)

    @property
    def idle_after(self) -> int:
        return round(self.options.source_idle_timeout.total_seconds() * 1e6)

    # -- which of them wait

    def batch_ended(self, rows: int, seconds: float) -> None:
        """A batch of the query has ended. From what it cost follows what the next one may take."""
        self.admission.ran(rows, seconds, self._waiting())
        self._had_rows = time.perf_counter()

    def go_on(self) -> bool:
        """Call it when there is nothing to read but of sources that wait; returns whether there are any, of which some go on now."""
        held = set(self.admission.waits)
        if not held or self.options.trigger != "drain":
            return self.admission.release()
        self._over |= {node.uid for node in self.flow.sources} - held
        self._hold_first()
        return True

    def silent_too_long(self) -> bool:
        """Whether no batch has come for so long that the sources which others wait for are idle."""
        idle = self.options.source_idle_timeout.total_seconds()
        return idle > 0 and self._had_rows is not None and time.perf_counter() - self._had_rows > idle

    def _hold_first(self) -> None:
        """Lets sources wait in a query's first batch, if that can be held back."""
        self.admission.hold(self._waiting() if self.admission.plans_first_batch else {})

    def _waiting(self) -> dict[str, str]:
        """The sources that the next batch takes nothing of."""
        parent, drift = self.writer.parent, self.options.max_source_drift
        if parent is None or not drift:
            return {}
        micros = round(drift.total_seconds() * 1e6)
        return waiting(self.flow, self.recorded(), micros, parent.now, self.idle_after, self._over)

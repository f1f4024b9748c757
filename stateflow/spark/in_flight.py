"""The record of a batch on its way: decided, delivered, complete. The next batch may be evaluated meanwhile.

No record is decided before the one below it is complete. So the log has one pending record at most, and every rule of the protocol
holds as it does for a run that does one thing after the other. A run on which one thing hangs ends all the same: the way has a
thread of its own, for which nobody waits longer than the deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from stateflow.errors import UnavailableError


class Passage:
    """The way of one record."""

    def __init__(self, slot: int, job: str, steps: Callable[[Passage], None]) -> None:
        self.slot = slot
        self.job = job
        self.error: BaseException | None = None
        self._steps = steps
        self.is_decided = False
        self._known = threading.Event()
        """Whether it is decided is known, or its way has ended."""
        self._ended = threading.Event()

    def decided(self) -> None:
        """Called by the steps: from here on the batch has happened."""
        self.is_decided = True
        self._known.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def go(self) -> None:
        try:
            self._steps(self)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()
            self._known.set()

    def wait(self, *, to_the_end: bool, seconds: float | None) -> None:
        """Waits until the record is decided, or complete; raises what has failed on its way."""
        event = self._ended if to_the_end else self._known
        if not event.wait(seconds):
            raise self.overdue_error()
        if self.error is not None:
            raise self.error

    def overdue_error(self) -> UnavailableError:
        if self.is_decided:
            return UnavailableError(
                f"record {self.slot} of job {self.job!r} is decided, and its sinks have not taken it within batch_deadline: see "
                "whether their tables and the store answer, or give batches more time, and run again; the next run delivers it"
            )
        return UnavailableError(
            f"the store has not said within batch_deadline whether record {self.slot} of job {self.job!r} is decided: run again "
            "when it answers; the next run finds out"
        )


class InFlight:
    """The records of a run on their way, one at a time."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._passages: SimpleQueue[Passage | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._passage: Passage | None = None
        self.overdue = False
        """True once a record took longer than it may. This run decides no other one."""

    @property
    def slot(self) -> int | None:
        """The slot of the record that is on its way; None when the newest has arrived."""
        passage = self._passage
        return passage.slot if passage is not None else None

    @property
    def failed(self) -> bool:
        """Whether a record did not arrive. What it needs, the next run does."""
        passage = self._passage
        return self.overdue or (passage is not None and passage.has_ended and passage.error is not None)

    def send(self, slot: int, steps: Callable[[Passage], None], seconds: float | None) -> None:
        """Begins the way of a record, and returns when it is decided."""
        if self._passage is not None:
            raise AssertionError("a record is sent when the one before has arrived")
        if self._thread is None:
            # A daemon: an interpreter that ends waits for no other thread.
            self._thread = threading.Thread(target=self._work, name="stateflow-in-flight", daemon=True)
            self._thread.start()
        passage = self._passage = Passage(slot, self._job, steps)
        self._passages.put(passage)
        try:
            self._await(passage, to_the_end=False, seconds=seconds)
        finally:
            if passage.has_ended and not passage.is_decided:
                self._passage = None  # no such record was sent: the batch may be tried again

    def arrive(self, seconds: float | None) -> None:
        """Returns when no record is on its way; raises what has failed there."""
        passage = self._passage
        if passage is not None:
            self._await(passage, to_the_end=True, seconds=seconds)
            self._passage = None

    def look(self, time_left: Callable[[], float | None]) -> None:
        """Raises what has failed behind its decision, or takes too long there, without waiting. Another thread may send and wait
        meanwhile. `time_left`: of the record on its way, or of a later one; asked once it is known which one is on its way."""
        passage = self._passage
        if passage is None or not passage.is_decided:
            return
        left = time_left()
        if passage.has_ended:
            if passage.error is not None:
                raise passage.error
        elif left is not None and left <= 0:
            self.overdue = True
            raise passage.overdue_error()

    def close(self) -> None:
        self._passages.put(None)

    def _await(self, passage: Passage, *, to_the_end: bool, seconds: float | None) -> None:
        try:
            passage.wait(to_the_end=to_the_end, seconds=seconds)
        except UnavailableError:
            self.overdue = self.overdue or not passage.has_ended
            raise

    def _work(self) -> None:
        while (passage := self._passages.get()) is not None:
            passage.go()

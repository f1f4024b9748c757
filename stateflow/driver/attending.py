"""Attending to a scheduler's run of a job: reattaches to a driver that outlived its task, or starts one, and follows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from stateflow.checkpoint.control import (
    Heartbeat,
    RunOutcome,
    StopRequest,
    read_heartbeat,
    read_progress,
    request_stop,
    same_owner,
    watch,
)
from stateflow.checkpoint.log import read_epochs
from stateflow.checkpoint.records import Owner
from stateflow.driver.errand import Errand
from stateflow.driver.keeping import Sight
from stateflow.driver.standing import Ended, Lost, Running, Seen, Standing, standing
from stateflow.errors import BusyError, StateflowError, UnavailableError, error_of

if TYPE_CHECKING:
    from stateflow.job import Job

OnLive = Literal["refuse", "wait", "takeover"]
KILLED = "its task was killed"
"""The reason of a stop request that a retry need not heed: it starts another driver."""
GRACE = 120.0
"""Seconds that a driver gets to end its batch when its task was killed."""
STORE_PATIENCE = 300.0
"""Seconds for which a store may be out of reach before whoever follows a run gives up."""


class Driver(Protocol):
    """A driver that was started from here, or found."""

    @property
    def name(self) -> str: ...
    def look(self) -> Sight: ...
    def output(self) -> list[str]: ...
    def last_words(self) -> list[str]: ...
    def stop(self, grace: float) -> None: ...


class Launcher(Protocol):
    """How drivers are started; another kind of cluster needs another launcher and no other operator."""

    def find(self, errand: Errand) -> Driver | None:
        """The driver that was last started for this very task, if it can be seen from here."""
        ...

    def launch(self, errand: Errand) -> Driver | None:
        """Starts one; None when it is followed by its heartbeat alone."""
        ...


class Attendance:
    """One try of a scheduler's task."""

    def __init__(
        self,
        job: Job,
        errand: Errand,
        launcher: Launcher,
        owner: Owner,
        *,
        on_live: OnLive = "refuse",
        say: Callable[[str], object] = lambda line: None,
        patience: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.job, self.errand, self.launcher, self.owner = job, errand, launcher, owner
        self.on_live, self.say, self.patience = on_live, say, patience
        self._monotonic, self._sleep, self._clock = monotonic, sleep, clock
        self.driver: Driver | None = None
        self.reattached = False
        self.epoch: int | None = None
        """The run's epoch, once it has claimed the job."""
        self.above = 0
        """Runs up to this epoch were there before ours."""
        self._counter: tuple[int, int] | None = None
        self._changed = 0.0
        self._told = 0
        self._beat: Heartbeat | None = None
        self._unreachable: float | None = None

    def begin(self) -> None:
        """Finds this task's own driver or starts one."""
        store, layout = self.job.store, self.job.layout
        found = self.launcher.find(self.errand)
        newest, beat = self._newest()
        mine = beat is not None and not beat.ended and same_owner(beat.owner, self.owner)
        self._changed = self._monotonic()
        if found is not None and found.look().running:
            self.driver, self.reattached = found, True
            self.above = newest - 1 if mine else newest
            self.say(
                f"{self.job.name}: the driver of an earlier try still runs ({found.name}): going on with it"
            )
            return
        # A process of this host that is not there any more needs no watching of its heart.
        gone = found is not None and beat is not None and beat.owner.host == socket.gethostname()
        if mine and not gone:
            alive = watch(
                store,
                layout,
                patience=self.patience,
                monotonic=self._monotonic,
                sleep=self._sleep,
                interval=0.5,
            )
            if alive.alive and alive.owner is not None and same_owner(alive.owner, self.owner):
                self.reattached, self.above = True, alive.epoch - 1
                host = alive.owner.host or "another host"
                self.say(
                    f"{self.job.name}: the driver of an earlier try still runs on {host}: following its heartbeat"
                )
                return
        self.above = newest
        self.reattached = False
        self._launch()

    def rejoin(self, above: int, *, reattached: bool) -> None:
        """Takes up what `begin` of another process has begun."""
        self.driver = self.launcher.find(self.errand)
        self.above, self.reattached = above, reattached
        self._changed = self._monotonic()

    def look(self) -> Standing:
        """Where the run stands; tells what is new."""
        driver = self.driver
        sight = driver.look() if driver else None
        if driver is not None:
            for line in driver.output():
                self.say(line)
        beat = self._sought()
        if beat is not None:
            self.epoch = beat.epoch
            if self._counter != (beat.epoch, beat.counter):
                self._counter, self._changed = (beat.epoch, beat.counter), self._monotonic()
        seen = Seen(sight, beat, self._monotonic() - self._changed)
        return standing(seen, self.patience, driver.last_words() if driver else ())

    def run(self, interval: float = 0.5) -> RunOutcome:
        """To the end; raises what went wrong, as the run itself would have."""
        self.begin()
        while True:
            stands = self.look()
            if isinstance(stands, Running):
                self._sleep(interval)
                continue
            if not self.again(stands):
                return self.result(stands)

    def again(self, stands: Ended | Lost) -> bool:
        """Whether a run that is over gives way to another one of this very try, which is begun then."""
        if isinstance(stands, Ended):
            if self.reattached and not stands.outcome.exit_code and KILLED in stands.outcome.stopped:
                self.say(
                    f"{self.job.name}: the earlier driver has stopped as its task's end demanded; starting anew"
                )
                self.begin()
                return True
            if stands.outcome.exit_code == BusyError.exit_code and self.on_live == "wait":
                self.say(f"{stands.outcome.error}; waiting for its end")
                self._wait_for_other()
                self.begin()
                return True
        return False

    def result(self, stands: Ended | Lost) -> RunOutcome:
        """What the run has come to."""
        if isinstance(stands, Lost):
            if self.driver is not None:
                self.driver.stop(0)
            raise StateflowError(
                f"the driver of job {self.job.name!r} is lost ({stands.reason}): what it has decided stands, and the next try "
                "goes on from there"
            )
        outcome = stands.outcome
        if outcome.exit_code:
            raise error_of(outcome.exit_code, outcome.error)
        return outcome

    def stop(self, reason: str = KILLED, grace: float = GRACE) -> None:
        """Asks the run to end after its batch; a driver of this host that does not is killed when the grace is over.

        Returns at once: a scheduler gives its tasks seconds.
        """
        beat = self._heartbeat()
        if beat is not None and not beat.ended:
            request = StopRequest(epoch=beat.epoch, by=self.owner, reason=reason, at=self._clock())
            request_stop(self.job.store, self.job.layout, request)
        if self.driver is not None:
            # Before it has claimed the job there is nothing to end in good order.
            self.driver.stop(grace if beat is not None else 0.0)

    def _launch(self) -> None:
        previous = self.launcher.find(self.errand)
        if previous is not None and previous.look().running:
            previous.stop(0)
        errand = replace(self.errand, takeover=True) if self.on_live == "takeover" else self.errand
        self.driver = self.launcher.launch(errand)
        self._changed = self._monotonic()

    def _wait_for_other(self) -> None:
        while True:
            live = watch(
                self.job.store, self.job.layout, patience=self.patience, monotonic=self._monotonic,
                sleep=self._sleep, interval=0.5,
            )  # fmt: skip
            if not live.alive:
                return
            self._sleep(1.0)

    def _newest(self) -> tuple[int, Heartbeat | None]:
        epoch = max(read_epochs(self.job.store, self.job.layout), default=0)
        return epoch, read_heartbeat(self.job.store, self.job.layout, epoch) if epoch else None

    def _sought(self) -> Heartbeat | None:
        """The heartbeat; the last one known while the store cannot be reached, which is no sign of death."""
        now = self._monotonic()
        try:
            self._beat = self._heartbeat()
            if self.driver is None and self._beat is not None:
                self._progress(self._beat.epoch)
        except UnavailableError as error:
            if self._unreachable is None:
                self._unreachable = now
                self.say(f"{self.job.name}: {error}; looking again")
            if now - self._unreachable > STORE_PATIENCE:
                raise
            self._changed = now
            return self._beat
        self._unreachable = None
        return self._beat

    def _heartbeat(self) -> Heartbeat | None:
        """Of this run: the newest of its owner's above the epochs that were there before it."""
        if self.epoch is not None and self.epoch > self.above:
            return read_heartbeat(self.job.store, self.job.layout, self.epoch)
        epochs = sorted(read_epochs(self.job.store, self.job.layout), reverse=True)
        for epoch in epochs:
            if epoch <= self.above:
                break
            beat = read_heartbeat(self.job.store, self.job.layout, epoch)
            if beat is not None and same_owner(beat.owner, self.owner):
                return beat
        return None

    def _progress(self, epoch: int) -> None:
        progress = read_progress(self.job.store, self.job.layout, epoch)
        if progress is not None and progress.slot > self._told:
            self._told = progress.slot
            rows = int(progress.statistics.get("processed_rows", 0))
            self.say(f"{self.job.name}: checkpoint {progress.slot}, {rows:,} rows")

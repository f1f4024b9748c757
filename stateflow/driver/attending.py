"""Attending to a scheduler's run of a job: reattaches to a driver that outlived its task, or starts one, and follows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import (
    INTERRUPTED,
    KILLED,
    Heartbeat,
    RunOutcome,
    StopRequest,
    read_heartbeat,
    read_progress,
    request_stop,
    same_owner,
    stop_requested,
    watch,
)
from stateflow.checkpoint.log import read_epochs
from stateflow.driver.errand import Errand
from stateflow.driver.handover import Handover
from stateflow.driver.keeping import Sight
from stateflow.driver.standing import Ended, Lost, Running, Seen, Standing, standing
from stateflow.errors import BusyError, FencedError, StateflowError, UnavailableError, error_of
from stateflow.format.records import Owner

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

OnLive = Literal["refuse", "wait", "takeover"]
GRACE = 120.0
"""Seconds that a driver gets to end its batch when its task was killed."""
STORE_PATIENCE = 300.0
"""Seconds for which a store may be out of reach before whoever follows a run gives up."""
LOOK_AGAIN = 5.0
"""Seconds after which a run that is known is looked for anew: a newer one of the same task may have taken over from it."""


class Driver(Protocol):
    """A driver that was started from here, or found."""

    @property
    def name(self) -> str: ...
    @property
    def above(self) -> int:
        """The newest epoch of its job when it was started: its own run's is higher."""
        ...

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
        """Starts one, which remembers `errand.above`; None when it is followed by its heartbeat alone."""
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
        self._searched = -LOOK_AGAIN
        self._given_up = ""
        self._seen_end: RunOutcome | None = None
        self._folder = ""
        """Of the driver, which is on another host if it is not found."""

    def begin(self) -> None:
        """Finds this task's own driver or starts one."""
        store, layout = self.job.store, self.job.layout
        self.driver = self.epoch = self._beat = self._counter = None
        self._given_up, self._seen_end, self._folder = "", None, ""
        found = self.launcher.find(self.errand)
        newest, beat = self._newest()
        mine = beat is not None and not beat.ended and same_owner(beat.owner, self.owner)
        self._changed = self._monotonic()
        if found is not None and found.look().running:
            self.driver, self.reattached = found, True
            self.above = found.above
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

    def handover(self, stands: Standing | None = None) -> Handover:
        """For another process, which rejoins with it; `stands` is how this one saw the run last."""
        return Handover(
            above=self.above,
            reattached=self.reattached,
            folder=self.driver.name if self.driver is not None else self._folder,
            given_up=stands.reason if isinstance(stands, Lost) else "",
            outcome=stands.outcome if isinstance(stands, Ended) else None,
            counter=self._counter,
        )

    def rejoin(self, told: Handover) -> None:
        """Takes up what `begin` of another process has begun: its driver, or the driver's heartbeat alone."""
        found = self.launcher.find(self.errand)
        # Whatever else this task has started on this host belongs to another try.
        self.driver = found if found is not None and found.name == told.folder else None
        self.above, self.reattached, self._folder = told.above, told.reattached, told.folder
        self._given_up, self._seen_end, self._counter = told.given_up, told.outcome, told.counter
        self._changed = self._monotonic()

    def settled(self, interval: float = 0.5) -> Standing:
        """Where a rejoined run stands. One that was given up elsewhere is lost here, too, unless there is a new sign of it."""
        before = self._counter
        if self._seen_end is not None:
            return Ended(self._seen_end, before[0] if before else None)
        stands = self.look()
        while self._given_up and isinstance(stands, Running) and self._counter == before:
            if self.driver is None or not self.driver.look().running:
                return Lost(self._given_up, stands.epoch)
            if before is None:
                return stands  # a process that can be seen from here, and still starts
            self._sleep(interval)
            stands = self.look()
        return stands

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
            code = stands.outcome.exit_code
            if (not code and KILLED in stands.outcome.stopped) or (code == 1 and self._recalled(stands)):
                self.say(
                    f"{self.job.name}: the earlier driver has stopped as its task's end demanded; starting anew"
                )
                self.begin()
                return True
            if code == FencedError.exit_code and self._has_sibling():
                self.say(
                    f"{self.job.name}: another driver of this very task has taken over; going on with that one"
                )
                self.begin()
                return True
            if code == BusyError.exit_code and self.on_live == "wait":
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
        if self.driver is not None and self.driver.look().running:
            self.driver.stop(0)  # its run is over; something keeps the process from ending
        outcome = stands.outcome
        if outcome.exit_code:
            raise error_of(outcome.exit_code, outcome.error)
        if outcome.stopped == INTERRUPTED:
            raise StateflowError(
                f"the driver of job {self.job.name!r} was told to end by its host before its input was used up: the next try "
                "goes on from there"
            )
        return outcome

    def stop(self, reason: str = KILLED, grace: float = GRACE) -> None:
        """Asks the run to end after its batch; a driver of this host that does not is killed when the grace is over.

        Returns at once: a scheduler gives its tasks seconds.
        """
        beat = self._beat
        try:
            beat = self._heartbeat()
            if beat is None:
                # Wherever it is, it is told as soon as it claims the job; unless it just has.
                scheduled.recall(self.job.store, self.job.layout, self.errand.dag_run, self.errand.task)
                beat = self._heartbeat()
            if beat is not None and not beat.ended:
                request = StopRequest(epoch=beat.epoch, by=self.owner, reason=reason, at=self._clock())
                request_stop(self.job.store, self.job.layout, request)
        finally:
            # A signal can come while one is being launched.
            driver = self.driver or self.launcher.find(self.errand)
            if driver is not None:
                # Before it has claimed the job there is nothing to end in good order.
                driver.stop(grace if beat is not None else 0.0)

    def _recalled(self, stands: Ended) -> bool:
        """Whether an earlier try's end had asked for this one: the driver overstayed its grace, and was killed."""
        if not self.reattached or stands.epoch is None:
            return False
        asked = stop_requested(self.job.store, self.job.layout, stands.epoch)
        return asked is not None and asked.reason == KILLED

    def _has_sibling(self) -> bool:
        """Whether the run that fenced this one is of the same task: a driver that an earlier try had sent."""
        newest, beat = self._newest()
        return (
            beat is not None and not beat.ended and same_owner(beat.owner, self.owner) and newest > self.above
        )

    def _launch(self) -> None:
        scheduled.recall(
            self.job.store, self.job.layout, self.errand.dag_run, self.errand.task, recalled=False
        )
        previous = self.launcher.find(self.errand)
        if previous is not None and previous.look().running:
            previous.stop(0)
        errand = replace(
            self.errand, takeover=self.errand.takeover or self.on_live == "takeover", above=self.above
        )
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
            # The next run of the job clears the last one's away; what it had said stands.
            self._beat = self._heartbeat() or self._beat
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
        now = self._monotonic()
        if self.epoch is not None and self.epoch > self.above and now - self._searched < LOOK_AGAIN:
            known = read_heartbeat(self.job.store, self.job.layout, self.epoch)
            if known is not None and not known.ended:
                return known
        self._searched = now
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

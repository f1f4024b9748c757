"""Supervision of a scheduler's run: it reattaches to a driver that outlived its task, or starts one, and follows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import (
    INTERRUPTED,
    KILLED,
    Heartbeat,
    Liveness,
    RunOutcome,
    StopRequest,
    newest_heartbeat,
    read_heartbeat,
    read_progress,
    refuse_while_live,
    request_stop,
    same_owner,
    stop_requested,
    watch,
)
from stateflow.checkpoint.log import read_epochs
from stateflow.driver.handover import Handover
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import DriverSpec, RunSpec
from stateflow.driver.run_state import Ended, Lost, Running, RunObservation, RunState, run_state
from stateflow.errors import BusyError, FencedError, StateflowError, UnavailableError, error_of
from stateflow.format.records import Owner
from stateflow.quantities import several

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

OnLive = Literal["refuse", "wait", "takeover"]
GRACE = 120.0
"""Seconds that a driver gets to end its batch after its task was killed."""
STORE_PATIENCE = 300.0
"""Seconds that the store may be out of reach before supervision fails."""
LOOK_AGAIN = 5.0
"""Seconds between searches for a newer run of the same task, which may have taken over."""


class Driver(Protocol):
    """A driver that this process started or found."""

    @property
    def name(self) -> str: ...
    @property
    def above(self) -> int:
        """The job's newest epoch when the driver was started: its run's epoch is higher."""
        ...

    @property
    def submitting(self) -> bool:
        """Whether it is still being handed to a cluster, by a process of this host that must not end yet."""
        ...

    def look(self) -> ProcessStatus: ...
    def output(self) -> list[str]: ...
    def last_words(self) -> list[str]: ...
    def stop(self, grace: float) -> None: ...


class Launcher(Protocol):
    """How drivers are started; another kind of cluster needs another launcher and no other operator."""

    def find(self, spec: DriverSpec) -> Driver | None:
        """The driver that was last started for this very task, if it is a process of this host."""
        ...

    def launch(self, spec: DriverSpec) -> Driver | None:
        """Starts a driver, which remembers `spec.above`. None: only its heartbeat can be followed."""
        ...


class Supervision:
    """One try of a scheduler's task."""

    def __init__(
        self,
        job: Job,
        spec: RunSpec,
        launcher: Launcher,
        owner: Owner,
        *,
        on_live: OnLive = "refuse",
        busy_timeout: float | None = None,
        foresee: Callable[[], RunOutcome | None] = lambda: None,
        begun: Callable[[int], bool] = lambda epoch: True,
        say: Callable[[str], object] = lambda line: None,
        patience: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`busy_timeout`: seconds to wait for another run with `on_live="wait"`; None for no limit.

        `foresee` is asked while no run lives: it gives the outcome of a run that would have nothing to do. Then none is
        started. `begun` is called with the run's epoch at each of its heartbeats, until it returns True.
        """
        self.job, self.spec, self.launcher, self.owner = job, spec, launcher, owner
        self.on_live, self.say, self.patience = on_live, say, patience
        self._busy_timeout, self._foresee, self._begun = busy_timeout, foresee, begun
        self._noticed = 0
        """The epoch that `begun` has taken note of."""
        self.foreseen: RunOutcome | None = None
        """The outcome of a run that was not needed."""
        self.gave_way_at: float | None = None
        """When this try first gave way to another run, in seconds since 1970, as an earlier process of it knows."""
        self.ended_before = False
        """Whether that is the outcome of an earlier try's run, which ended well while nobody followed it."""
        self._busy_since: float | None = None
        self._monotonic, self._sleep, self._clock = monotonic, sleep, clock
        self.driver: Driver | None = None
        self.reattached = False
        self.epoch: int | None = None
        """The run's epoch, once it has claimed the job."""
        self.above = 0
        """Our run has a higher epoch than this."""
        self._counter: tuple[int, int] | None = None
        self._changed = 0.0
        self._reported = 0
        self._beat: Heartbeat | None = None
        self._unreachable_since: float | None = None
        self._searched_at = -LOOK_AGAIN
        self._given_up = ""
        self._outcome: RunOutcome | None = None
        self._folder = ""
        """The driver's folder; the driver is on another host if no process is found for it."""

    def begin(self) -> None:
        """Finds this task's own driver, or starts one. Raises BusyError, and has started nothing, while another run lives."""
        store, layout = self.job.store, self.job.layout
        self.driver = self.epoch = self._beat = self._counter = self.foreseen = None
        self._given_up, self._outcome, self._folder = "", None, ""
        self.ended_before = False
        previous = self.launcher.find(self.spec)
        newest, beat = newest_heartbeat(store, layout)
        mine = beat is not None and not beat.ended and same_owner(beat.owner, self.owner)
        self._changed = self._monotonic()
        if previous is not None and previous.look().running:
            self.driver, self.reattached = previous, True
            self.above = previous.above
            self.say(
                f"{self.job.name}: the driver of an earlier try still runs ({previous.name}): going on with it"
            )
            return
        if beat is not None and (outcome := self._ended_well(beat)) is not None:
            self.foreseen, self.ended_before = outcome, True
            self.reattached, self.above = True, beat.epoch - 1
            self.say(
                f"{self.job.name}: the run of an earlier try has ended meanwhile ({outcome.stopped}): no other one is started"
            )
            return
        # A process of this host that has ended cannot beat again: no need to wait for its heartbeat.
        gone = previous is not None and beat is not None and beat.owner.host == socket.gethostname()
        if mine and not gone:
            live = self._watch()
            if live.alive and live.owner is not None and same_owner(live.owner, self.owner):
                self.reattached, self.above = True, live.epoch - 1
                host = live.owner.host or "another host"
                self.say(
                    f"{self.job.name}: the driver of an earlier try still runs on {host}: following its heartbeat"
                )
                return
        if self.on_live != "takeover":
            # Before Spark starts, which takes seconds and a gigabyte. The driver looks again when it claims the job.
            refuse_while_live(
                store, layout, self.owner,
                patience=self.patience, monotonic=self._monotonic, sleep=self._sleep, interval=0.5,
            )  # fmt: skip
        self.above = newest
        self.reattached = False
        self.foreseen = self._foresee() if self.on_live != "takeover" else None
        if self.foreseen is None:
            self._launch()

    def _ended_well(self, beat: Heartbeat) -> RunOutcome | None:
        """The outcome of a run that has done this task's work, as far as its checkpoint shows it. What the task had done before somebody
        cleared it does not count."""
        outcome = beat.outcome
        if outcome is None or outcome.exit_code or not beat.ended or not same_owner(beat.owner, self.owner):
            return None
        if KILLED in outcome.stopped or outcome.stopped == INTERRUPTED:
            return None
        mark = scheduled.find(self.job.store, self.job.layout, self.spec.dag_run, self.spec.task)
        if mark is None or mark.ended is not None or (outcome.checkpoint or 0) <= (mark.since or 0):
            return None
        return outcome

    def submitted(self, interval: float = 0.5) -> RunState:
        """Waits until the driver no longer needs this host: the pod of a task that is deferred may be gone in a second."""
        waited = False
        while self.driver is not None and self.driver.submitting:
            waited = True
            self._sleep(interval)
        return self.look() if waited or self.foreseen is not None else Running(self.epoch)

    def handover(self, state: RunState | None = None) -> Handover:
        """For the next process, which passes it to `rejoin`. `state`: what this process saw last."""
        return Handover(
            above=self.above,
            reattached=self.reattached,
            folder=self.driver.name if self.driver is not None else self._folder,
            given_up=state.reason if isinstance(state, Lost) else "",
            outcome=state.outcome if isinstance(state, Ended) else None,
            counter=self._counter,
            busy_since=self.gave_way_at if self.epoch is None else None,
        )

    def rejoin(self, handover: Handover) -> None:
        """Follows what another process began: the driver, or only the driver's heartbeat."""
        driver = self.launcher.find(self.spec)
        # Any other driver of this task on this host belongs to another try.
        self.driver = driver if driver is not None and driver.name == handover.folder else None
        self.above, self.reattached, self._folder = handover.above, handover.reattached, handover.folder
        self._given_up, self._outcome, self._counter = handover.given_up, handover.outcome, handover.counter
        self.gave_way_at = handover.busy_since
        self._changed = self._monotonic()

    def settled(self, interval: float = 0.5) -> RunState:
        """The state of a run after `rejoin`. A run that the other process gave up is lost here too, unless it beats again."""
        last = self._counter
        if self._outcome is not None:
            return Ended(self._outcome, last[0] if last else None)
        state = self.look()
        while self._given_up and isinstance(state, Running) and self._counter == last:
            if self.driver is None or not self.driver.look().running:
                return Lost(self._given_up, state.epoch)
            if last is None:
                return state  # its process runs on this host, and is still starting
            self._sleep(interval)
            state = self.look()
        return state

    def look(self) -> RunState:
        """The state of the run. New lines of the driver's output go to `say`."""
        if self.foreseen is not None:
            return Ended(self.foreseen)
        driver = self.driver
        process = driver.look() if driver else None
        if driver is not None:
            for line in driver.output():
                self.say(line)
        beat = self._newest_beat()
        if beat is not None:
            self.epoch = beat.epoch
            if self._counter != (beat.epoch, beat.counter):
                self._counter, self._changed = (beat.epoch, beat.counter), self._monotonic()
                self._notice(beat.epoch)
        observation = RunObservation(process, beat, self._monotonic() - self._changed)
        last_words = driver.last_words() if driver and process and not process.running else ()
        return run_state(observation, self.patience, last_words)

    def _notice(self, epoch: int) -> None:
        if self._noticed == epoch:
            return
        with suppress(StateflowError):  # for people's eyes only, and the next heartbeat asks again
            self._noticed = epoch if self._begun(epoch) else 0

    def run(self, interval: float = 0.5) -> RunOutcome:
        """Follows the run to its end. Raises the error that the run itself would have raised."""
        self._begin_in_turn()
        while True:
            state = self.look()
            if isinstance(state, Running):
                self._sleep(interval)
                continue
            if not self.again(state):
                return self.result(state)

    def again(self, state: Ended | Lost) -> bool:
        """Whether this try goes on with another run, which is begun here."""
        if isinstance(state, Ended):
            code = state.outcome.exit_code
            if (not code and KILLED in state.outcome.stopped) or (code == 1 and self._recalled(state)):
                self.say(
                    f"{self.job.name}: the earlier driver was stopped because its task was killed; starting a new one"
                )
                self._begin_in_turn()
                return True
            if code == FencedError.exit_code and self._has_sibling():
                self.say(
                    f"{self.job.name}: another driver of this very task has taken over; going on with that one"
                )
                self._begin_in_turn()
                return True
            if code == BusyError.exit_code and self.on_live == "wait":
                self._wait_for_other(error_of(code, state.outcome.error))
                self._begin_in_turn()
                return True
        return False

    def result(self, state: Ended | Lost) -> RunOutcome:
        """The outcome of a run that is over."""
        if isinstance(state, Lost):
            if self.driver is not None:
                self.driver.stop(0)
            raise StateflowError(
                f"the driver of job {self.job.name!r} is lost ({state.reason}): its checkpoints stay, and the next try "
                "goes on from there"
            )
        if self.driver is not None and self.driver.look().running:
            self.driver.stop(0)  # its run is over, but something keeps its process alive
        outcome = state.outcome
        if outcome.exit_code:
            raise error_of(outcome.exit_code, outcome.error)
        if outcome.stopped == INTERRUPTED:
            raise StateflowError(
                f"the driver of job {self.job.name!r} was ended by its host before its input was used up: the next try "
                "goes on from there"
            )
        return outcome

    def stop(self, reason: str = KILLED, grace: float = GRACE) -> None:
        """Asks the run to end after its batch. A driver of this host that does not is killed after `grace` seconds.

        Returns at once: a scheduler gives its tasks seconds.
        """
        beat = self._beat
        try:
            beat = self._heartbeat()
            if beat is None:
                # The driver reads this when it claims the job. It may have claimed it just now.
                scheduled.recall(self.job.store, self.job.layout, self.spec.dag_run, self.spec.task)
                beat = self._heartbeat()
            if beat is not None and not beat.ended:
                request = StopRequest(epoch=beat.epoch, by=self.owner, reason=reason, at=self._clock())
                request_stop(self.job.store, self.job.layout, request)
        finally:
            # The signal may arrive while a driver is being launched.
            driver = self.driver or self.launcher.find(self.spec)
            if driver is not None:
                # Before the driver claims the job there is no batch to wait for.
                driver.stop(grace if beat is not None else 0.0)

    def _recalled(self, state: Ended) -> bool:
        """Whether an earlier try asked for this end: the driver took longer than its grace, and was killed."""
        if not self.reattached or state.epoch is None:
            return False
        request = stop_requested(self.job.store, self.job.layout, state.epoch)
        return request is not None and request.reason == KILLED

    def _has_sibling(self) -> bool:
        """Whether the run that fenced this one belongs to the same task: an earlier try started its driver."""
        newest, beat = newest_heartbeat(self.job.store, self.job.layout)
        return (
            beat is not None and not beat.ended and same_owner(beat.owner, self.owner) and newest > self.above
        )

    def _launch(self) -> None:
        scheduled.recall(self.job.store, self.job.layout, self.spec.dag_run, self.spec.task, recalled=False)
        self._note_beginning()
        previous = self.launcher.find(self.spec)
        if previous is not None and previous.look().running:
            previous.stop(0)
        spec = replace(self.spec, takeover=self.spec.takeover or self.on_live == "takeover", above=self.above)
        self.driver = self.launcher.launch(spec)
        self._changed = self._monotonic()

    def _note_beginning(self) -> None:
        """A task that gave way begins where the other run has ended, as long as it has done nothing itself."""
        job, task = self.job, (self.spec.dag_run, self.spec.task)
        mark = scheduled.find(job.store, job.layout, *task)
        head = job.log().head if mark is not None and job.exists else None
        if mark is None or head is None or head.slot == mark.began_from:
            return
        since = mark.since or 0
        if (mark.began_from or 0) < since:
            return  # it was cleared, and its DAG run has begun before
        own = (line for line in job.history() if (line.dag_run, line.task) == task and line.kind != "fence")
        if all(line.id <= since for line in own):
            scheduled.begin_from(job.store, job.layout, mark, head.slot)

    @property
    def waited(self) -> float:
        """Seconds since this process first found another run in the way."""
        return 0.0 if self._busy_since is None else self._monotonic() - self._busy_since

    def _begin_in_turn(self) -> None:
        """`begin`, once no other run is in the way if that is to be waited for."""
        while True:
            try:
                return self.begin()
            except BusyError as error:
                if self.on_live != "wait":
                    raise
                self._wait_for_other(error)

    def _wait_for_other(self, error: StateflowError) -> None:
        if self._busy_since is None:
            self._busy_since = self._monotonic()
        if self._busy_timeout is not None and self.waited >= self._busy_timeout:
            raise error
        self.say(f"{error}; waiting for its end")
        # What is in the way may be no run of this job, but the others of a full host.
        self._sleep(1.0)
        while True:
            if not self._watch().alive:
                return
            if self._busy_timeout is not None and self.waited >= self._busy_timeout:
                raise error
            self._sleep(1.0)

    def _watch(self) -> Liveness:
        return watch(
            self.job.store, self.job.layout, patience=self.patience, monotonic=self._monotonic,
            sleep=self._sleep, interval=0.5,
        )  # fmt: skip

    def _newest_beat(self) -> Heartbeat | None:
        """The heartbeat. While the store is out of reach, the last one that was read: that is no sign of death."""
        now = self._monotonic()
        try:
            # The job's next run deletes the heartbeat of the last one; what was read stays valid.
            self._beat = self._heartbeat() or self._beat
            if self.driver is None and self._beat is not None:
                self._progress(self._beat.epoch)
        except UnavailableError as error:
            if self._unreachable_since is None:
                self._unreachable_since = now
                self.say(f"{self.job.name}: {error}; looking again")
            if now - self._unreachable_since > STORE_PATIENCE:
                raise
            self._changed = now
            return self._beat
        self._unreachable_since = None
        return self._beat

    def _heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of this owner with an epoch above `above`."""
        now = self._monotonic()
        if self.epoch is not None and self.epoch > self.above and now - self._searched_at < LOOK_AGAIN:
            beat = read_heartbeat(self.job.store, self.job.layout, self.epoch)
            if beat is not None and not beat.ended:
                return beat
        self._searched_at = now
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
        if progress is not None and progress.slot > self._reported:
            self._reported = progress.slot
            rows = int(progress.statistics.get("processed_rows", 0))
            self.say(f"{self.job.name}: checkpoint {progress.slot}, {several(rows, 'row')}")

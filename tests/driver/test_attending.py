"""Attending to a run: reattaching, starting, waiting for another, stopping; with drivers made of what they would write."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import (
    INTERRUPTED,
    KILLED,
    Heartbeat,
    RunOutcome,
    StopRequest,
    beat,
    request_stop,
    stop_requested,
)
from stateflow.checkpoint.records import Claim, Owner, encode
from stateflow.driver.attending import STORE_PATIENCE, Attendance, OnLive
from stateflow.driver.errand import Errand
from stateflow.driver.keeping import Sight
from stateflow.driver.standing import Ended, Lost, Running
from stateflow.errors import BusyError, FencedError, IncompatibleError, StateflowError, UnavailableError
from stateflow.job import Job

ME = Owner("me", dag_run="dag/1", task="run")
OTHER = Owner("other", host="elsewhere", dag_run="dag/2", task="run")
WELL = RunOutcome(batches=1, rows=3, checkpoint=4, stopped="the input was drained")


@dataclass
class Scene:
    """A job, a clock, and what happens while somebody waits."""

    job: Job
    now: float = 0.0
    happens: Callable[[], object] = lambda: None
    said: list[str] = field(default_factory=list)
    counter: int = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.happens()

    def claims(self, epoch: int, owner: Owner) -> None:
        claim = Claim(epoch=epoch, writer=f"w{epoch}", owner=owner, at=1)
        self.job.store.create(self.job.layout.epoch(epoch), encode(claim))
        self.beats(epoch, owner)

    def beats(
        self, epoch: int, owner: Owner, *, ended: bool = False, outcome: RunOutcome | None = None
    ) -> None:
        self.counter += 1
        sign = Heartbeat(epoch=epoch, counter=self.counter, owner=owner, ended=ended, outcome=outcome)
        beat(self.job.store, self.job.layout, sign)


@dataclass
class FakeDriver:
    sight: Sight = field(default_factory=lambda: Sight(True))
    lines: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    name: str = "here"
    above: int = 0

    def look(self) -> Sight:
        return self.sight

    def output(self) -> list[str]:
        found, self.lines = self.lines, []
        return found

    def last_words(self) -> list[str]:
        return self.words

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)
        if grace == 0:
            self.sight = Sight(False, -9)


@dataclass
class FakeLauncher:
    found: FakeDriver | None = None
    begins: Callable[[FakeDriver], object] = lambda driver: None
    launched: list[tuple[Errand, FakeDriver]] = field(default_factory=list)

    def find(self, errand: Errand) -> FakeDriver | None:
        return self.found

    def launch(self, errand: Errand) -> FakeDriver:
        driver = self.found = FakeDriver(above=errand.above)
        self.launched.append((errand, driver))
        self.begins(driver)
        return driver


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Job(str(tmp_path / "root"), "orders"))


def attendance(scene: Scene, launcher: FakeLauncher, on_live: OnLive = "refuse") -> Attendance:
    errand = Errand("p.py:p", "orders", ME.dag_run, ME.task)
    return Attendance(
        scene.job, errand, launcher, ME, on_live=on_live, say=scene.said.append,
        monotonic=lambda: scene.now, sleep=scene.sleep, clock=lambda: round(scene.now * 1e6),
    )  # fmt: skip


def test_a_first_try_starts_a_driver_and_tells_what_it_says(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        driver.lines = ["chk 1 3 rows"]
        scene.happens = lambda: (
            scene.beats(1, ME, ended=True, outcome=WELL),
            setattr(driver, "sight", Sight(False, 0)),
        )

    launcher = FakeLauncher(begins=begins)
    assert attendance(scene, launcher).run() == WELL
    assert scene.said == ["chk 1 3 rows"]
    assert len(launcher.launched) == 1


def test_a_retry_goes_on_with_the_driver_that_outlived_its_task(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    launcher = FakeLauncher(found=driver)
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=WELL),
        setattr(driver, "sight", Sight(False, 0)),
    )
    assert attendance(scene, launcher).run() == WELL
    assert launcher.launched == []
    assert "still runs (here)" in scene.said[0]


def test_a_retry_on_another_host_follows_the_heartbeat_alone(scene: Scene) -> None:
    scene.claims(1, ME)
    beats = iter([lambda: scene.beats(1, ME)] * 4)

    def happens() -> None:
        next(beats, lambda: scene.beats(1, ME, ended=True, outcome=WELL))()

    scene.happens = happens
    launcher = FakeLauncher()
    assert attendance(scene, launcher).run() == WELL
    assert launcher.launched == []
    assert "following its heartbeat" in scene.said[0]


def test_a_driver_of_this_host_that_is_gone_is_not_waited_for(scene: Scene) -> None:
    here = msgspec.structs.replace(ME, host=socket.gethostname())
    scene.claims(1, here)
    launcher = FakeLauncher(found=FakeDriver(sight=Sight(False, -9)))
    attendance(scene, launcher).begin()
    assert scene.now == 0
    assert len(launcher.launched) == 1


def test_a_driver_that_a_try_between_has_started_elsewhere_is_followed(scene: Scene) -> None:
    scene.claims(2, msgspec.structs.replace(ME, host="elsewhere"))
    scene.happens = lambda: scene.beats(2, ME)
    launcher = FakeLauncher(found=FakeDriver(sight=Sight(False, -9)))
    attendance(scene, launcher).begin()
    assert launcher.launched == []


def test_a_driver_of_this_task_whose_heart_stands_still_gives_way_to_a_new_one(scene: Scene) -> None:
    scene.claims(1, ME)

    def begins(driver: FakeDriver) -> None:
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.sight = Sight(False, 0)

    launcher = FakeLauncher(begins=begins)
    assert attendance(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_the_end_of_an_earlier_run_of_the_same_task_is_not_taken_for_this_ones(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=WELL)
    launcher = FakeLauncher()
    one = attendance(scene, launcher)
    one.begin()
    assert isinstance(one.look(), Running)
    scene.claims(2, ME)
    assert one.look() == Running(2)


def test_another_tasks_heartbeat_is_never_ours(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = attendance(scene, launcher)
    one.begin()
    scene.claims(1, OTHER)
    scene.beats(1, OTHER, ended=True, outcome=WELL)
    assert one.look() == Running()


def test_a_run_that_was_stopped_because_its_task_was_killed_is_begun_again_by_the_retry(scene: Scene) -> None:
    scene.claims(1, ME)
    old = FakeDriver()
    stopped = RunOutcome(batches=1, rows=1, checkpoint=2, stopped=KILLED)
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=stopped),
        setattr(old, "sight", Sight(False, 0)),
    )

    def begins(driver: FakeDriver) -> None:
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.sight = Sight(False, 0)
        scene.happens = lambda: None

    launcher = FakeLauncher(found=old, begins=begins)
    assert attendance(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_stop_that_somebody_asked_for_ends_the_task_well(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    asked = RunOutcome(batches=1, checkpoint=2, stopped="release night")
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=asked),
        setattr(driver, "sight", Sight(False, 0)),
    )
    launcher = FakeLauncher(found=driver)
    assert attendance(scene, launcher).run() == asked
    assert launcher.launched == []


def busy(driver: FakeDriver) -> None:
    driver.sight, driver.words = (
        Sight(False, BusyError.exit_code),
        ["stateflow: job 'orders' is run by another"],
    )


def test_another_live_run_is_refused_in_its_own_words(scene: Scene) -> None:
    with pytest.raises(BusyError, match="run by another"):
        attendance(scene, FakeLauncher(begins=busy)).run()


def test_waiting_for_another_run_starts_anew_once_it_has_ended(scene: Scene) -> None:
    scene.claims(1, OTHER)
    left = [6]

    def happens() -> None:
        left[0] -= 1
        if left[0] > 0:
            scene.beats(1, OTHER)
        elif left[0] == 0:
            scene.beats(1, OTHER, ended=True)

    def begins(driver: FakeDriver) -> None:
        if left[0] > 0:
            busy(driver)
            return
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.sight = Sight(False, 0)

    scene.happens = happens
    launcher = FakeLauncher(begins=begins)
    assert attendance(scene, launcher, "wait").run() == WELL
    assert len(launcher.launched) == 2


def test_taking_over_is_said_to_the_driver(scene: Scene) -> None:
    launcher = FakeLauncher()
    attendance(scene, launcher, "takeover").begin()
    assert launcher.launched[0][0].takeover
    launcher = FakeLauncher()
    attendance(scene, launcher).begin()
    assert not launcher.launched[0][0].takeover


def test_an_error_is_raised_as_the_run_would_have(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        driver.sight, driver.words = Sight(False, 4), ["stateflow: the key has changed"]

    with pytest.raises(IncompatibleError, match="the key has changed"):
        attendance(scene, FakeLauncher(begins=begins)).run()


def test_a_hung_driver_is_killed_before_the_task_gives_up(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    with pytest.raises(StateflowError, match="stood still"):
        attendance(scene, launcher).run(interval=5)
    assert launcher.launched[0][1].stopped == [0]


def test_an_unreachable_store_is_no_sign_of_death_for_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = attendance(scene, launcher)
    one.begin()
    assert one.look() == Running(1)

    def unreachable(*_: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr("stateflow.driver.attending.read_heartbeat", unreachable)
    scene.now += STORE_PATIENCE - 1
    assert one.look() == Running(1)
    scene.now += STORE_PATIENCE - 1
    assert one.look() == Running(1)
    scene.now += 2
    with pytest.raises(UnavailableError):
        one.look()
    assert len([line for line in scene.said if "does not answer" in line]) == 1


def test_killing_a_task_leaves_a_durable_request_and_a_deadline(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = attendance(scene, launcher)
    one.begin()
    one.stop(grace=30)
    request = stop_requested(scene.job.store, scene.job.layout, 1)
    assert request is not None
    assert request.reason == KILLED
    assert launcher.launched[0][1].stopped == [30]


def test_a_driver_that_has_not_claimed_yet_is_killed_at_once(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = attendance(scene, launcher)
    one.begin()
    one.stop(grace=30)
    assert launcher.launched[0][1].stopped == [0]
    assert stop_requested(scene.job.store, scene.job.layout, 1) is None


def test_the_stop_of_a_task_does_not_reach_another_tasks_run(scene: Scene) -> None:
    scene.claims(1, OTHER)
    one = attendance(scene, FakeLauncher())
    one.begin()
    one.stop()
    assert stop_requested(scene.job.store, scene.job.layout, 1) is None


def test_a_second_process_takes_up_what_the_first_has_begun(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    first = attendance(scene, launcher)
    first.begin()
    second = attendance(scene, launcher)
    second.rejoin(first.above, reattached=first.reattached, name="here")
    assert second.look() == Running(1)
    scene.beats(1, ME, ended=True, outcome=WELL)
    launcher.launched[0][1].sight = Sight(False, 0)
    assert second.look() == Ended(WELL, 1)


def test_a_driver_that_vanished_before_its_claim_is_lost(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = attendance(scene, launcher)
    one.begin()
    launcher.launched[0][1].sight = Sight(False)
    assert isinstance(one.look(), Lost)


def test_a_request_to_stop_of_yesterday_is_not_heeded(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=WELL)
    request_stop(scene.job.store, scene.job.layout, StopRequest(epoch=1, by=ME, reason=KILLED))
    launcher = FakeLauncher(begins=lambda driver: scene.claims(2, ME))
    one = attendance(scene, launcher)
    one.begin()
    assert one.look() == Running(2)
    assert stop_requested(scene.job.store, scene.job.layout, 2) is None


def ends(scene: Scene, driver: FakeDriver, epoch: int, outcome: RunOutcome) -> None:
    """The run says how it ended, and then its process ends."""
    scene.beats(epoch, ME, ended=True, outcome=outcome)
    driver.sight = Sight(False, outcome.exit_code)


def well_in(scene: Scene, epoch: int) -> Callable[[FakeDriver], None]:
    """What a driver does that claims this epoch and ends well."""

    def begins(driver: FakeDriver) -> None:
        scene.happens = lambda: None
        scene.claims(epoch, ME)
        ends(scene, driver, epoch, WELL)

    return begins


def test_a_driver_that_still_winds_down_after_its_stop_is_no_success(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=RunOutcome(batches=1, stopped=KILLED))
    old = FakeDriver()
    scene.happens = lambda: setattr(old, "sight", Sight(False, 0))
    launcher = FakeLauncher(found=old, begins=well_in(scene, 2))
    assert attendance(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_driver_that_starts_is_not_judged_by_the_heart_of_one_that_is_dead(scene: Scene) -> None:
    scene.claims(1, ME)  # killed without a last word
    second = FakeDriver(above=1)
    claimed: list[int] = []

    def happens() -> None:
        if scene.now >= 200:
            ends(scene, second, 2, WELL)
        elif claimed:
            scene.beats(2, ME)
        elif scene.now >= 100:
            claimed.append(2)
            scene.claims(2, ME)

    scene.happens = happens
    assert attendance(scene, FakeLauncher(found=second)).run(interval=2) == WELL
    assert second.stopped == []


def test_a_stop_for_another_try_of_the_task_is_no_success_either(scene: Scene) -> None:
    launched: list[FakeDriver] = []

    def begins(driver: FakeDriver) -> None:
        launched.append(driver)
        if len(launched) == 2:
            well_in(scene, 2)(driver)
            return
        scene.claims(1, ME)
        scene.happens = lambda: ends(scene, driver, 1, RunOutcome(stopped=KILLED))

    assert attendance(scene, FakeLauncher(begins=begins)).run() == WELL
    assert len(launched) == 2


def test_a_run_that_its_host_has_ended_is_tried_again(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.happens = lambda: ends(scene, driver, 1, RunOutcome(batches=1, stopped=INTERRUPTED))

    with pytest.raises(StateflowError, match="told to end by its host"):
        attendance(scene, FakeLauncher(begins=begins)).run()


def test_a_process_that_does_not_end_after_its_run_is_ended(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.beats(1, ME, ended=True, outcome=WELL)

    launcher = FakeLauncher(begins=begins)
    assert attendance(scene, launcher).run(interval=5) == WELL
    assert launcher.launched[0][1].stopped == [0]


def test_a_driver_that_was_killed_at_the_end_of_its_grace_is_followed_by_another(scene: Scene) -> None:
    scene.claims(1, ME)
    old = FakeDriver()
    request_stop(scene.job.store, scene.job.layout, StopRequest(epoch=1, by=ME, reason=KILLED))
    scene.happens = lambda: setattr(old, "sight", Sight(False, -9))
    launcher = FakeLauncher(found=old, begins=well_in(scene, 2))
    assert attendance(scene, launcher).run() == WELL


def test_a_driver_fenced_by_another_of_its_task_gives_way_to_that_one(scene: Scene) -> None:
    fenced = RunOutcome(exit_code=FencedError.exit_code, error="taken over")

    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.claims(2, ME)  # a slow driver of an earlier try
        ends(scene, driver, 1, fenced)
        beats = iter([lambda: scene.beats(2, ME)] * 4)
        scene.happens = lambda: next(beats, lambda: scene.beats(2, ME, ended=True, outcome=WELL))()

    launcher = FakeLauncher(begins=begins)
    assert attendance(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_driver_that_another_job_s_owner_has_fenced_is_not_tried_again(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.claims(2, OTHER)
        ends(scene, driver, 1, RunOutcome(exit_code=FencedError.exit_code, error="taken over"))

    with pytest.raises(FencedError):
        attendance(scene, FakeLauncher(begins=begins)).run()


def test_a_driver_is_stopped_even_when_the_store_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = attendance(scene, launcher)
    one.begin()
    one.look()

    def away(*_: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr("stateflow.driver.attending.read_heartbeat", away)
    with pytest.raises(UnavailableError):
        one.stop(grace=5)
    assert launcher.launched[0][1].stopped == [5]


def test_a_driver_that_is_just_being_launched_is_stopped(scene: Scene) -> None:
    class Killed(BaseException):
        pass

    class Interrupted(FakeLauncher):
        def launch(self, errand: Errand) -> FakeDriver:
            super().launch(errand)
            one.stop(grace=5)  # as a signal's handler does
            raise Killed

    launcher = Interrupted()
    one = attendance(scene, launcher)
    with pytest.raises(Killed):
        one.begin()
    assert launcher.launched[0][1].stopped == [0]


def marked(scene: Scene) -> scheduled.ScheduledRun:
    job = scene.job
    scheduled.begin(job.store, job.layout, ME.dag_run, ME.task, None, lambda: 1)
    found = scheduled.find(job.store, job.layout, ME.dag_run, ME.task)
    assert found is not None
    return found


def test_a_driver_that_nobody_has_seen_is_recalled_until_the_next_is_launched(scene: Scene) -> None:
    class Elsewhere(FakeLauncher):
        def find(self, errand: Errand) -> None:
            return None

    marked(scene)
    attendance(scene, Elsewhere()).stop()
    assert marked(scene).recalled
    attendance(scene, Elsewhere()).begin()
    assert not marked(scene).recalled


def test_another_process_judges_by_the_driver_that_it_was_told_of_alone(scene: Scene) -> None:
    earlier = FakeDriver(sight=Sight(False, 0), name="an earlier try's")
    launcher = FakeLauncher(found=earlier)
    scene.claims(1, ME)
    for name, stands in (("", Running(1)), ("somebody's", Running(1))):
        one = attendance(scene, launcher)
        one.rejoin(0, reattached=False, name=name)
        assert one.look() == stands


@pytest.mark.parametrize("claimed", [True, False])
def test_a_run_that_was_given_up_elsewhere_is_lost_unless_there_is_a_new_sign_of_it(
    scene: Scene, *, claimed: bool
) -> None:
    if claimed:
        scene.claims(1, ME)
    seen = (1, scene.counter) if claimed else None

    def again() -> Attendance:
        one = attendance(scene, FakeLauncher())
        one.rejoin(0, reattached=False, name="", given_up="it stood still", counter=seen)
        return one

    assert again().settled() == Lost("it stood still", 1 if claimed else None)
    if not claimed:
        scene.claims(1, ME)
    scene.beats(1, ME)
    assert again().settled() == Running(1)
    scene.beats(1, ME, ended=True, outcome=WELL)
    assert again().settled() == Ended(WELL, 1)


def test_a_process_that_can_be_seen_is_given_up_only_after_more_patience(scene: Scene) -> None:
    scene.claims(1, ME)
    hung = FakeDriver()
    one = attendance(scene, FakeLauncher(found=hung))
    one.rejoin(0, reattached=False, name="here", given_up="it stood still", counter=(1, scene.counter))
    assert isinstance(one.settled(), Lost)
    assert scene.now > one.patience


def test_a_last_word_that_was_heard_stands_when_the_next_run_has_cleared_it_away(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    one = attendance(scene, FakeLauncher(found=driver))
    one.begin()
    scene.beats(1, ME, ended=True, outcome=WELL)
    assert one.look() == Running(1)
    scene.job.store.delete([entry.path for entry in scene.job.store.list(scene.job.layout.control)])
    driver.sight = Sight(False, 0)
    assert one.look() == Ended(WELL, 1)

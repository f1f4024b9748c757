"""Supervision of a run: reattaching, starting, waiting for another, giving up; with drivers made of what they would write."""

from __future__ import annotations

import socket
from collections.abc import Callable

import msgspec
import pytest

from stateflow.checkpoint.control import (
    RunOutcome,
)
from stateflow.checkpoint.log import read_epochs
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_state import Lost, Running
from stateflow.driver.supervision import STORE_PATIENCE, OnLive
from stateflow.errors import BusyError, FencedError, IncompatibleError, StateflowError, UnavailableError
from tests.driver.scene import ME, OTHER, WELL, FakeDriver, FakeLauncher, Scene, ends, supervision
from tests.refusals.refusal import refused


def test_a_first_try_starts_a_driver_and_tells_what_it_says(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        driver.lines = ["chk 1 3 rows"]
        scene.happens = lambda: (
            scene.beats(1, ME, ended=True, outcome=WELL),
            setattr(driver, "status", ProcessStatus(False, 0)),
        )

    launcher = FakeLauncher(begins=begins)
    assert supervision(scene, launcher).run() == WELL
    assert scene.said == ["chk 1 3 rows"]
    assert len(launcher.launched) == 1


def test_the_last_words_of_a_driver_are_asked_for_when_it_has_ended(scene: Scene) -> None:
    class Asked(FakeDriver):
        def last_words(self) -> list[str]:
            assert not self.status.running
            return ["stateflow: the disk is full"]

    driver = Asked()
    scene.claims(1, ME)
    scene.happens = lambda: setattr(driver, "status", ProcessStatus(False, 1))
    with refused(StateflowError, "the disk is full"):
        supervision(scene, FakeLauncher(found=driver)).run()


def test_a_retry_goes_on_with_the_driver_that_outlived_its_task(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    launcher = FakeLauncher(found=driver)
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=WELL),
        setattr(driver, "status", ProcessStatus(False, 0)),
    )
    assert supervision(scene, launcher).run() == WELL
    assert launcher.launched == []
    assert "still runs (here)" in scene.said[0]


def test_a_retry_on_another_host_follows_the_heartbeat_alone(scene: Scene) -> None:
    scene.claims(1, ME)
    beats = iter([lambda: scene.beats(1, ME)] * 4)

    def happens() -> None:
        next(beats, lambda: scene.beats(1, ME, ended=True, outcome=WELL))()

    scene.happens = happens
    launcher = FakeLauncher()
    assert supervision(scene, launcher).run() == WELL
    assert launcher.launched == []
    assert "following its heartbeat" in scene.said[0]


def test_a_driver_of_this_host_that_is_gone_is_not_waited_for(scene: Scene) -> None:
    here = msgspec.structs.replace(ME, host=socket.gethostname())
    scene.claims(1, here)
    launcher = FakeLauncher(found=FakeDriver(status=ProcessStatus(False, -9)))
    supervision(scene, launcher).begin()
    assert scene.now == 0
    assert len(launcher.launched) == 1


def test_a_driver_that_a_try_between_has_started_elsewhere_is_followed(scene: Scene) -> None:
    scene.claims(2, msgspec.structs.replace(ME, host="elsewhere"))
    scene.happens = lambda: scene.beats(2, ME)
    launcher = FakeLauncher(found=FakeDriver(status=ProcessStatus(False, -9)))
    supervision(scene, launcher).begin()
    assert launcher.launched == []


def test_a_driver_of_this_task_whose_heart_stands_still_gives_way_to_a_new_one(scene: Scene) -> None:
    scene.claims(1, ME)

    def begins(driver: FakeDriver) -> None:
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.status = ProcessStatus(False, 0)

    launcher = FakeLauncher(begins=begins)
    assert supervision(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_the_end_of_an_earlier_run_of_the_same_task_is_not_taken_for_this_ones(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=WELL)
    launcher = FakeLauncher()
    one = supervision(scene, launcher)
    one.begin()
    assert isinstance(one.look(), Running)
    scene.claims(2, ME)
    assert one.look() == Running(2)


def test_another_tasks_heartbeat_is_never_ours(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = supervision(scene, launcher)
    one.begin()
    scene.claims(1, OTHER)
    scene.beats(1, OTHER, ended=True, outcome=WELL)
    assert one.look() == Running()


def busy(driver: FakeDriver) -> None:
    driver.status, driver.words = (
        ProcessStatus(False, BusyError.exit_code),
        ["stateflow: job 'orders' is run by another"],
    )


def test_another_live_run_is_refused_in_its_own_words(scene: Scene) -> None:
    with refused(BusyError, "run by another"):
        supervision(scene, FakeLauncher(begins=busy)).run()


def begun_while_spark_starts(scene: Scene) -> Callable[[FakeDriver], None]:
    """What a driver does that finds, once Spark is up, that another run has begun meanwhile; its second one works."""

    def begins(driver: FakeDriver) -> None:
        if not read_epochs(scene.job.store, scene.job.layout):
            scene.claims(1, OTHER)
            busy(driver)
            return
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.status = ProcessStatus(False, 0)

    return begins


def ends_after(scene: Scene, looks: int) -> Callable[[], None]:
    """Another run that beats so many times, and ends."""
    left = [looks]

    def happens() -> None:
        left[0] -= 1
        if left[0] >= 0:
            scene.beats(1, OTHER, ended=left[0] == 0)

    return happens


@pytest.mark.parametrize("on_live", ["refuse", "wait"])
def test_a_busy_job_is_refused_before_anything_is_started(scene: Scene, on_live: OnLive) -> None:
    scene.claims(1, OTHER)
    scene.happens = lambda: scene.beats(1, OTHER)
    launcher = FakeLauncher()
    with refused(BusyError, "run by DAG run 'dag/2'", "(epoch 1), which is alive"):
        supervision(scene, launcher, on_live).begin()
    assert launcher.launched == []


def test_a_dead_run_is_in_nobodys_way(scene: Scene) -> None:
    scene.claims(1, OTHER)
    launcher = FakeLauncher()
    supervision(scene, launcher).begin()
    assert len(launcher.launched) == 1


def test_waiting_for_another_run_starts_one_driver_once_it_has_ended(scene: Scene) -> None:
    scene.claims(1, OTHER)
    scene.happens = ends_after(scene, 6)
    launcher = FakeLauncher(begins=begun_while_spark_starts(scene))
    assert supervision(scene, launcher, "wait").run() == WELL
    assert len(launcher.launched) == 1


def test_a_run_that_begins_while_spark_starts_is_waited_for_too(scene: Scene) -> None:
    scene.happens = ends_after(scene, 6)
    launcher = FakeLauncher(begins=begun_while_spark_starts(scene))
    assert supervision(scene, launcher, "wait").run() == WELL
    assert len(launcher.launched) == 2


def test_waiting_has_a_limit(scene: Scene) -> None:
    scene.claims(1, OTHER)
    scene.happens = lambda: scene.beats(1, OTHER)
    launcher = FakeLauncher()
    with refused(BusyError, "which is alive"):
        supervision(scene, launcher, "wait", busy_timeout=60).run()
    assert 60 <= scene.now < 70
    assert launcher.launched == []


def test_taking_over_is_said_to_the_driver(scene: Scene) -> None:
    launcher = FakeLauncher()
    supervision(scene, launcher, "takeover").begin()
    assert launcher.launched[0][0].takeover
    launcher = FakeLauncher()
    supervision(scene, launcher).begin()
    assert not launcher.launched[0][0].takeover


def test_an_error_is_raised_as_the_run_would_have(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        driver.status, driver.words = ProcessStatus(False, 4), ["stateflow: the key has changed"]

    with refused(IncompatibleError, "the key has changed"):
        supervision(scene, FakeLauncher(begins=begins)).run()


def test_a_hung_driver_is_killed_before_the_task_gives_up(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    with refused(StateflowError, "stood still"):
        supervision(scene, launcher).run(interval=5)
    assert launcher.launched[0][1].stopped == [0]


def test_an_unreachable_store_is_no_sign_of_death_for_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = supervision(scene, launcher)
    one.begin()
    assert one.look() == Running(1)

    def unreachable(*_: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr("stateflow.driver.supervision.read_heartbeat", unreachable)
    scene.now += STORE_PATIENCE - 1
    assert one.look() == Running(1)
    scene.now += STORE_PATIENCE - 1
    assert one.look() == Running(1)
    scene.now += 2
    with pytest.raises(UnavailableError):
        one.look()
    assert len([line for line in scene.said if "does not answer" in line]) == 1


def test_a_driver_that_vanished_before_its_claim_is_lost(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = supervision(scene, launcher)
    one.begin()
    launcher.launched[0][1].status = ProcessStatus(False)
    assert isinstance(one.look(), Lost)


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
    assert supervision(scene, FakeLauncher(found=second)).run(interval=2) == WELL
    assert second.stopped == []


def test_a_process_that_does_not_end_after_its_run_is_ended(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.beats(1, ME, ended=True, outcome=WELL)

    launcher = FakeLauncher(begins=begins)
    assert supervision(scene, launcher).run(interval=5) == WELL
    assert launcher.launched[0][1].stopped == [0]


def test_a_driver_fenced_by_another_of_its_task_gives_way_to_that_one(scene: Scene) -> None:
    fenced = RunOutcome(exit_code=FencedError.exit_code, error="taken over")

    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.claims(2, ME)  # a slow driver of an earlier try
        ends(scene, driver, 1, fenced)
        beats = iter([lambda: scene.beats(2, ME)] * 4)
        scene.happens = lambda: next(beats, lambda: scene.beats(2, ME, ended=True, outcome=WELL))()

    launcher = FakeLauncher(begins=begins)
    assert supervision(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_driver_that_another_job_s_owner_has_fenced_is_not_tried_again(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.claims(2, OTHER)
        ends(scene, driver, 1, RunOutcome(exit_code=FencedError.exit_code, error="taken over"))

    with pytest.raises(FencedError):
        supervision(scene, FakeLauncher(begins=begins)).run()

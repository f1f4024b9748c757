"""A driver whose task was killed, or that its host ended: asked, recalled, killed, and followed by the right one."""

from __future__ import annotations

import pytest

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import (
    INTERRUPTED,
    KILLED,
    RunOutcome,
    StopRequest,
    request_stop,
    stop_requested,
)
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import RunSpec
from stateflow.driver.run_state import Running
from stateflow.errors import StateflowError, UnavailableError
from tests.driver.scene import ME, OTHER, WELL, FakeDriver, FakeLauncher, Scene, ends, supervision, well_in
from tests.refusals.refusal import refused


def test_a_run_that_was_stopped_because_its_task_was_killed_is_begun_again_by_the_retry(scene: Scene) -> None:
    scene.claims(1, ME)
    old = FakeDriver()
    stopped = RunOutcome(batches=1, rows=1, checkpoint=2, stopped=KILLED)
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=stopped),
        setattr(old, "status", ProcessStatus(False, 0)),
    )

    def begins(driver: FakeDriver) -> None:
        scene.claims(2, ME)
        scene.beats(2, ME, ended=True, outcome=WELL)
        driver.status = ProcessStatus(False, 0)
        scene.happens = lambda: None

    launcher = FakeLauncher(found=old, begins=begins)
    assert supervision(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_stop_that_somebody_asked_for_ends_the_task_well(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    asked = RunOutcome(batches=1, checkpoint=2, stopped="release night")
    scene.happens = lambda: (
        scene.beats(1, ME, ended=True, outcome=asked),
        setattr(driver, "status", ProcessStatus(False, 0)),
    )
    launcher = FakeLauncher(found=driver)
    assert supervision(scene, launcher).run() == asked
    assert launcher.launched == []


def test_killing_a_task_leaves_a_durable_request_and_a_deadline(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = supervision(scene, launcher)
    one.begin()
    one.stop(grace=30)
    request = stop_requested(scene.job.store, scene.job.layout, 1)
    assert request is not None
    assert request.reason == KILLED
    assert launcher.launched[0][1].stopped == [30]


def test_a_driver_that_has_not_claimed_yet_is_killed_at_once(scene: Scene) -> None:
    launcher = FakeLauncher()
    one = supervision(scene, launcher)
    one.begin()
    one.stop(grace=30)
    assert launcher.launched[0][1].stopped == [0]
    assert stop_requested(scene.job.store, scene.job.layout, 1) is None


def test_the_stop_of_a_task_does_not_reach_another_tasks_run(scene: Scene) -> None:
    scene.claims(1, OTHER)
    one = supervision(scene, FakeLauncher())
    one.begin()
    one.stop()
    assert stop_requested(scene.job.store, scene.job.layout, 1) is None


def test_a_request_to_stop_of_yesterday_is_not_heeded(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=WELL)
    request_stop(scene.job.store, scene.job.layout, StopRequest(epoch=1, by=ME, reason=KILLED))
    launcher = FakeLauncher(begins=lambda driver: scene.claims(2, ME))
    one = supervision(scene, launcher)
    one.begin()
    assert one.look() == Running(2)
    assert stop_requested(scene.job.store, scene.job.layout, 2) is None


def test_a_driver_that_still_winds_down_after_its_stop_is_no_success(scene: Scene) -> None:
    scene.claims(1, ME)
    scene.beats(1, ME, ended=True, outcome=RunOutcome(batches=1, stopped=KILLED))
    old = FakeDriver()
    scene.happens = lambda: setattr(old, "status", ProcessStatus(False, 0))
    launcher = FakeLauncher(found=old, begins=well_in(scene, 2))
    assert supervision(scene, launcher).run() == WELL
    assert len(launcher.launched) == 1


def test_a_stop_for_another_try_of_the_task_is_no_success_either(scene: Scene) -> None:
    launched: list[FakeDriver] = []

    def begins(driver: FakeDriver) -> None:
        launched.append(driver)
        if len(launched) == 2:
            well_in(scene, 2)(driver)
            return
        scene.claims(1, ME)
        scene.happens = lambda: ends(scene, driver, 1, RunOutcome(stopped=KILLED))

    assert supervision(scene, FakeLauncher(begins=begins)).run() == WELL
    assert len(launched) == 2


def test_a_run_that_its_host_has_ended_is_tried_again(scene: Scene) -> None:
    def begins(driver: FakeDriver) -> None:
        scene.claims(1, ME)
        scene.happens = lambda: ends(scene, driver, 1, RunOutcome(batches=1, stopped=INTERRUPTED))

    with refused(StateflowError, "was ended by its host"):
        supervision(scene, FakeLauncher(begins=begins)).run()


def test_a_driver_that_was_killed_at_the_end_of_its_grace_is_followed_by_another(scene: Scene) -> None:
    scene.claims(1, ME)
    old = FakeDriver()
    request_stop(scene.job.store, scene.job.layout, StopRequest(epoch=1, by=ME, reason=KILLED))
    scene.happens = lambda: setattr(old, "status", ProcessStatus(False, -9))
    launcher = FakeLauncher(found=old, begins=well_in(scene, 2))
    assert supervision(scene, launcher).run() == WELL


def test_a_driver_is_stopped_even_when_the_store_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    one = supervision(scene, launcher)
    one.begin()
    one.look()

    def away(*_: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr("stateflow.driver.supervision.read_heartbeat", away)
    with pytest.raises(UnavailableError):
        one.stop(grace=5)
    assert launcher.launched[0][1].stopped == [5]


def test_a_driver_that_is_just_being_launched_is_stopped(scene: Scene) -> None:
    class Killed(BaseException):
        pass

    class Interrupted(FakeLauncher):
        def launch(self, spec: RunSpec) -> FakeDriver:
            super().launch(spec)
            one.stop(grace=5)  # as a signal's handler does
            raise Killed

    launcher = Interrupted()
    one = supervision(scene, launcher)
    with pytest.raises(Killed):
        one.begin()
    assert launcher.launched[0][1].stopped == [0]


def marked(scene: Scene) -> scheduled.ScheduledRun:
    job = scene.job
    scheduled.begin(job.store, job.layout, ME.dag_run, ME.task, None, lambda: 1)
    mark = scheduled.find(job.store, job.layout, ME.dag_run, ME.task)
    assert mark is not None
    return mark


def test_a_driver_that_nobody_has_seen_is_recalled_until_the_next_is_launched(scene: Scene) -> None:
    class Elsewhere(FakeLauncher):
        def find(self, spec: RunSpec) -> None:
            return None

    marked(scene)
    supervision(scene, Elsewhere()).stop()
    assert marked(scene).recalled
    supervision(scene, Elsewhere()).begin()
    assert not marked(scene).recalled

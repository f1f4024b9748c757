"""A second process takes up the watch of a driver: a triggerer, or the worker after it."""

from __future__ import annotations

import json

import pytest

from stateflow.driver.handover import Handover
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_state import Ended, Lost, Running
from stateflow.driver.supervision import Supervision
from tests.driver.scene import ME, WELL, FakeDriver, FakeLauncher, Scene, supervision


def test_a_second_process_takes_up_what_the_first_has_begun(scene: Scene) -> None:
    launcher = FakeLauncher(begins=lambda driver: scene.claims(1, ME))
    first = supervision(scene, launcher)
    first.begin()
    second = supervision(scene, launcher)
    told = Handover.of(json.loads(json.dumps(first.handover().plain())))
    assert told == Handover(0, folder="here")
    second.rejoin(told)
    assert second.look() == Running(1)
    scene.beats(1, ME, ended=True, outcome=WELL)
    launcher.launched[0][1].status = ProcessStatus(False, 0)
    assert second.look() == Ended(WELL, 1)


def test_what_a_try_has_waited_for_others_is_told_on_until_its_own_run_has_the_job(scene: Scene) -> None:
    waiting = Handover(0, folder="here", busy_since=5.0)
    one = supervision(scene, FakeLauncher())
    one.rejoin(waiting)
    one.look()
    assert one.handover() == waiting
    scene.claims(1, ME)
    one.look()
    assert one.handover().busy_since is None


def test_another_process_judges_by_the_driver_that_it_was_told_of_alone(scene: Scene) -> None:
    earlier = FakeDriver(status=ProcessStatus(False, 0), name="an earlier try's")
    launcher = FakeLauncher(found=earlier)
    scene.claims(1, ME)
    for name, stands in (("", Running(1)), ("somebody's", Running(1))):
        one = supervision(scene, launcher)
        one.rejoin(Handover(0, folder=name))
        assert one.look() == stands
        assert one.handover().folder == name  # it may be seen again where it is


@pytest.mark.parametrize("claimed", [True, False])
def test_a_run_that_was_given_up_elsewhere_is_lost_unless_there_is_a_new_sign_of_it(
    scene: Scene, *, claimed: bool
) -> None:
    if claimed:
        scene.claims(1, ME)
    seen = (1, scene.counter) if claimed else None

    def again() -> Supervision:
        one = supervision(scene, FakeLauncher())
        one.rejoin(Handover(0, given_up="it stood still", counter=seen))
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
    one = supervision(scene, FakeLauncher(found=hung))
    one.rejoin(Handover(0, folder="here", given_up="it stood still", counter=(1, scene.counter)))
    assert isinstance(one.settled(), Lost)
    assert scene.now > one.patience


def test_a_last_word_that_was_heard_stands_when_the_next_run_has_cleared_it_away(scene: Scene) -> None:
    scene.claims(1, ME)
    driver = FakeDriver()
    one = supervision(scene, FakeLauncher(found=driver))
    one.begin()
    scene.beats(1, ME, ended=True, outcome=WELL)
    assert one.look() == Running(1)
    scene.job.store.delete([entry.path for entry in scene.job.store.list(scene.job.layout.control)])
    driver.status = ProcessStatus(False, 0)
    assert one.look() == Ended(WELL, 1)

"""Two runs, a savepoint, a restore with its outputs and a collection at the same time on one job."""

from __future__ import annotations

from collections import Counter

import pytest

from stateflow.checkpoint.pins import list_pins, release
from stateflow.errors import BusyError, FencedError, NotFoundError, StateflowError, UsageError
from stateflow.savepoints.format import read_savepoint, verify_savepoint
from tests.memory_store import CrashError, MemoryStore
from tests.protocol.scenario import World, check, drain, offset_of, settle
from tests.protocol.test_crash_edits import rewind, taught
from tests.protocol.test_crash_savepoints import make
from tests.protocol.turns import Choose, Played, Turns, some_schedules

CLEAR = (FencedError, BusyError, NotFoundError, UsageError)
"""What the losers may be told; each names what to do next."""


class Scene:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.world = World(self.store)
        self.world.kept_files = 1
        taught(self.world)
        drain(2)(self.world)
        head = self.world.log().head
        assert head is not None
        self.world.tag(head.slot, "v1")
        drain(4, retained=1)(self.world)
        self.savepoint = MemoryStore("savepoint")

    def run(self, name: str) -> None:
        writer = self.world.claim(name, retained=1)
        self.world.batch(writer)
        writer.collect(1, orphans=True)


def played(choose: Choose) -> Played:
    scene = Scene()
    world = scene.world
    actors = {
        "A": lambda: scene.run("A"),
        "B": lambda: scene.run("B"),
        "R": lambda: rewind(world),
        "S": lambda: make(world, scene.savepoint),
        "GC": lambda: world.collect(1),
    }
    result = Turns(world, scene.store, actors).play(choose)
    try:
        judge(scene, result)
    except BaseException as error:
        raise AssertionError(f"{error}\nafter\n{result.story()}") from error
    return result


def judge(scene: Scene, result: Played) -> None:
    world = scene.world
    dead = {name.removeprefix("!") for name in result.schedule if name.startswith("!")}
    for name, error in result.errors.items():
        assert name in dead or isinstance(error, CLEAR), f"{name} failed with {error!r}"
    if not dead:
        assert {"A", "B", "R"} - set(result.errors), "everybody was fenced: nobody carries on"
    check(world, settled=False)
    if scene.savepoint.list("_metadata"):
        assert [f.text for f in verify_savepoint(scene.savepoint, deep=True) if f.severity == "error"] == []
        assert offset_of(read_savepoint(scene.savepoint).record) in range(1, 7)
    # What a dead process has pinned is somebody else's to judge; here all are known to be gone.
    for pin in list_pins(world.store, world.layout):
        release(world.store, world.layout, pin.id)
    settle(world, retained=1)
    check(world, settled=True)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_one_wins_and_the_others_are_told_why() -> None:
    told: Counter[str] = Counter()
    for result in some_schedules(played, seed=11, count=150):
        for name, error in result.errors.items():
            if not isinstance(error, CrashError):
                assert isinstance(error, StateflowError)
                told[name] += 1
    # The schedules are such that everybody loses sometimes and wins mostly.
    assert told["A"]
    assert told["B"]
    assert told["R"]
    assert told["GC"] == 0

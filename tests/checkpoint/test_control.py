"""Stop requests, heartbeats and progress."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from stateflow.checkpoint.control import (
    Heartbeat,
    Progress,
    StopRequest,
    beat,
    read_heartbeat,
    read_progress,
    refuse_while_live,
    report_progress,
    request_stop,
    same_owner,
    stop_requested,
    watch,
)
from stateflow.checkpoint.occupancy import Occupancy
from stateflow.driver.run_state import Lost, Running, RunObservation, run_state
from stateflow.errors import BusyError
from stateflow.format.records import Owner
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World


class Watcher:
    """A monotonic clock that only sleeping moves, and what happens meanwhile."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.time = 0.0
        self.during = during

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.during()


@pytest.fixture
def world() -> World:
    made = World(MemoryStore())
    made.claim("A")
    return made


def heartbeat(world: World, counter: int, *, ended: bool = False, owner: Owner | None = None) -> None:
    epoch = world.log().newest_epoch
    world.beat(counter, epoch=epoch, ended=ended, owner=owner or Owner(run="A", host="h1"))


def alive(world: World, watcher: Watcher, patience: float = 10) -> bool:
    return watch(
        world.store, world.layout, patience=patience, monotonic=watcher.monotonic, sleep=watcher.sleep
    ).alive


def test_a_counter_that_changes_is_life_and_is_seen_at_once(world: World) -> None:
    counter = 1
    heartbeat(world, counter)

    def beats() -> None:
        heartbeat(world, 2)

    watcher = Watcher(beats)
    assert alive(world, watcher)
    assert watcher.time == 1.0


def test_a_counter_that_stands_still_is_death_after_the_whole_patience(world: World) -> None:
    heartbeat(world, 1)
    watcher = Watcher(lambda: heartbeat(world, 1))
    assert not alive(world, watcher, patience=10)
    assert watcher.time == 10.0


def test_a_run_that_beats_rarely_is_given_three_of_its_intervals_whatever_the_watchers_patience(
    world: World,
) -> None:
    epoch = world.log().newest_epoch
    rare = Heartbeat(epoch=epoch, counter=1, owner=Owner(run="A"), interval=15_000_000)
    beat(world.store, world.layout, rare)
    watcher = Watcher()
    assert not alive(world, watcher, patience=10)
    assert watcher.time == 45.0

    def beats() -> None:
        if watcher.time == 15.0:
            beat(world.store, world.layout, msgspec.structs.replace(rare, counter=2))

    watcher = Watcher(beats)
    assert alive(world, watcher, patience=10)
    assert watcher.time == 15.0


def test_a_run_that_beats_rarely_is_lost_to_nobody_before_it_could_have_beaten(world: World) -> None:
    epoch = world.log().newest_epoch
    rare = Heartbeat(epoch=epoch, counter=1, owner=Owner(run="A"), interval=15_000_000)
    beat(world.store, world.layout, rare)
    watcher = Watcher()
    looks = Occupancy(world.store, world.layout, Owner(run="B"), patience=10, monotonic=watcher.monotonic)
    assert looks.look() is not None
    watcher.time = 44.0
    assert looks.look() is not None
    watcher.time = 45.0
    assert looks.look() is None
    for silence, state in ((44.0, Running), (46.0, Lost)):
        assert isinstance(run_state(RunObservation(None, rare, silence), 10.0), state)


def test_a_run_that_said_it_ended_or_never_beat_is_not_waited_for(world: World) -> None:
    watcher = Watcher()
    assert not alive(world, watcher)
    heartbeat(world, 5, ended=True)
    assert not alive(world, watcher)
    assert watcher.time == 0.0


def test_a_run_that_ends_while_watched_is_not_waited_for(world: World) -> None:
    heartbeat(world, 5)
    watcher = Watcher(lambda: heartbeat(world, 6, ended=True))
    assert not alive(world, watcher)
    assert watcher.time == 1.0


def test_a_newer_claim_while_watched_is_life(world: World) -> None:
    heartbeat(world, 5)
    assert alive(world, Watcher(lambda: world.claim("B")))


def test_a_second_run_is_told_whom_to_wait_for(world: World) -> None:
    beats = iter(range(1, 100))
    heartbeat(world, 0, owner=Owner(run="A", dag_run="monday", task="load", host="h1"))
    watcher = Watcher(
        lambda: heartbeat(world, next(beats), owner=Owner(run="A", dag_run="monday", task="load", host="h1"))
    )
    with pytest.raises(BusyError, match="DAG run 'monday' task 'load' on h1") as busy:
        refuse_while_live(
            world.store,
            world.layout,
            Owner(run="B", dag_run="tuesday", task="load"),
            patience=10,
            monotonic=watcher.monotonic,
            sleep=watcher.sleep,
        )
    assert busy.value.exit_code == 8
    assert "stateflow stop orders" in str(busy.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Owner(run="1", dag_run="d", task="t"), Owner(run="2", dag_run="d", task="t"), True),
        (Owner(run="1", dag_run="d", task="t"), Owner(run="1", dag_run="d", task="u"), False),
        (Owner(run="1", dag_run="d", task="t"), Owner(run="1", dag_run="e", task="t"), False),
        (Owner(run="1", dag_run="d", task="t"), Owner(run="1"), False),
        (Owner(run="1"), Owner(run="1", host="elsewhere"), True),
        (Owner(run="1"), Owner(run="2"), False),
    ],
)
def test_an_owner_is_a_task_of_a_dag_run_or_else_a_run(one: Owner, other: Owner, same: bool) -> None:
    assert same_owner(one, other) is same


def test_a_stop_request_reaches_its_run_with_what_it_asks(world: World) -> None:
    request = StopRequest(epoch=1, by=Owner(run="operator"), drain=True, reason="why")
    assert stop_requested(world.store, world.layout, 1) is None
    request_stop(world.store, world.layout, request)
    assert stop_requested(world.store, world.layout, 1) == request


def test_progress_is_there_for_other_programs(world: World) -> None:
    assert read_progress(world.store, world.layout, 1) is None
    for slot in (2, 3):
        report_progress(world.store, world.layout, Progress(epoch=1, slot=slot, statistics={"rows": 5}))
    found = read_progress(world.store, world.layout, 1)
    assert found is not None
    assert (found.slot, found.statistics) == (3, {"rows": 5})


def test_a_heartbeat_names_epoch_and_owner(world: World) -> None:
    heartbeat(world, 3)
    found = read_heartbeat(world.store, world.layout, 1)
    assert found is not None
    assert (found.epoch, found.counter, found.owner.run) == (1, 3, "A")

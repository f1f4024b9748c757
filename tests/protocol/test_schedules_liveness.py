"""Schedules of runs that are believed dead or alive: old stop requests, wrong clocks, one task twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stateflow import logs
from stateflow.checkpoint.control import (
    StopRequest,
    refuse_while_live,
    request_stop,
    stop_requested,
    watch,
)
from stateflow.errors import BusyError
from stateflow.format.records import Owner
from tests.protocol.scenario import World
from tests.refusals.refusal import refused

# Yesterday, and wrong clocks


def test_yesterdays_stop_request_does_not_stop_todays_run(world: World) -> None:
    yesterday = world.claim("yesterday")
    request = StopRequest(epoch=yesterday.epoch, by=Owner(run="operator"), reason="maintenance")
    request_stop(world.store, world.layout, request)
    today = world.claim("today")
    assert stop_requested(world.store, world.layout, yesterday.epoch) == request
    assert stop_requested(world.store, world.layout, today.epoch) is None


class Clock:
    """The watcher's own, which only sleeping moves."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.time = 0.0
        self.during = during

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.during()


@pytest.mark.parametrize("wrong", [0, 4_000_000_000_000_000])
def test_a_dead_run_with_a_wrong_clock_does_not_block_a_takeover(world: World, wrong: int) -> None:
    dead = world.claim("A")
    world.beat(7, epoch=dead.epoch, owner=Owner(run="A"), at=wrong)
    clock = Clock()
    live = watch(world.store, world.layout, patience=10, monotonic=clock, sleep=clock.sleep)
    assert not live.alive
    refuse_while_live(
        world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock, sleep=clock.sleep
    )


def test_who_waits_for_a_silent_run_says_so_once_and_for_how_long(world: World) -> None:
    dead = world.claim("A")
    world.beat(7, epoch=dead.epoch, owner=Owner(run="A", host="h"))
    said: list[str] = []
    logs.on_wait(said.append)
    try:
        clock = Clock()
        refuse_while_live(
            world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock, sleep=clock.sleep
        )
    finally:
        logs.on_wait(None)
    assert said == [
        f"run 'A' on h (epoch {dead.epoch}) gave no sign of life in 3 s: waiting another 7 s before it counts as lost"
    ]


@pytest.mark.parametrize("wrong", [0, 4_000_000_000_000_000])
def test_a_live_run_with_a_wrong_clock_is_seen_to_live(world: World, wrong: int) -> None:
    running = world.claim("A")
    counter = 0

    def beats() -> None:
        nonlocal counter
        counter += 1
        world.beat(counter, epoch=running.epoch, owner=Owner(run="A"), at=wrong)

    beats()
    clock = Clock(during=beats)
    with refused(BusyError, "run 'A'"):
        refuse_while_live(
            world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock, sleep=clock.sleep
        )


def test_the_same_task_of_the_same_dag_run_takes_over_at_once(world: World) -> None:
    first = world.claim("A")
    owner = Owner(run="try 1", dag_run="2026-01-01", task="orders")
    world.beat(1, epoch=first.epoch, owner=owner)
    clock = Clock()
    retry = Owner(run="try 2", dag_run="2026-01-01", task="orders")
    refuse_while_live(world.store, world.layout, retry, patience=60, monotonic=clock, sleep=clock.sleep)
    assert clock.time == 0.0

"""Runs, collectors, pinners and operators side by side, switching at every store call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import pytest

from stateflow.checkpoint.verification import verify
from stateflow.checkpoint.writer import Writer
from stateflow.errors import FencedError, NotFoundError, StateflowError, UsageError
from stateflow.format.records import Pin
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World, check, drain, settle
from tests.protocol.test_crash_everywhere import left_to_next
from tests.protocol.turns import Actor, Choose, Played, Turns, every_schedule, some_schedules


@dataclass
class Stage:
    """A world before its actors enter, and what the test wants to know afterwards."""

    world: World
    store: MemoryStore
    tags: list[Pin] = field(default_factory=list)


Cast = Callable[[Stage], Mapping[str, Actor]]
Verdict = Callable[[Stage, Played], None]


def run(world: World, name: str, *, collect: bool = False) -> Actor:
    """A whole run of one batch, as a scheduler starts it."""

    def actor() -> None:
        writer = world.claim(name)
        world.batch(writer)
        if collect:
            writer.collect(1, orphans=True)

    return actor


def carry_on(world: World, writer: Writer, *, collect: bool = False) -> Actor:
    """A run that owns the job already and does one more batch."""

    def actor() -> None:
        world.batch(writer)
        if collect:
            writer.collect(1, orphans=True)

    return actor


def two_claims(stage: Stage) -> Mapping[str, Actor]:
    return {"A": run(stage.world, "A"), "B": run(stage.world, "B")}


def three_claims(stage: Stage) -> Mapping[str, Actor]:
    return {name: run(stage.world, name) for name in ("A", "B", "C")}


def takeover(stage: Stage) -> Mapping[str, Actor]:
    running = stage.world.claim("A")
    return {"A": carry_on(stage.world, running), "B": run(stage.world, "B")}


def takeover_and_collector(stage: Stage) -> Mapping[str, Actor]:
    running = stage.world.claim("A", retained=1)
    return {
        "A": carry_on(stage.world, running, collect=True),
        "B": run(stage.world, "B", collect=True),
        "GC": lambda: stage.world.collect(1),
    }


def batch_and_collector(stage: Stage) -> Mapping[str, Actor]:
    running = stage.world.claim("A", retained=1)
    return {"A": carry_on(stage.world, running, collect=True), "GC": lambda: stage.world.collect(1)}


def stale_checkpoint(stage: Stage) -> int:
    """A world in which exactly one old checkpoint may be collected; its slot."""
    old = stage.world.log().head
    assert old is not None
    writer = stage.world.claim("last", retained=1)
    stage.world.batch(writer)
    return old.slot


def tag_and_collectors(stage: Stage) -> Mapping[str, Actor]:
    slot = stale_checkpoint(stage)
    return {
        "T": lambda: stage.tags.append(stage.world.tag(slot, "v1")),
        "GC1": lambda: stage.world.collect(1, orphans=False),
        "GC2": lambda: stage.world.collect(1, orphans=False),
    }


def restore_and_collector(stage: Stage) -> Mapping[str, Actor]:
    slot = stale_checkpoint(stage)
    writer = stage.world.claim("restore")

    def restore() -> None:
        world = stage.world
        made = world.tag(slot, "restoring")
        target = world.log().record(slot)
        permit = writer.decide(world.rewind(target))
        writer.complete(permit, {})
        world.untag(made.name)

    return {"R": restore, "GC": lambda: stage.world.collect(1, orphans=True)}


def abandon_and_run(stage: Stage) -> Mapping[str, Actor]:
    world = stage.world
    writer = world.claim("A")
    permit = writer.decide(world.prepare(writer))

    def operator() -> None:
        world.abandon(permit.slot)

    def late() -> None:
        writer.complete(permit, world.commit(permit.record))

    return {"operator": operator, "A": late, "B": run(world, "B")}


CASTS: dict[str, tuple[Cast, int]] = {
    "two runs claim at once": (two_claims, 2),
    "three runs claim at once": (three_claims, 1),
    "a run is taken over in the middle of a batch": (takeover, 2),
    "a run collects while a collector does": (batch_and_collector, 1),
    "a taken over run, its successor and a collector": (takeover_and_collector, 1),
    "a tag is made while two collectors are at it": (tag_and_collectors, 1),
    "a restore lets go of its pin while a collector waits": (restore_and_collector, 1),
    "an operator abandons what two runs carry out": (abandon_and_run, 1),
}


def stage_of(cast: Cast) -> tuple[Stage, Mapping[str, Actor]]:
    store = MemoryStore()
    world = World(store)
    world.kept_files = 1  # so that a checkpoint has files which no other one names
    drain(1)(world)
    stage = Stage(world, store)
    return stage, cast(stage)


def played(cast: Cast, choose: Choose) -> tuple[Stage, Played]:
    stage, actors = stage_of(cast)
    return stage, Turns(stage.world, stage.store, actors).play(choose)


def player(cast: Cast) -> Callable[[Choose], Played]:
    def play(choose: Choose) -> Played:
        stage, result = played(cast, choose)
        try:
            judge(stage, result)
        except BaseException as error:
            raise AssertionError(f"{error}\nafter\n{result.story()}") from error
        return result

    return play


SOUND: set[Hashable] = set()
"""The states that schedules have left, with the tags that were made, from which all ended as it must. One in seven is another."""


def judge(stage: Stage, result: Played) -> None:
    dead = {name.removeprefix("!") for name in result.schedule if name.startswith("!")}
    for name, error in result.errors.items():
        assert name in dead or isinstance(error, allowed(name)), f"{name} failed with {error!r}"
    runs = {name for name in result.schedule if name in ("A", "B", "C")}
    if runs and not dead and "operator" not in result.schedule:
        assert runs - set(result.errors), "every run was fenced: nobody carries on"
    state = left_to_next(stage.world), tuple(tag.slot for tag in stage.tags), "R" in result.schedule
    if state in SOUND:
        return
    check(stage.world, settled=False)
    for tag in stage.tags:
        stage.world.log().record(tag.slot)
    lost: dict[str, set[int]] = {}
    for record in stage.world.log().chain:
        outcome = stage.world.log().slots[record.slot].outcome
        for uid, came in (outcome.sinks if outcome else {}).items():
            if came == "abandoned":
                lost.setdefault(uid, set()).update(record.sinks[uid].payload["rows"])
    if "R" in result.schedule:
        # The sinks were left as they were, so only what the log says of itself can be judged.
        assert [f.text for f in verify(stage.world.store, stage.world.layout) if f.severity == "error"] == []
    else:
        settle(stage.world, retained=1)
        check(stage.world, settled=True, abandoned=lost)
    SOUND.add(state)


def allowed(name: str) -> tuple[type[StateflowError], ...]:
    if name in ("T", "R"):
        return (NotFoundError,)
    if name == "operator":
        return (UsageError, FencedError)
    if name.startswith("GC"):
        return ()
    return (FencedError,)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASTS)
def test_no_schedule_breaks_an_invariant(name: str) -> None:
    cast, preemptions = CASTS[name]
    count = sum(1 for _ in every_schedule(player(cast), preemptions))
    assert count > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", CASTS)
def test_no_random_schedule_breaks_an_invariant(name: str) -> None:
    cast, _ = CASTS[name]
    for _ in some_schedules(player(cast), seed=20, count=80):
        pass


def test_a_tag_that_was_made_names_files_that_stay_and_one_that_fails_leaves_nothing() -> None:
    kept = refused = 0
    for result in some_schedules(player(tag_and_collectors), seed=3, count=100):
        refused += "T" in result.errors
        kept += "T" not in result.errors
    assert kept
    assert refused

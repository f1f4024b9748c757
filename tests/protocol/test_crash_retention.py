"""A job with a retention rule, with the process dying or the store lying at every call, and others beside it at every moment.

The oracle knows nothing of floors: whatever the rule keeps of all checkpoints that were ever taken is there and whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from stateflow.checkpoint.edit import edit
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.verification import verify
from stateflow.checkpoint.writer import Writer
from stateflow.config.retention_rule import RetentionRule, retention_rule
from stateflow.errors import FencedError, NotFoundError
from tests.memory_store import MemoryStore
from tests.protocol.scenario import Sink, World, check, copy_sinks, offset_of
from tests.protocol.test_crash_everywhere import FAULTS, Faults, survive
from tests.protocol.turns import Actor, Choose, Played, Turns, some_schedules

WIDE, NARROW = retention_rule("hourly for 12 hours, daily for 9 days"), retention_rule("hourly for 1 hour")


class RuledWorld(World):
    """A batch takes about 20 minutes, and has a state file that no other record names."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.tick, self.kept_files = 150_000_000, 1
        self.taken: dict[int, int] = {}
        """Slot and time of every checkpoint that was ever complete."""

    def by(self, rule: RetentionRule) -> Retention:
        return Retention(1, rule=rule, now=self.clock())

    def batch(self, writer: Writer) -> None:
        super().batch(writer)
        self.note()

    def note(self) -> None:
        self.taken.update({record.slot: record.at for record in self.log().checkpoints})


Life = Callable[[RuledWorld], None]


def run(rule: RetentionRule, target: int) -> Life:
    """A run until so many numbers are in."""

    def life(world: RuledWorld) -> None:
        writer = world.claim(f"run to {target}", retained=world.by(rule))
        writer.collect(world.by(rule), orphans=True)
        while offset_of(writer.parent) < target:
            world.batch(writer)
            writer.collect(world.by(rule), orphans=False)

    return life


def restore(world: RuledWorld) -> None:
    """To the oldest checkpoint there is."""
    edit(
        world.store,
        world.layout,
        lambda writer: world.rewind(writer.log.checkpoints[0]),
        owner=world.owner("restore"),
        ids=world.ids,
        clock=world.clock,
        carry_out=world.carry_out,
        once="restore",
    )


def sweep(world: RuledWorld) -> None:
    """By somebody who knows of no rule."""
    world.collect(1)


STORY: tuple[tuple[str, Life, RetentionRule], ...] = (
    ("first run", run(WIDE, 4), WIDE),
    ("second run", run(WIDE, 7), WIDE),
    ("sweep", sweep, WIDE),
    ("narrower run", run(NARROW, 8), NARROW),
    ("wider run", run(WIDE, 9), NARROW),
    ("restore", restore, NARROW),
)
"""Lives, and the rule by which everything is there after each: what a narrower one let go does not come back."""


class Moment:
    def __init__(self, world: RuledWorld, store: MemoryStore) -> None:
        self.objects, self.sinks, self.ticks = store.snapshot(), copy_sinks(world), world.ticks
        self.taken = dict(world.taken)

    def again(self) -> tuple[RuledWorld, Faults]:
        store = MemoryStore(objects=self.objects)
        world = RuledWorld(store)
        world.sinks = {
            uid: Sink(list(s.rows), list(s.commits), set(s.poison)) for uid, s in self.sinks.items()
        }
        world.ticks, world.taken = self.ticks, dict(self.taken)
        return world, Faults(world, store)


def moments() -> dict[str, Moment]:
    store = MemoryStore()
    world = RuledWorld(store)
    found = {}
    for name, life, _ in STORY:
        found[name] = Moment(world, store)
        life(world)
    return found


def judge(world: RuledWorld, rule: RetentionRule) -> None:
    world.note()
    kept = rule.kept(sorted(world.taken.items()), world.clock())
    gone = [slot for slot in kept if slot not in {record.slot for record in world.log().checkpoints}]
    assert gone == [], f"the rule keeps {list(kept)}, and {gone} are gone"
    assert [f.text for f in verify(world.store, world.layout, deep=True) if f.severity == "error"] == []


def test_the_story_keeps_some_behind_the_floor_and_lets_others_go() -> None:
    """Without an accident, so that the oracle is tested as well."""
    store = MemoryStore()
    world = RuledWorld(store)
    for _, life, rule in STORY:
        life(world)
        judge(world, rule)
    log = world.log()
    assert log.kept
    assert set(world.taken) > {record.slot for record in log.checkpoints}
    with pytest.raises(AssertionError, match="are gone"):
        judge(world, retention_rule("all for 30 days"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "offset", "every"),
    [
        ("the process dies after it", 0, 1),
        ("its answer is lost", 0, 2),
        ("its own success is reported as a conflict", 1, 2),
    ],
)
@pytest.mark.parametrize(("name", "life", "rule"), STORY[1:])
def test_whatever_fails_at_any_call_what_the_rule_keeps_is_there(
    name: str, life: Life, rule: RetentionRule, fault: str, offset: int, every: int
) -> None:
    moment = MOMENTS[name]
    world, faults = moment.again()
    life(world)
    possible, hits = set(faults.places(fault)), 0
    for at in sorted(possible & {*range(offset, faults.points, every)}):
        world, faults = moment.again()
        faults.aim(at, fault)
        survive(world, life)  # type: ignore[arg-type]
        hits += faults.hit
        faults.rest()
        judge(world, rule)
        sweep(world)
        judge(world, rule)
        assert survive(world, life)  # type: ignore[arg-type]
        if name != "restore":
            world.claim("last", retained=world.by(WIDE)).collect(world.by(WIDE), orphans=True)
            check(world, settled=True)
        judge(world, rule)
    assert hits > 0 or (name == "sweep" and FAULTS[fault][2] == "create")


MOMENTS = moments()


def cast(world: RuledWorld) -> Mapping[str, Actor]:
    """A run, the one that takes it over, and a collector that knows no rule."""
    writer = world.claim("A", retained=world.by(WIDE))

    def carry_on() -> None:
        world.batch(writer)
        writer.collect(world.by(WIDE), orphans=False)

    return {"A": carry_on, "B": lambda: run(WIDE, 8)(world), "GC": lambda: sweep(world)}


def play(choose: Choose) -> Played:
    world, _ = MOMENTS["sweep"].again()
    assert isinstance(world.store, MemoryStore)
    played = Turns(world, world.store, cast(world)).play(choose)
    dead = {name.removeprefix("!") for name in played.schedule if name.startswith("!")}
    wrong = {
        n: e
        for n, e in played.errors.items()
        if n not in dead and not isinstance(e, FencedError | NotFoundError)
    }
    assert wrong == {}, played.story()
    judge(world, WIDE)
    sweep(world)
    judge(world, WIDE)
    return played


def test_no_schedule_of_runs_and_collectors_loses_what_the_rule_keeps() -> None:
    assert sum(1 for _ in some_schedules(play, seed=7, count=60)) == 60

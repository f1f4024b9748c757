"""Every store call and every sink commit of the story, with the process dying or the store lying at each.

Most accidents meet a call that only looks, so many of them leave the same world. What comes after is a function of that world: it is
played once for each (`left_to_next`).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable

import pytest

from stateflow.errors import StateflowError, UnavailableError
from stateflow.storage.store import ExistsError
from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.scenario import STORY, Sink, World, abandoned_after, check, copy_sinks, settle

Life = Callable[[World], None]
FAULTS = {
    "the process dies before it": ("before", CrashError, "any"),
    "the process dies after it": ("after", CrashError, "any"),
    "the store refuses it": ("before", UnavailableError, "any"),
    "its answer is lost": ("after", UnavailableError, "any"),
    "a conflict is reported with nothing stored": ("before", ExistsError, "create"),
    "its own success is reported as a conflict": ("after", ExistsError, "create"),
}


class Faults:
    """Lists the points of a life at which something can go wrong, and makes one go wrong."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.verbs: list[str] = []
        """By point: what is done there."""
        self.at = -1
        self.when = "before"
        self.error: type[BaseException] = CrashError
        self.verb = "any"
        self.hit = False
        store.before = functools.partial(self._call, "before")
        store.after = functools.partial(self._call, "after")
        world.step = self._step

    @property
    def points(self) -> int:
        return len(self.verbs)

    def places(self, fault: str) -> list[int]:
        """The points of the life that was lived so far at which this can happen."""
        verb = FAULTS[fault][2]
        return [at for at, each in enumerate(self.verbs) if verb in ("any", each)]

    def aim(self, at: int, fault: str) -> None:
        self.verbs, self.at, self.hit = [], at, False
        self.when, self.error, self.verb = FAULTS[fault]

    def rest(self) -> None:
        self.at = -1

    def _call(self, when: str, call: Call) -> None:
        self._point(when, call.verb)

    def _step(self, what: str) -> None:
        # A sink's own client can fail too; what a caller sees is an unclear error.
        self._point(what.partition(" ")[0], "sink")

    def _point(self, when: str, verb: str) -> None:
        if when == self.when and self.points == self.at and self.verb in ("any", verb):
            self.at = -1
            self.hit = True
            raise self.error("injected")
        if when == "after":
            self.verbs.append(verb)


ROUND = 1000
"""Ticks. No life takes as many."""


def left_to_next(world: World, *folders: MemoryStore) -> Hashable:
    """All that the next process can see: what is stored in the job's root and in these folders, the sinks, and the time.

    It comes at a round time, so that it does the same wherever the same is stored.
    """
    world.ticks = -(-world.ticks // ROUND) * ROUND
    assert isinstance(world.store, MemoryStore)
    stored = tuple(tuple(sorted(store.snapshot().items())) for store in (world.store, *folders))
    sinks = tuple(
        (uid, tuple(sink.rows), tuple(sink.commits), frozenset(sink.poison))
        for uid, sink in world.sinks.items()
    )
    return world.ticks, stored, sinks


RECOVERED: defaultdict[str, set[Hashable]] = defaultdict(set)
"""By life, the states from which a job has recovered as it must."""


class Moment:
    """A world that can be put back to where it was."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.objects = store.snapshot()
        self.sinks = copy_sinks(world)
        self.ticks = world.ticks

    def again(self) -> tuple[World, MemoryStore, Faults]:
        store = MemoryStore(objects=self.objects)
        world = World(store)
        world.sinks = {
            uid: Sink(list(s.rows), list(s.commits), set(s.poison)) for uid, s in self.sinks.items()
        }
        world.ticks = self.ticks
        return world, store, Faults(world, store)


def moments() -> dict[str, Moment]:
    """The world before each life of the story."""
    store = MemoryStore()
    world = World(store)
    found = {}
    for name, life in STORY:
        found[name] = Moment(world, store)
        life(world)
    return found


def survive(world: World, life: Life) -> bool:
    """Runs one life; False when it died or failed on the store."""
    try:
        life(world)
    except CrashError:
        return False
    except UnavailableError:
        return False
    except StateflowError as error:
        # A writer whose last create was unclear says so and ends; the scheduler starts another.
        if "run again" not in str(error):
            raise
        return False
    return True


def lived(moment: Moment, life: Life) -> Faults:
    """The life without an accident: where one can happen."""
    world, _, faults = moment.again()
    life(world)
    return faults


def recovers(world: World, name: str, life: Life) -> None:
    """Whatever the accident left is sound, and the job goes on from there."""
    state = left_to_next(world)
    if state in RECOVERED[name]:
        return
    check(world, settled=False)
    conclude(world, name, life)
    RECOVERED[name].add(state)


def conclude(world: World, name: str, life: Life) -> None:
    """Starts the life again, as a scheduler does, then a last run that settles everything."""
    assert survive(world, life)
    check(world, settled=False)
    for sink in world.sinks.values():
        sink.poison = set()
    lost = abandoned_after(name)
    settle(world)
    # What a tag or an abandoned output keeps, stays; all else is collected to the last file.
    check(world, settled=True, abandoned=lost)


@pytest.mark.parametrize("name", [name for name, _ in STORY])
def test_the_next_process_sees_nothing_but_the_state(name: str) -> None:
    """So that what follows an accident need not be played again where another has left the same."""
    life, ends = dict(STORY)[name], []
    for fault in ("the process dies before it", "the store refuses it"):
        world, _, faults = moments()[name].again()
        faults.aim(0, fault)
        survive(world, life)
        faults.rest()
        begun = left_to_next(world)
        conclude(world, name, life)
        ends.append((begun, left_to_next(world)))
    assert ends[0] == ends[1]


CREATES_NOTHING = ("untag",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name, _ in STORY
        for fault, (_, _, verb) in FAULTS.items()
        if verb == "any" or name not in CREATES_NOTHING
    ],
)
def test_whatever_fails_at_any_call_the_job_recovers_exactly_once_and_leaves_nothing_behind(
    name: str, fault: str
) -> None:
    life = dict(STORY)[name]
    moment = moments()[name]
    places = lived(moment, life).places(fault)
    assert places
    for at in places:
        world, _, faults = moment.again()
        faults.aim(at, fault)
        survive(world, life)
        assert faults.hit
        faults.rest()
        recovers(world, name, life)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["the process dies after it", "its answer is lost"])
@pytest.mark.parametrize(
    ("name", "every"), [("second run", 17), ("poisoned run", 9), ("abandon", 9), ("sweep", 2)]
)
def test_a_second_accident_during_recovery_changes_nothing(name: str, every: int, fault: str) -> None:
    """Every so manieth pair of accidents, with another offset for each first one."""
    life = dict(STORY)[name]
    moment = moments()[name]
    pairs = 0
    for first in range(lived(moment, life).points):
        world, store, faults = moment.again()
        faults.aim(first, fault)
        survive(world, life)
        faults.rest()
        crashed = Moment(world, store)
        for second in range((first * 5) % every, lived(crashed, life).points, every):
            world, _, faults = crashed.again()
            faults.aim(second, fault)
            survive(world, life)
            assert faults.hit
            faults.rest()
            pairs += 1
            recovers(world, name, life)
    assert pairs > 50

"""Releases that change state, with a ttl on it, and the process dying or the store lying at every call of their runs.

Whatever happens, reading gives what a plain model of the decided batches gives, and nothing that has expired is stored.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable

import pytest

from tests.memory_store import MemoryStore
from tests.protocol.releases import ONCE, RELEASES, ReleasedWorld, releases_of, touched
from tests.protocol.scenario import Sink, check, copy_sinks, drain, settle
from tests.protocol.test_crash_everywhere import FAULTS, Faults, left_to_next, survive

LONG = bool(os.environ.get("STATEFLOW_LONG"))
BATCHES = 3
"""Of each release."""


def run_of(release: int) -> Callable[[ReleasedWorld], None]:
    """A run of a release: until its batches are in."""

    def life(world: ReleasedWorld) -> None:
        world.release = release
        drain(BATCHES * (release + 1))(world)

    return life


class Released:
    """A world before the run of a release, that can be put back to there."""

    def __init__(self, release: int, backend: str) -> None:
        self.release, self.backend = release, backend
        store = MemoryStore()
        world = ReleasedWorld(store, backend=backend)
        for earlier in range(release):
            run_of(earlier)(world)
        self.objects, self.sinks, self.ticks = store.snapshot(), copy_sinks(world), world.ticks

    def again(self) -> tuple[ReleasedWorld, MemoryStore, Faults]:
        store = MemoryStore(objects=self.objects)
        world = ReleasedWorld(store, backend=self.backend)
        world.sinks = {uid: Sink(list(s.rows), list(s.commits)) for uid, s in self.sinks.items()}
        world.ticks, world.release = self.ticks, self.release
        return world, store, Faults(world, store)

    def lived(self) -> Faults:
        """The run without an accident: where one can happen."""
        world, _, faults = self.again()
        run_of(self.release)(world)
        return faults


def judge(world: ReleasedWorld) -> None:
    """Every key, read by the code of the release and of the newest one, is what the model says."""
    head = world.log().head
    if head is None:
        return
    number = int(head.sources["numbers"].lines[0])
    model, newest = world.model(), int(releases_of(head)[-1])
    model.expire(number - 1, RELEASES[newest][2])
    assert world.entries() == len(model.held), "what has expired is stored, or something else is gone"
    keys = sorted({key for batch in range(number) for key in touched(batch)} | {0, 1, 2})
    for release in sorted({world.release, len(RELEASES) - 1}, key=lambda release: RELEASES[release][2] or 0):
        model.expire(number, RELEASES[release][2])
        expected = [model.read(key) for key in keys]
        assert [row for row in world.read(release) if row[0] in keys] == expected


def test_the_releases_give_what_the_model_gives() -> None:
    """Without an accident, so that the model is tested as well: it has values of every age and form."""
    world = ReleasedWorld(MemoryStore())
    for release in range(len(RELEASES)):
        run_of(release)(world)
        judge(world)
    head = world.log().head
    assert head is not None
    states = head.operators["op"].states
    assert len(states["ever"].versions) == 2
    assert states["sum"].version == 2
    model = world.model()
    assert {place[1] for place in model.held} == {"total", "items", "per", "ever", "late"}
    assert model.held[ONCE, "ever"] == (0, None), "a value of the first release"


JUDGED: defaultdict[tuple[str, int], set[Hashable]] = defaultdict(set)
"""By backend and release, the states from which the next run gave what the model says."""


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("release", range(0 if LONG else 1, len(RELEASES)))
@pytest.mark.parametrize("backend", ["memory", *(["rocksdb"] if LONG else [])])
def test_whatever_fails_at_any_call_of_a_release_state_is_what_the_model_says(
    backend: str, release: int, fault: str
) -> None:
    moment = Released(release, backend)
    judged = JUDGED[backend, release]
    hits = 0
    every = LONG and backend == "memory"
    # Else one kind of accident at each call: the kinds take turns.
    first, step = (0, 1) if every else (list(FAULTS).index(fault), len(FAULTS))
    without = moment.lived()
    possible = set(without.places(fault))
    for at in range(first, without.points, step):
        if at not in possible:
            continue
        world, _, faults = moment.again()
        faults.aim(at, fault)
        survive(world, run_of(release))
        hits += faults.hit
        faults.rest()
        state = left_to_next(world)
        if state in judged:
            continue
        check(world, settled=False)
        judge(world)
        assert survive(world, run_of(release))
        settle(world)
        check(world, settled=True)
        judge(world)
        judged.add(state)
    assert hits > 0

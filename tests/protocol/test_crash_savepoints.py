"""Every store call of making, claiming and disposing of a savepoint, with the process dying or the store lying at it."""

from __future__ import annotations

import copy
import tempfile
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from stateflow.checkpoint.collection import DisposeSavepoint, collect
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.pins import list_pins, pinned, release
from stateflow.errors import NotFoundError, UsageError
from stateflow.savepoints.dispose import dispose_claimed, dispose_savepoint
from stateflow.savepoints.format import (
    claim_savepoint,
    read_savepoint_claim,
    resolved,
    to_pin,
    verify_savepoint,
)
from stateflow.savepoints.native import create_native
from stateflow.savepoints.publish import SavepointFacts
from tests.in_memory import IN_MEMORY
from tests.jobs.builder import long_id
from tests.jobs.snapshots import DEAD
from tests.memory_store import CrashError, MemoryStore, named_store
from tests.protocol.scenario import World, check, copy_sinks, drain, offset_of, settle, state_files
from tests.protocol.test_crash_everywhere import FAULTS, Faults, left_to_next, survive
from tests.refusals.refusal import refused

NAME = "crash-savepoints"
URL = f"memory://{NAME}"
JOB, OTHER = "22222222-orders", "33333333-fraud"
Act = Callable[[World, MemoryStore], object]


def make(world: World, target: MemoryStore, max_files: int = 0) -> None:
    """`stateflow savepoint create`, which a scheduler may start again: a savepoint that is there already is fine."""
    head = world.log().head
    assert head is not None
    with (
        pinned(
            world.store,
            world.layout,
            head.slot,
            kind="savepoint",
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
        ),
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as scratch,
    ):
        try:
            create_native(
                world.store,
                world.layout,
                head,
                target,
                SavepointFacts(name="one", owner=world.owner()),
                ids=lambda: long_id(world.ids()),
                clock=world.clock,
                open_base=named_base,
                scratch=Path(scratch),
                max_files=max_files,
                threads=1,
            )
        except UsageError as error:
            if "there is a savepoint" not in str(error):
                raise


def named_base(url: str) -> MemoryStore:
    return named_store(url.removeprefix("memory://"))


def make_packed(world: World, target: MemoryStore) -> None:
    make(world, target, max_files=2)


def take(world: World, target: MemoryStore, job: str = JOB) -> None:
    claim_savepoint(target, job=job, name="orders", owner=world.owner(), clock=world.clock)


def remove(world: World, target: MemoryStore, job: str = "") -> None:
    """`stateflow savepoint dispose`, started again after it may have come to its end."""
    try:
        dispose_savepoint(target, owner=world.owner(), clock=world.clock, by_job=job)
    except NotFoundError:
        assert target.snapshot() == {}


def remove_own(world: World, target: MemoryStore) -> None:
    """The job that has claimed it lets go of it."""
    remove(world, target, JOB)


class Stage:
    """A job with a few checkpoints and a savepoint's folder, which can be put back to where they were."""

    def __init__(self, *before: Act) -> None:
        world = World(MemoryStore())
        drain(3)(world)
        assert isinstance(world.store, MemoryStore)
        self.job = world.store.snapshot()
        self.sinks = world.sinks
        target = MemoryStore(NAME)
        for act in before:
            act(world, target)
        self.ticks = world.ticks
        self.folder = target.snapshot()

    def again(self) -> tuple[World, MemoryStore, Faults]:
        store, target = MemoryStore(objects=self.job), MemoryStore(NAME, self.folder)
        world = World(store)
        world.ticks, world.sinks = self.ticks, copy.deepcopy(self.sinks)
        return world, target, on_both(world, store, target)

    def lived(self, act: Act) -> Faults:
        """The act without an accident: where one can happen."""
        world, target, faults = self.again()
        act(world, target)
        return faults


def on_both(world: World, store: MemoryStore, target: MemoryStore) -> Faults:
    faults = Faults(world, store)
    target.before, target.after = store.before, store.after
    return faults


def survived(act: Act, world: World, target: MemoryStore) -> bool:
    return survive(world, lambda world: act(world, target))


def whole_or_none(target: MemoryStore) -> bool:
    """Whether there is a savepoint; whichever, it is not half of one."""
    if "_metadata" not in target.snapshot():
        return False
    found = [f.text for f in verify_savepoint(target, deep=True) if f.severity == "error"]
    claim = read_savepoint_claim(target)
    if claim is not None and not claim.job:
        assert all("is being disposed of" in text for text in found)
        return False
    assert found == []
    return True


def crashed(target: MemoryStore) -> MemoryStore:
    """A look at what is there that no fault meets."""
    return target.clone()


def leave_leftovers(world: World, target: MemoryStore) -> None:
    """An attempt that died after it had stored two files."""
    target.put(f"state/{DEAD}-000001.sst", b"left")
    target.put(f"state/{DEAD}-000002.pack", b"left")


EVERY_FAULT = list(FAULTS)
SEEN: defaultdict[object, set[Hashable]] = defaultdict(set)
"""By act and what was there before it: the states, with what the actor knows, from which all ended as it must."""


@pytest.mark.parametrize("fault", EVERY_FAULT)
@pytest.mark.parametrize("act", [make, make_packed], ids=["each file", "packed"])
@pytest.mark.parametrize("before", [(), (leave_leftovers,)], ids=["empty folder", "leftovers"])
def test_a_savepoint_is_whole_or_not_there_whatever_fails(
    before: tuple[Act, ...], act: Act, fault: str
) -> None:
    stage = Stage(*before)
    seen = SEEN[act, before]
    places = stage.lived(act).places(fault)
    assert places
    for at in places:
        world, target, faults = stage.again()
        faults.aim(at, fault)
        ended = survived(act, world, target)
        assert faults.hit
        faults.rest()
        state = (left_to_next(world, target), ended, "dies" in fault)
        if state in seen:
            continue
        there = whole_or_none(crashed(target))
        if ended:
            assert there
        elif not there and "dies" not in fault:
            # Who lives on after a failure takes away what it has stored.
            assert crashed(target).snapshot() == stage.folder, at
        check(world, settled=False)
        # And again, as a scheduler does.
        assert survived(act, world, target)
        assert whole_or_none(crashed(target))
        assert survived(remove, world, target)
        assert target.snapshot() == {}
        settle(world)
        check(world, settled=True)
        seen.add(state)


@pytest.mark.parametrize("fault", EVERY_FAULT)
def test_a_claim_has_one_winner_and_changes_nothing_else_whatever_fails(fault: str) -> None:
    stage = Stage(make)
    places = stage.lived(take).places(fault)
    assert places
    for at in places:
        world, target, faults = stage.again()
        faults.aim(at, fault)
        survived(take, world, target)
        assert faults.hit
        faults.rest()
        rest = {path: body for path, body in target.snapshot().items() if path != "_claimed"}
        assert rest == stage.folder
        claim = read_savepoint_claim(target)
        assert claim is None or claim.job == JOB
        assert survived(take, world, target)
        standing = read_savepoint_claim(target)
        assert standing is not None
        assert standing.job == JOB
        with refused(UsageError, "was claimed by job 'orders'"):
            take(world, target, OTHER)
        with refused(UsageError, "was claimed by job 'orders'"):
            remove(world, target)
        assert whole_or_none(target)
        assert survived(remove_own, world, target)
        assert target.snapshot() == {}


DISPOSALS: dict[str, tuple[tuple[Act, ...], Act]] = {
    "unclaimed": ((make,), remove),
    "claimed": ((make, take), remove_own),
    "with leftovers": ((make, leave_leftovers), remove),
    "leftovers alone": ((leave_leftovers,), remove),
}


@pytest.mark.parametrize(
    ("kind", "fault"),
    # The job's own claim stands already, so its disposal creates nothing.
    [(k, f) for k in DISPOSALS for f in FAULTS if k != "claimed" or FAULTS[f][2] != "create"],
)
def test_a_disposal_ends_with_nothing_left_whatever_fails(kind: str, fault: str) -> None:
    before, act = DISPOSALS[kind]
    stage = Stage(*before)
    seen = SEEN[act, before]
    places = stage.lived(act).places(fault)
    assert places
    for at in places:
        world, target, faults = stage.again()
        faults.aim(at, fault)
        ended = survived(act, world, target)
        assert faults.hit
        faults.rest()
        state = (left_to_next(world, target), ended)
        if state in seen:
            continue
        if ended:
            assert target.snapshot() == {}
        if whole_or_none(crashed(target)):
            # Nothing has gone yet, so it may as well be kept.
            assert set(stage.folder) <= set(target.snapshot())
        elif act is remove and target.snapshot():
            # What is going is nobody's to take over, and no place for another.
            with pytest.raises(NotFoundError):
                take(world, crashed(target))
        if "_claimed" in target.snapshot():
            with pytest.raises(UsageError):
                vacant(world, crashed(target))
        assert survived(act, world, target)
        assert target.snapshot() == {}
        assert survived(make, world, target)
        assert whole_or_none(target)
        seen.add(state)


def vacant(world: World, target: MemoryStore) -> None:
    from stateflow.savepoints.publish import require_vacant

    require_vacant(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["the process dies before it", "the process dies after it", "its answer is lost"]
)
@pytest.mark.parametrize(
    ("before", "act"),
    [((), make), ((make,), take), ((make,), remove), ((make, take), remove_own)],
    ids=["create", "claim", "dispose", "dispose of one's own"],
)
def test_a_second_accident_changes_nothing(before: tuple[Act, ...], act: Act, fault: str) -> None:
    stage = Stage(*before)
    pairs = 0
    seen = SEEN["second", act, before]
    for first in range(stage.lived(act).points):
        world, target, faults = stage.again()
        faults.aim(first, fault)
        survived(act, world, target)
        faults.rest()
        assert isinstance(world.store, MemoryStore)
        job, folder, ticks = world.store.snapshot(), target.snapshot(), world.ticks
        for second in range(60):
            store, target = MemoryStore(objects=job), MemoryStore(NAME, folder)
            world = World(store)
            world.ticks = ticks
            faults = on_both(world, store, target)
            faults.aim(second, fault)
            survived(act, world, target)
            if not faults.hit:
                break
            faults.rest()
            pairs += 1
            state = left_to_next(world, target)
            if state in seen:
                continue
            whole_or_none(crashed(target))
            assert survived(act, world, target)
            if act in (make, take):
                assert whole_or_none(target)
                assert survived(remove_own if act is take else remove, world, target)
            assert target.snapshot() == {}
            seen.add(state)
    assert pairs > 20


# A job that lives on a savepoint: made, claimed by a restore, gone on from, and disposed of when it is not needed.


def disposal(world: World) -> DisposeSavepoint:
    identity = world.log().identity
    assert identity is not None
    return dispose_claimed({}, job=identity.uuid, owner=world.owner(), clock=world.clock)


def save(world: World) -> None:
    """Done once: whoever starts it again finds the savepoint, or the record that was restored from it."""
    if not any(record.origin for record in world.log().chain) and offset_of(world.log().head) == 3:
        make(world, named_store(NAME))


def restore(world: World) -> None:
    """`stateflow restore --claim-mode claim`, twice: after the second it has to be the same savepoint still."""
    for round in ("first", "second"):
        log = world.log()
        if any(record.origin == f"{URL} {round}" for record in log.chain):
            continue
        writer = world.claim("restore")
        held = to_pin(world.log(), URL)
        if held is None:
            restored(world, writer, round)
            continue
        with pinned(
            world.store,
            world.layout,
            held.slot,
            kind="reader",
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
        ):
            restored(world, writer, round)


def restored(world: World, writer: object, round: str) -> None:
    from stateflow.checkpoint.writer import Writer

    assert isinstance(writer, Writer)
    target = named_store(NAME)
    taken = resolved(
        claim_savepoint(target, job=writer.job, name="orders", owner=world.owner(), clock=world.clock), URL
    )
    record = Draft(
        "restore",
        sources=taken.sources,
        operators=taken.operators,
        timeline=writer.next_timeline,
        origin=f"{URL} {round}",
    )
    writer.complete(writer.decide(record), {})


def go_on(world: World) -> None:
    """Each batch names its own file and those of the two before it, so the savepoint's drop out one by one."""
    writer = world.claim("go on", retained=2)
    writer.collect(2, orphans=True, dispose=disposal(world))
    while offset_of(writer.parent) < 9:
        world.batch(writer)
        writer.collect(2, orphans=False, dispose=disposal(world))


def let_go(world: World) -> None:
    """What a dead process has pinned stays until somebody removes its pin."""
    for made in list_pins(world.store, world.layout):
        release(world.store, world.layout, made.id)
    collect(
        world.store,
        world.layout,
        collector=world.ids(),
        retained=2,
        orphans=True,
        dispose=disposal(world),
    )


LIVES: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("first run", drain(3)),
    ("savepoint", save),
    ("restore", restore),
    ("go on", go_on),
)


class Point:
    """Job, savepoint's folder and sinks before a life."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.store, MemoryStore)
        self.job = world.store.snapshot()
        self.folder = named_store(NAME).snapshot()
        self.sinks = copy_sinks(world)
        self.ticks = world.ticks

    def again(self) -> tuple[World, Faults]:
        store, target = MemoryStore(objects=self.job), named_store(NAME)
        target.restore(self.folder)
        world = World(store)
        world.ticks, world.sinks = self.ticks, copy.deepcopy(self.sinks)
        return world, on_both(world, store, target)


def points() -> dict[str, Point]:
    target = named_store(NAME)
    target.restore({})
    target.before = target.after = None
    world = World(MemoryStore())
    found = {}
    for name, life in LIVES:
        found[name] = Point(world)
        life(world)
        check(world, settled=False)
    assert target.snapshot() == {}, "the story does not tell of the disposal"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", EVERY_FAULT)
@pytest.mark.parametrize("name", ["savepoint", "restore", "go on"])
def test_a_job_that_lives_on_a_savepoint_has_it_as_long_as_it_needs_it_and_leaves_nothing(
    name: str, fault: str
) -> None:
    lives = dict(LIVES)
    names = list(lives)
    point = points()[name]
    world, faults = point.again()
    lives[name](world)
    seen = SEEN[name]
    places = faults.places(fault)
    assert places
    for at in places:
        world, faults = point.again()
        faults.aim(at, fault)
        survive(world, lives[name])
        assert faults.hit
        faults.rest()
        state = left_to_next(world, named_store(NAME))
        if state in seen:
            continue
        # Its files are verified with those of the job: none is missing that a record names.
        check(world, settled=False)
        for each in names[names.index(name) :]:
            assert survive(world, lives[each])
            check(world, settled=False)
        let_go(world)
        assert named_store(NAME).snapshot() == {}, at
        assert offset_of(world.log().head) == 9
        assert all(not ref.base for ref in state_files(world.log().head))
        settle(world)
        check(world, settled=True)
        seen.add(state)


def test_a_crash_is_not_tidied_up_after() -> None:
    """The enumeration itself: were the death of a process handled, nothing would be left for others to find."""
    stage = Stage()
    left = set()
    for at in range(stage.lived(make).points):
        world, target, faults = stage.again()
        faults.aim(at, "the process dies before it")
        with pytest.raises(CrashError):
            make(world, target)
        left.add(len(target.snapshot()))
    assert left == {0, 1, 2, 3, 4}

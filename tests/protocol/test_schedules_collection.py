"""Schedules of collectors beside runs, pinners and other collectors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping

import pytest

from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.verification import verify
from stateflow.checkpoint.writer import Writer
from stateflow.errors import FencedError, NotFoundError
from stateflow.format.records import DeadMark, Record, encode
from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.moments import at, run
from tests.protocol.scenario import World, check, copy_sinks, drain, offset_of, settle, state_files
from tests.protocol.turns import Turns
from tests.refusals.refusal import lacking, refused

# Files of a run that is about to decide


def test_files_of_a_run_that_is_about_to_decide_are_not_collected_when_the_next_run_has_only_claimed(
    world: World, store: MemoryStore
) -> None:
    a = world.claim("A")
    draft, slot = world.prepare(a), a.next_slot

    def b_claims_and_a_collector_comes_by() -> None:
        claim_epoch(store, world.layout, owner=world.owner("B"), ids=world.ids, clock=world.clock)
        world.collect(1)

    at(store, "create", f"{slot:08d}/_pending", b_claims_and_a_collector_comes_by)
    with pytest.raises(FencedError):
        a.decide(draft)
    c = world.claim("C")
    assert state_files(c.parent) == state_files(draft)
    check(world, settled=False)
    settle(world)
    check(world, settled=True)


def test_files_of_a_run_that_lost_its_slot_to_a_fence_are_collected(world: World) -> None:
    a = world.claim("A")
    lost = state_files(world.prepare(a))[-1].path
    world.claim("B").collect(2, orphans=True)
    assert lost not in {entry.path for entry in world.store.list(world.layout.shared)}
    with pytest.raises(FencedError):
        a.decide(world.prepare(a))


# Names that collection has freed (SlateDB's issue 1622 tells the same of its fence)


def test_a_slot_that_was_collected_and_is_created_again_by_a_sleeper_means_nothing(
    world: World, store: MemoryStore
) -> None:
    a = world.claim("A")
    draft, slot = world.prepare(a), a.next_slot
    at(store, "create", f"{slot:08d}/_pending", lambda: run(world, 4))
    with pytest.raises(FencedError):
        a.decide(draft)
    log = world.log()
    assert [(r.slot, r.epoch) for r in log.void] == [(slot, a.epoch)]
    assert log.pending == ()
    before = list(world.sinks["left"].rows)
    run(world, 1)
    assert world.sinks["left"].rows == [*before, before[-1] + 1]
    assert world.log().void == ()
    check(world, settled=True)


def test_a_slot_from_the_grave_is_void_even_beside_what_is_left_of_the_old_record(
    world: World, store: MemoryStore
) -> None:
    a = world.claim("A")
    draft, slot = world.prepare(a), a.next_slot
    leftover = b""

    def others() -> None:
        nonlocal leftover
        b = world.claim("B")
        leftover = store.read(world.layout.metadata(slot))
        for _ in range(3):
            world.batch(b)
            b.collect(1, orphans=True)

    at(store, "create", f"{slot:08d}/_pending", others)
    with pytest.raises(FencedError):
        a.decide(draft)
    store.put(world.layout.metadata(slot), leftover)
    log = world.log()
    assert [r.slot for r in log.void] == [slot]
    assert slot not in [r.slot for r in log.checkpoints]


def test_an_epoch_whose_claim_was_collected_fences_its_second_claimer(
    world: World, store: MemoryStore
) -> None:
    """A put-if-absent stops fencing once the contested name is gone."""

    def others() -> None:
        run(world, 1)
        run(world, 1)

    contested = world.layout.epoch(max(world.log().epochs) + 1)
    at(store, "create", contested, others)
    with refused(FencedError, "do not retry"):
        world.claim("sleeper")
    assert [call.path for call in store.calls if call.verb == "delete"].count(contested) == 1
    assert [call.path for call in store.calls if call.verb == "create"].count(contested) == 2
    check(world, settled=False)
    settle(world)
    check(world, settled=True)


def test_the_newest_epoch_is_never_deleted(world: World) -> None:
    for _ in range(3):
        run(world, 1)
        log = world.log()
        assert log.decided is not None
        assert log.newest_epoch == log.decided.epoch
    claim_epoch(world.store, world.layout, owner=world.owner(), ids=world.ids, clock=world.clock)
    newest = world.log().newest_epoch
    world.collect(1)
    assert world.log().newest_epoch == newest


# Pins beside collectors


def during(
    store: MemoryStore, plays: Mapping[int, Callable[[], None]], collection: Callable[[], None]
) -> bool:
    """Plays something before calls of a collection, by number; False when it has no such call."""
    done = calls = 0

    def hook(call: Call) -> None:
        nonlocal done, calls
        number, calls = calls, calls + 1
        if number in plays:
            done += 1
            store.before = None
            plays[number]()
            store.before = hook

    store.before = hook
    collection()
    store.before = None
    return done == len(plays)


def test_a_tag_made_at_any_moment_of_a_collection_holds_or_fails_and_never_dangles() -> None:
    outcomes = set()
    for moment in range(200):
        store = MemoryStore()
        world = World(store)
        drain(2)(world)
        old = world.log().checkpoints[0].slot
        world.claim("last", retained=1)
        made: list[bool] = []
        tag = functools.partial(tag_if_possible, world, old, made)
        if not during(store, {moment: tag}, functools.partial(world.collect, 1)):
            break
        outcomes.add(made[0])
        check(world, settled=False)
        assert (old in [r.slot for r in world.log().chain]) or not made[0]
        assert len(list_pins(store, world.layout)) == made[0]
    assert outcomes == {True, False}


def tag_if_possible(world: World, slot: int, made: list[bool]) -> None:
    try:
        world.tag(slot, "v1")
        made.append(True)
    except NotFoundError:
        made.append(False)


@pytest.mark.slow
def test_a_restore_that_lets_go_of_its_pin_while_a_collector_waits_keeps_its_files() -> None:
    """The pin is gone when the collector looks, and the record in its place is younger than its listing.

    At every two moments of the collection: the pin is made at one, the restore is decided at the other.
    """
    before = World(MemoryStore())
    before.kept_files = 1
    drain(4)(before)
    assert isinstance(before.store, MemoryStore)
    restored = moments = 0
    for pinned_at in range(200):
        for decided_at in range(pinned_at + 1, 200):
            store = before.store.clone()
            world = World(store)
            world.ticks, world.sinks = before.ticks, copy_sinks(before)
            old = world.log().checkpoints[0]
            pinned: list[bool] = []
            restore = functools.partial(restore_if_pinned, world, world.claim("R", retained=1), old, pinned)
            pin = functools.partial(tag_if_possible, world, old.slot, pinned)
            if not during(store, {pinned_at: pin, decided_at: restore}, functools.partial(world.collect, 1)):
                break
            moments = max(moments, decided_at)
            restored += world.offset() == offset_of(old)
            check(world, settled=False)
    assert moments > 20
    assert restored > 50


def restore_if_pinned(world: World, writer: Writer, old: Record, pinned: list[bool]) -> None:
    if pinned == [True]:
        permit = writer.decide(world.rewind(old))
        writer.complete(permit, {})
        world.untag("v1")


def test_a_tag_whose_maker_died_over_a_record_whose_collector_died_is_no_tag(
    world: World, store: MemoryStore
) -> None:
    """The record has lost files, and a pin says that it must stay: neither can be told by looking at the two."""
    old = world.log().checkpoints[0].slot
    world.claim("last", retained=1)

    def maker_dies_before_it_looks() -> None:
        def dies() -> None:
            raise CrashError

        at(store, "list", world.layout.slot(old), dies)
        with pytest.raises(CrashError):
            world.tag(old, "v1")

        def collector_dies_after_one_file(call: Call) -> None:
            if call.verb == "delete":
                raise CrashError

        store.after = collector_dies_after_one_file

    at(store, "create", "_doomed-", maker_dies_before_it_looks)
    with pytest.raises(CrashError):
        world.collect(1)
    store.after = None
    assert [pin.slot for pin in list_pins(store, world.layout)] == [old]
    check(world, settled=False)
    world.collect(1)
    assert list_pins(store, world.layout) == []
    assert old not in [r.slot for r in world.log().chain]
    settle(world)
    check(world, settled=True)


# One mark, two collectors


def of_two_collectors_and_a_pinner(world: World, store: MemoryStore, slot: int, tags: list[bool]) -> Turns:
    return Turns(
        world,
        store,
        {
            "GC1": functools.partial(collect, store, world.layout, collector="1", retained=1, orphans=False),
            "GC2": functools.partial(collect, store, world.layout, collector="2", retained=1, orphans=False),
            "P": functools.partial(tag_if_possible, world, slot, tags),
        },
    )


def test_a_mark_that_another_collector_withdraws_does_not_free_the_record_for_a_pinner(
    world: World, store: MemoryStore
) -> None:
    old = world.log().checkpoints[0].slot
    world.claim("last", retained=1)
    tags: list[bool] = []
    turns = of_two_collectors_and_a_pinner(world, store, old, tags)
    played = turns.follow(
        [
            ("GC1", "create"),
            ("GC1", "list orders/pins/"),  # has marked
            ("GC2", "create"),
            ("GC2", "list orders/pins/"),
            ("GC2", "list orders/epochs/"),  # has marked, and has seen no pin
            ("P", f"list {world.layout.slot(old)}"),  # has pinned
            ("GC1", f"delete {world.layout.dead(old, '1')}"),  # sees the pin
            ("GC2", "delete orders/staged/"),  # has doomed the record
            ("GC1", "the end"),  # withdraws
            ("P", "the end"),  # looks for marks
        ]
    )
    assert played.errors == {}
    assert any(f"GC1: delete {world.layout.dead(old, '1')}" in step for step in played.steps), played.story()
    assert tags == [False]
    assert old not in [r.slot for r in world.log().chain]
    check(world, settled=False)


# A mark that its collector does not withdraw


def test_a_mark_that_a_dead_collector_has_left_on_a_tagged_record_goes_with_the_next_collection(
    world: World, store: MemoryStore
) -> None:
    old = world.log().checkpoints[0].slot
    world.claim("last", retained=1)

    def tags_and_dies() -> None:
        world.tag(old, "v1")
        at(store, "create", world.layout.dead(old, ""), dies, after=True)

    def dies() -> None:
        raise CrashError

    at(store, "create", "_dead-", tags_and_dies)
    with pytest.raises(CrashError):
        world.collect(1)
    with refused(NotFoundError, f"checkpoint {old} ", "being collected"):
        world.tag(old, "v2")
    [finding] = verify(store, world.layout)
    assert finding.severity == "warning"
    assert finding.slot == old
    assert (
        lacking(finding.text, ("tag v1", f"{world.layout.slot(old)}_dead-", "`stateflow gc orders --yes`"))
        == []
    )
    world.collect(1)
    assert verify(store, world.layout) == []
    world.tag(old, "v2")
    assert old in [record.slot for record in world.log().checkpoints]
    for name in ("v1", "v2"):
        world.untag(name)
    world.collect(1)
    assert store.list(world.layout.slot(old)) == []
    settle(world)
    check(world, settled=True)


def test_a_name_to_doom_by_that_is_damaged_leaves_its_mark_and_stops_nothing(
    world: World, store: MemoryStore
) -> None:
    old, next_one = (record.slot for record in world.log().checkpoints[:2])
    world.tag(old, "v1")
    store.put(world.layout.dead(old, "cut-off"), encode(DeadMark(slot=old, collector="cut-off")))
    store.put(world.layout.doomed(old, "cut-off"), b"damaged")
    run(world, 2)
    assert store.list(world.layout.slot(next_one)) == []
    assert world.layout.dead(old, "cut-off") in [entry.path for entry in store.list(world.layout.slot(old))]
    assert old in [record.slot for record in world.log().chain]


@pytest.mark.parametrize("dies", [False, True])
def test_a_record_that_another_collector_frees_of_a_mark_is_not_deleted_by_whose_mark_it_was(
    world: World, store: MemoryStore, dies: bool
) -> None:
    """It has marked the record and seen no pin. Who pins it then takes the pin back, unless another collector comes first and believes
    the pin. Whether that one dies at any call, the record is whole if the pin holds."""
    before, first, outcomes = store.snapshot(), world, set()
    for moment in range(60) if dies else [None]:
        store = MemoryStore(objects=before)
        world = World(store)
        world.ticks, world.sinks = first.ticks, copy_sinks(first)
        old = world.log().checkpoints[0].slot
        world.claim("last", retained=1)
        tags: list[bool] = []
        at(store, "create", "_doomed-", functools.partial(pinned_and_freed, world, store, old, tags, moment))
        world.collect(1)
        check(world, settled=False)
        world.collect(1)
        assert (old in [record.slot for record in world.log().chain]) == tags[0]
        if tags == [True]:
            world.tag(old, "again")
        settle(world)
        check(world, settled=True)
        outcomes.add(tags[0])
    assert outcomes == ({True, False} if dies else {True})


def pinned_and_freed(
    world: World, store: MemoryStore, slot: int, tags: list[bool], dies_at: int | None = None
) -> None:
    """Between the pin and the look for marks another collector comes by, which may die at one of its calls."""
    at(store, "list", world.layout.slot(slot), functools.partial(freed, world, store, dies_at))
    tag_if_possible(world, slot, tags)


def freed(world: World, store: MemoryStore, dies_at: int | None) -> None:
    calls = 0

    def hook(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == dies_at:
            raise CrashError

    store.before = hook
    with contextlib.suppress(CrashError):
        collect(store, world.layout, collector="frees", retained=1, orphans=False)
    store.before = None


def test_of_two_collectors_one_alone_dooms_a_record_or_frees_it(world: World, store: MemoryStore) -> None:
    old = world.log().checkpoints[0].slot
    world.claim("last", retained=1)
    tags: list[bool] = []
    turns = of_two_collectors_and_a_pinner(world, store, old, tags)
    played = turns.follow(
        [
            ("GC1", f"create {world.layout.doomed(old, '1')}"),  # has seen no pin
            ("P", f"list {world.layout.slot(old)}"),  # has pinned
            ("GC2", f"delete {world.layout.dead(old, '1')}"),  # has taken the name
            ("GC1", "the end"),  # its mark still stands
            ("GC2", "the end"),
            ("P", "the end"),
        ]
    )
    assert played.errors == {}
    assert any(f"GC2: create {world.layout.doomed(old, '1')}" in step for step in played.steps), (
        played.story()
    )
    assert tags == [True]
    assert old in [record.slot for record in world.log().checkpoints]
    check(world, settled=False)


def test_a_collector_whose_mark_is_gone_deletes_nothing_though_the_record_is_gone_too() -> None:
    """A restore has taken over what the record names, in a record that the collector does not know."""
    store = MemoryStore()
    world = World(store)
    world.kept_files = 1
    drain(4)(world)
    old = world.log().checkpoints[0]
    world.claim("last", retained=1)
    tags: list[bool] = []

    def pinned() -> None:
        pinned_and_freed(world, store, old.slot, tags)
        restore_if_pinned(world, world.claim("R", retained=1), old, tags)
        collect(store, world.layout, collector="behind", retained=1, orphans=False)
        assert store.list(world.layout.slot(old.slot)) == []

    at(store, "create", "_doomed-", pinned)
    world.collect(1)
    assert tags == [True]
    assert world.offset() == offset_of(old)
    check(world, settled=False)
    settle(world)
    check(world, settled=True, gone_back=True)

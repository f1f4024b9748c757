"""Pins and tags: what they keep, and when they are refused."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from stateflow.checkpoint.pins import keep_before_drop, list_pins, pinned, release, tags
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import DeadMark, encode
from stateflow.observe.status import status_of
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, check, drain
from tests.refusals.refusal import refused


@pytest.fixture
def world() -> World:
    made = World(MemoryStore())
    drain(2)(made)
    return made


def slots(world: World) -> list[int]:
    return [r.slot for r in world.log().chain]


def test_a_tagged_checkpoint_outlives_its_retention_and_goes_once_the_tag_does(world: World) -> None:
    old = world.log().checkpoints[0].slot
    world.tag(old, "v1")
    drain(8)(world)
    assert old in slots(world)
    check(world, settled=True)
    world.untag("v1")
    world.collect(2)
    assert old not in slots(world)
    check(world, settled=True)


def test_tags_are_found_by_name(world: World) -> None:
    first, second = world.log().checkpoints
    world.tag(first.slot, "v1")
    world.tag(second.slot, "v2")
    assert {name: made.slot for name, made in tags(world.store, world.layout).items()} == {
        "v1": first.slot,
        "v2": second.slot,
    }


def test_a_tag_name_is_used_once(world: World) -> None:
    slot = world.log().checkpoints[0].slot
    world.tag(slot, "v1")
    with refused(UsageError, "has a tag 'v1' already"):
        world.tag(slot, "v1")
    assert len(list_pins(world.store, world.layout)) == 1


def test_a_run_that_drops_something_takes_a_name_that_nobody_gave_to_another_checkpoint(world: World) -> None:
    first, second = (kept.slot for kept in world.log().checkpoints)

    def keep(slot: int) -> str:
        return keep_before_drop(
            world.store, world.layout, slot, owner=world.owner(), ids=world.ids, clock=world.clock
        )

    world.tag(first, f"before-drop-{second}")
    free = f"before-drop-{second}-2"
    # The second time as a later try of the same run.
    assert [keep(second), keep(second)] == [free, free]
    assert keep(first) == f"before-drop-{first}"
    assert {name: made.slot for name, made in tags(world.store, world.layout).items()} == {
        f"before-drop-{second}": first,
        free: second,
        f"before-drop-{first}": first,
    }


def test_of_two_tags_of_one_name_at_once_one_stays_or_none(world: World) -> None:
    """At every call of the one, somebody else makes the other."""
    first, second = (checkpoint.slot for checkpoint in world.log().checkpoints)
    store = world.store
    assert isinstance(store, MemoryStore)
    alone = store.snapshot()
    begin = len(store.calls)
    world.tag(first, "v1")
    calls, told = len(store.calls) - begin, set()
    for at in range(calls):
        store.restore(alone)
        begin = len(store.calls)
        made: list[int] = []

        def other(call: Call, at: int = at, begin: int = begin, made: list[int] = made) -> None:
            if call.number == begin + at:
                store.before = None
                with suppress(UsageError):
                    made.append(world.tag(second, "v1").slot)

        store.before = other
        with suppress(UsageError):
            made.append(world.tag(first, "v1").slot)
        assert store.before is None
        assert [pin.slot for pin in list_pins(store, world.layout)] == made, at
        assert len(made) < 2, at
        told.update(made)
    assert told == {first, second}


def test_two_tags_of_one_name_are_one_checkpoint_wherever_somebody_looks(world: World) -> None:
    """An older release could make them."""
    first, second = (checkpoint.slot for checkpoint in world.log().checkpoints)
    made = [world.tag(slot, name) for slot, name in ((first, "v1"), (second, "v2"))]
    world.store.delete([world.layout.pin(made[1].id)])
    world.store.create(world.layout.pin(made[1].id), encode(msgspec.structs.replace(made[1], name="v1")))
    found = status_of(
        world.log(), world.store.url, heartbeat=None, progress=None, lines=[], now=0, patience=0,
        pins=list_pins(world.store, world.layout),
    )  # fmt: skip
    assert found.tags == {"v1": tags(world.store, world.layout)["v1"].slot}


def test_a_tag_name_is_one_path_segment(world: World) -> None:
    with pytest.raises(UsageError):
        world.tag(world.log().checkpoints[0].slot, "../v1")


def test_a_checkpoint_that_is_not_there_cannot_be_pinned(world: World) -> None:
    with refused(NotFoundError, "checkpoint 77 of job 'orders'"):
        world.tag(77, "v1")
    assert list_pins(world.store, world.layout) == []


def test_a_checkpoint_that_is_being_collected_cannot_be_pinned(world: World) -> None:
    slot = world.log().checkpoints[0].slot
    mark = encode(DeadMark(slot=slot, collector="gc"))
    world.store.create(world.layout.dead(slot, "gc"), mark)
    with refused(NotFoundError, "is being collected"):
        world.tag(slot, "v1")
    assert list_pins(world.store, world.layout) == []


def test_what_was_created_in_its_slot_since_is_not_pinned_for_it(world: World) -> None:
    """Collected after it was looked at, and created anew by a run that slept."""
    old, store = world.log().checkpoints[0], world.store
    assert isinstance(store, MemoryStore)

    def others(call: Call) -> None:
        if call.verb == "create" and call.path.startswith(world.layout.pins):
            store.before = None
            drain(8)(world)
            zombie = msgspec.structs.replace(old, writer="zombie")
            store.create(world.layout.pending(old.slot), encode(zombie))

    store.before = others
    with refused(NotFoundError, "being collected or gone"):
        world.tag(old.slot, "v1")
    assert list_pins(store, world.layout) == []


def test_a_reader_holds_its_checkpoint_for_as_long_as_it_reads(world: World) -> None:
    slot = world.log().checkpoints[0].slot
    with pinned(
        world.store,
        world.layout,
        slot,
        kind="reader",
        owner=world.owner(),
        ids=world.ids,
        clock=world.clock,
        reason="query",
    ) as made:
        drain(5)(world)
        assert slot in slots(world)
        assert list_pins(world.store, world.layout) == [made]
    assert list_pins(world.store, world.layout) == []
    world.collect(2)
    assert slot not in slots(world)


def test_releasing_twice_is_fine(world: World) -> None:
    made = world.tag(world.log().checkpoints[0].slot, "v1")
    release(world.store, world.layout, made.id)
    release(world.store, world.layout, made.id)


def test_an_unreadable_pin_stops_collection_for_it_may_protect_anything(world: World) -> None:
    world.store.put(world.layout.pin("broken"), b"rubbish")
    with refused(CorruptError, "pins/broken"):
        world.collect(1)


def test_a_pin_whose_maker_died_before_it_was_refused_is_removed(world: World) -> None:
    old = world.log().checkpoints[0].slot
    drain(6)(world)
    from stateflow.format.records import Pin

    orphan = Pin(id="orphan", slot=old, kind="reader", owner=world.owner())
    world.store.put(world.layout.pin("orphan"), encode(orphan))
    world.collect(2)
    assert list_pins(world.store, world.layout) == []


def test_a_pin_that_is_released_leaves_the_cache_of_who_reads_on(world: World) -> None:
    cache: dict[tuple[str, int], object] = {}
    world.tag(slots(world)[-1], "v1")
    assert len(list_pins(world.store, world.layout, cache=cache)) == 1
    world.untag("v1")
    kept = world.tag(slots(world)[-1], "v2")
    assert list_pins(world.store, world.layout, cache=cache) == [kept]
    assert [path for path, _ in cache] == [world.layout.pin(kept.id)]

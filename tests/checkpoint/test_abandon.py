"""Getting past a record that cannot be carried out."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.abandon import Abandoned, abandon
from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.writer import Writer
from stateflow.errors import FencedError, StateflowError, UsageError
from stateflow.format.records import Record
from tests.memory_store import CrashError, MemoryStore
from tests.protocol.scenario import World, check, drain
from tests.refusals.refusal import refused


@pytest.fixture
def world() -> World:
    """The left sink has taken number 1, the right one refuses it."""
    made = World(MemoryStore(), feeds=False)
    drain(1)(made)
    made.sinks["right"].poison = {1}
    with pytest.raises(StateflowError):
        drain(2)(made)
    return made


def stuck(world: World) -> Record:
    return world.log().pending[0]


def given_up(world: World, slot: int) -> Abandoned:
    return world.abandon(slot, "table dropped")


def test_it_says_which_sinks_have_the_output_and_where_the_rest_is(world: World) -> None:
    record = stuck(world)
    result = given_up(world, record.slot)
    assert result.delivered == ("left",)
    assert result.undelivered == ("right",)
    assert result.outcome.sinks == {"left": "already", "right": "abandoned"}
    assert result.pin.reason == "table dropped"


def test_staged_files_of_a_sink_without_the_output_are_kept_and_listed() -> None:
    world = World(MemoryStore(), feeds=False)
    drain(1)(world)
    world.sinks["left"].poison = {1}
    with pytest.raises(StateflowError):
        drain(2)(world)
    record = stuck(world)
    result = given_up(world, record.slot)
    assert result.kept == tuple(ref.path for ref in record.sinks["left"].files)
    world.sinks["left"].poison = set()
    drain(9)(world)
    stored = {e.path for e in world.store.list(world.layout.staged)}
    assert set(result.kept) <= stored
    check(world, settled=True, abandoned={"left": {1}, "right": {1}})


def test_state_and_offsets_stand_and_the_next_run_goes_on(world: World) -> None:
    record = stuck(world)
    given_up(world, record.slot)
    world.sinks["right"].poison = set()
    writer = world.claim()
    assert writer.parent == record
    assert writer.last_commits == {"left": record.slot, "right": 2}
    world.batch(writer)
    assert world.sinks["left"].rows == [0, 1, 2]
    assert world.sinks["right"].rows == [0, 2]


def test_only_the_next_record_to_carry_out_can_be_abandoned(world: World) -> None:
    slot = stuck(world).slot
    claims = world.log().epochs
    for wrong in (slot - 1, slot + 1, 99):
        with pytest.raises(UsageError, match=f"the next one to carry out is {slot}"):
            given_up(world, wrong)
    assert world.log().epochs == claims, "a typing error has fenced a run"


def test_with_nothing_pending_there_is_nothing_to_abandon() -> None:
    world = World(MemoryStore(), feeds=False)
    drain(1)(world)
    with refused(UsageError, "every record is carried out"):
        given_up(world, 2)


def test_it_works_below_the_fences_of_runs_that_failed_on_the_record(world: World) -> None:
    for _ in range(2):
        with pytest.raises(StateflowError):
            world.claim()
    result = given_up(world, stuck(world).slot)
    assert result.undelivered == ("right",)
    world.sinks["right"].poison = set()
    drain(3)(world)
    check(world, settled=True, abandoned={"right": {1}})


def test_it_fences_the_run_that_is_at_it() -> None:
    world = World(MemoryStore(), feeds=False)
    drain(1)(world)
    running: Writer = world.claim()
    permit = running.decide(world.prepare(running))
    given_up(world, permit.slot)
    with pytest.raises(FencedError):
        running.still_owner()


def test_a_run_that_claims_while_the_sinks_are_asked_carries_the_record_out_instead(world: World) -> None:
    record = stuck(world)

    def asked(record: Record) -> dict[str, bool]:
        claim_epoch(world.store, world.layout, owner=world.owner("B"), ids=world.ids, clock=world.clock)
        return {"left": True, "right": False}

    with pytest.raises(FencedError):
        abandon(
            world.store,
            world.layout,
            record.slot,
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
            probe=asked,
        )
    world.sinks["right"].poison = set()
    assert world.claim().parent == record
    assert world.sinks["right"].rows == [0, 1]


def test_every_sink_must_be_known_about(world: World) -> None:
    record = stuck(world)
    with refused(UsageError, "must be known"):
        abandon(
            world.store,
            world.layout,
            record.slot,
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
            probe=lambda record: {"left": True},
        )
    assert stuck(world) == record


def test_after_a_crash_it_is_repeated_with_one_pin(world: World) -> None:
    record = stuck(world)

    def dies(record: Record) -> dict[str, bool]:
        raise CrashError

    with pytest.raises(CrashError):
        abandon(
            world.store,
            world.layout,
            record.slot,
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
            probe=dies,
        )
    given_up(world, record.slot)
    assert [pin.slot for pin in list_pins(world.store, world.layout)] == [record.slot]

"""Claiming a job, deciding and completing records: what a run meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import read_epochs
from stateflow.checkpoint.writer import CommitPermit
from stateflow.errors import (
    BusyError,
    CorruptError,
    DisagreementError,
    FencedError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Record
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Store
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, drain
from tests.refusals.refusal import refused


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path, fsync=False)


@pytest.fixture
def world(store: Store) -> World:
    return World(store, feeds=False)


def test_no_job_begins_in_the_folder_of_another_one(tmp_path: Path) -> None:
    """It would go when that one is deleted."""

    def begin(root: Path, job: str) -> None:
        world = World(LocalStore(root, fsync=False), job)
        claim(
            world.store,
            world.layout,
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
            carry_out=world.carry_out,
        )

    for job in ("orders", "epochs", "payments"):
        begin(tmp_path / "root", job)
    with refused(UsageError, f"file://{tmp_path}/root/orders ", "'orders'", f"file://{tmp_path}/root,"):
        begin(tmp_path / "root/orders", "inner")
    assert not (tmp_path / "root/orders/inner").exists()


def test_the_first_claim_creates_the_job_and_starts_without_state(world: World) -> None:
    writer = world.claim()
    identity = world.log().identity
    assert identity is not None
    assert (writer.job, identity.name) == (identity.uuid, "orders")
    assert writer.epoch == 1
    assert writer.parent is None
    assert writer.last_commits == {}


def test_who_has_seen_nobody_at_work_claims_nothing_once_somebody_has_begun(world: World) -> None:
    """Two runs of a new job: while this one asks whether the store can be trusted, the other one claims it."""
    given: dict[str, Any] = {"ids": world.ids, "clock": world.clock, "carry_out": world.carry_out, "after": 0}
    with refused(BusyError, "'orders'", "epoch 1"):
        claim(world.store, world.layout, owner=world.owner("late"), probe=lambda *_: world.claim(), **given)
    with refused(BusyError, "epoch 1"):
        claim(world.store, world.layout, owner=world.owner("late"), **given)
    assert read_epochs(world.store, world.layout) == (1,)
    given["after"] = 1
    assert claim(world.store, world.layout, owner=world.owner("late"), **given).epoch == 2


def test_the_first_claim_asks_whether_the_store_can_be_trusted_and_later_ones_do_not(store: Store) -> None:
    asked: list[str] = []

    def probe(store: Store, ids: Callable[[], str]) -> None:
        asked.append(store.url)

    numbers = iter(range(1000))
    for _ in range(2):
        claim(
            store,
            JobLayout("orders"),
            owner=Owner(run="r"),
            ids=lambda: f"id{next(numbers)}",
            clock=lambda: next(numbers),
            carry_out=lambda record, still_owner: {},
            probe=probe,
        )
    assert asked == [store.url]


def test_a_store_that_overwrites_is_refused_before_anything_is_claimed() -> None:
    class Overwriting(MemoryStore):
        def create(self, path: str, body: bytes) -> None:
            self.put(path, body)

    numbers = iter(range(1000))
    broken = Overwriting()
    with refused(UsageError, "conditional writes"):
        claim(
            broken,
            JobLayout("orders"),
            owner=Owner(run="r"),
            ids=lambda: f"id{next(numbers)}",
            clock=lambda: next(numbers),
            carry_out=lambda record, still_owner: {},
        )
    assert broken.list("orders/") == []


def test_a_run_continues_from_the_newest_complete_state(world: World) -> None:
    drain(3)(world)
    head = world.log().head
    writer = world.claim("next")
    assert writer.parent == head
    assert head is not None
    assert writer.last_commits == {"left": head.slot, "right": head.slot}
    assert writer.next_slot == head.slot + 2  # a fence lies in between


def test_a_record_knows_its_place(world: World) -> None:
    first = world.claim("a")
    permit = first.decide(world.prepare(first))
    record = permit.record
    assert (record.job, record.slot, record.epoch) == (first.job, 2, 1)
    assert record.previous is not None
    assert record.previous.slot == 1
    assert record.based_on is None
    assert record.owner.run == "a"
    first.complete(permit, world.commit(record))
    second = first.decide(world.prepare(first)).record
    assert second.based_on == 2
    assert second.previous is not None
    assert (second.previous.slot, second.previous.writer) == (2, record.writer)


def test_tables_of_feeds_count_as_written_while_their_record_is_on_its_way(store: Store) -> None:
    world = World(store)
    drain(1)(world)
    writer = world.claim("next")
    before = {each.sink: each.slot for each in writer.feeds}
    permit = writer.decide(world.prepare(writer))
    # The next batch is prepared meanwhile: without this it would write the rows of the record a second time.
    on_its_way = {each.sink: each.slot for each in writer.feeds}
    assert on_its_way == dict.fromkeys(before, permit.slot) != before
    assert {each.slot for each in writer.log.feeds} == set(before.values())
    writer.complete(permit, world.commit(permit.record))
    assert {each.sink: each.slot for each in writer.feeds} == on_its_way


def test_what_a_dead_run_had_decided_is_carried_out_by_the_next(world: World) -> None:
    drain(1)(world)
    dead = world.claim("dead")
    record = dead.decide(world.prepare(dead)).record
    seen: list[Record] = []

    def carry_out(record: Record, still_owner: object) -> Mapping[str, str]:
        seen.append(record)
        return world.commit(record)

    writer = claim(
        world.store,
        world.layout,
        owner=Owner(run="next"),
        ids=world.ids,
        clock=world.clock,
        carry_out=carry_out,
    )
    assert seen == [record]
    assert writer.parent == record


def test_a_record_that_cannot_be_carried_out_stops_every_claim_with_its_error(world: World) -> None:
    drain(1)(world)
    writer = world.claim()
    world.sinks["right"].poison = {1}
    permit = writer.decide(world.prepare(writer))
    for _ in range(3):
        with refused(StateflowError, "right refuses the rows"):
            world.claim()
    assert world.log().pending[0] == permit.record
    world.sinks["right"].poison = set()
    world.claim()
    assert world.log().pending == ()
    assert world.sinks["right"].rows == [0, 1]


def test_a_sink_that_disagrees_with_the_log_stops_the_claim(world: World) -> None:
    drain(1)(world)
    writer = world.claim()
    writer.decide(world.prepare(writer))
    world.sinks["left"].commits.clear()
    with pytest.raises(DisagreementError):
        world.claim()


def test_a_run_that_was_taken_over_decides_nothing_any_more(world: World) -> None:
    old = world.claim("old")
    new = world.claim("new")
    with refused(FencedError, "do not retry") as fenced:
        old.decide(world.prepare(old))
    assert fenced.value.exit_code == 5
    with pytest.raises(FencedError):
        old.still_owner()
    new.still_owner()
    world.batch(new)
    assert world.sinks["left"].rows == [0]


def test_one_record_is_in_flight_at_a_time(world: World) -> None:
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    with refused(UsageError, "not complete yet"):
        writer.decide(world.prepare(writer))
    writer.complete(permit, world.commit(permit.record))
    with refused(UsageError, "decided last"):
        writer.complete(permit, {"left": "committed", "right": "committed"})


def test_a_record_is_completed_with_an_outcome_for_every_sink(world: World) -> None:
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    with refused(UsageError, "right"):
        writer.complete(permit, {"left": "committed"})


def test_the_outcome_carries_the_statistics_and_what_every_sink_has(world: World) -> None:
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    outcome = writer.complete(permit, {"left": "committed", "right": "none"}, {"rows": 7})
    assert outcome.statistics == {"rows": 7}
    assert outcome.last_commits == {"left": permit.slot}
    assert world.log().slots[permit.slot].outcome == outcome


def test_a_run_whose_record_was_completed_by_its_successor_learns_so(world: World) -> None:
    old = world.claim("old")
    permit = old.decide(world.prepare(old))
    new = world.claim("new")
    outcome = old.complete(permit, world.commit(permit.record))
    assert outcome.epoch == new.epoch
    with pytest.raises(FencedError):
        old.decide(world.prepare(old))


def test_a_permit_is_not_for_making() -> None:
    record = Draft("checkpoint")
    with pytest.raises(TypeError):
        CommitPermit(record, object())
    with pytest.raises(TypeError):
        CommitPermit.to_carry_out(record)


def test_a_run_that_never_heard_whether_it_decided_ends_and_the_next_one_finds_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(1)(world)
    writer = world.claim()
    record = world.prepare(writer)

    def lost(call: Call) -> None:
        if "_pending" in call.path:
            raise UnavailableError("no answer")

    store.after = lost
    with pytest.raises(UnavailableError):
        writer.decide(record)
    store.after = None
    assert writer.stopped
    with refused(StateflowError, "has stopped"):
        writer.decide(record)
    next_run = world.claim()
    assert next_run.parent is not None
    assert next_run.parent.slot == writer.next_slot
    assert world.sinks["left"].rows == [0, 1]


def test_an_outcome_whose_answer_was_lost_is_completed_by_trying_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
    store = MemoryStore()
    world = World(store, feeds=False)
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    outcomes = world.commit(permit.record)

    def lost(call: Call) -> None:
        if "_metadata" in call.path:
            raise UnavailableError("no answer")

    store.after = lost
    with pytest.raises(UnavailableError):
        writer.complete(permit, outcomes)
    store.after = None
    writer.complete(permit, outcomes)
    world.batch(writer)
    assert world.sinks["left"].rows == [0, 1]


def test_what_was_carried_out_is_not_decided_again_when_its_record_is_lost(world: World) -> None:
    writer = world.claim()
    for _ in range(2):
        world.batch(writer)
    lost = world.log().chain[-1].slot
    world.store.delete([world.layout.pending(lost)])
    for _ in range(2):
        with pytest.raises(CorruptError, match=f"slot {lost} has no record"):
            world.claim()
    assert world.sinks["left"].rows == [0, 1]


def test_a_job_whose_identity_is_lost_is_not_run(world: World) -> None:
    world.batch(world.claim())
    world.store.delete([world.layout.identity])
    with refused(CorruptError, "orders/job", "'orders'", "is missing"):
        world.claim()


def test_slots_never_restart_after_a_rewind(world: World) -> None:
    drain(3, retained=3)(world)
    target = world.log().checkpoints[0]
    writer = world.claim()
    top = writer.next_slot
    permit = writer.decide(world.rewind(target))
    writer.complete(permit, {})
    assert permit.slot == top
    assert permit.record.based_on == target.slot
    assert writer.parent == permit.record
    assert writer.next_slot == top + 1

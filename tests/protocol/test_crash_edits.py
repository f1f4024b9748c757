"""Restore, rescale, tag, erase and delete, with the process dying or the store lying at every call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import msgspec
import pytest

from stateflow.checkpoint.claim import StillOwner
from stateflow.checkpoint.deletion import delete_job
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.edit import Edited, edit
from stateflow.checkpoint.log import read_epochs
from stateflow.checkpoint.pins import list_pins, pinned, tags
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.errors import FencedError, StateflowError, UsageError
from stateflow.format.layout import LAST_EPOCH
from stateflow.format.records import Prepared, Record
from stateflow.format.references import references
from tests.jobs.files import stored
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World, check, drain, offset_of, settle
from tests.protocol.test_crash_everywhere import FAULTS, Moment, left_to_next, lived, survive
from tests.protocol.turns import Choose, Played, Turns, some_schedules
from tests.refusals.refusal import refused

Life = Callable[[World], None]


def taught(world: World) -> Callable[[CommitPermit, StillOwner], dict[str, str]]:
    """Whoever carries out a record of this world knows what a rewind is."""

    def commit(permit: CommitPermit, still_owner: StillOwner) -> dict[str, str]:
        outcomes = {}
        for uid in permit.record.sinks:
            if world.step:
                world.step(f"before {uid} {permit.slot}")
            outcomes[uid] = _taken_back(world, permit.record, uid)
            if world.step:
                world.step(f"after {uid} {permit.slot}")
        return outcomes

    def carry_out(record: Record, still_owner: StillOwner) -> dict[str, str]:
        if record.kind != "restore":
            return world.commit(record)
        return commit(CommitPermit.to_carry_out(record), still_owner)

    world.carry_out = carry_out  # type: ignore[method-assign]
    return commit


def edited(world: World, make: Callable[[Writer], Record]) -> Edited:
    commit = taught(world)
    return edit(
        world.store, world.layout, make, owner=world.owner("edit"), ids=world.ids, clock=world.clock,
        carry_out=world.carry_out, commit=commit,
    )  # fmt: skip


def _taken_back(world: World, record: Record, uid: str) -> str:
    """The fake sink goes back to so many rows, in one transaction with the slot."""
    sink, prepared = world.sinks[uid], record.sinks[uid]
    with sink.lock:
        if sink.version is not None and sink.version >= record.slot:
            return "already"
        assert sink.version == prepared.prev or sink.version in prepared.late
        del sink.rows[prepared.payload["keep"] :]
        sink.commits.append((record.slot, record.writer))
    return "committed"


def take_back(world: World, *, rewind: bool) -> None:
    """Restores to the tagged checkpoint, once; a scheduler that runs it again finds it done."""
    log = world.log()
    if any(r.kind == "restore" and log.slots[r.slot].complete for r in log.chain):
        return
    tagged = tags(world.store, world.layout)["v1"].slot
    with pinned(
        world.store,
        world.layout,
        tagged,
        kind="reader",
        owner=world.owner(),
        ids=world.ids,
        clock=world.clock,
    ):
        target = world.log().record(tagged)

        def make(writer: Writer) -> Draft:
            sinks = {}
            if rewind:
                for uid in world.sinks:
                    sinks[uid] = Prepared(
                        kind="fake rewind", target=uid,
                        payload={"keep": offset_of(target)},
                    )  # fmt: skip
            return Draft(
                "restore", based_on=target.slot, sources=target.sources, operators=target.operators,
                sinks=sinks, feeds=target.feeds if rewind else (), timeline=writer.next_timeline, origin="tag:v1",
            )  # fmt: skip

        edited(world, make)


def rewind(world: World) -> None:
    take_back(world, rewind=True)


def leave_sinks(world: World) -> None:
    take_back(world, rewind=False)


def widen(world: World) -> None:
    """A rescale to the same one key group: what matters here is the record."""
    log = world.log()
    if any(r.kind == "rescale" and log.slots[r.slot].complete for r in log.chain):
        return

    def make(writer: Writer) -> Draft:
        assert writer.parent is not None
        operators = rescaled_operators(writer.parent.operators, 1, "orders")
        return Draft.continuing("rescale", writer.parent, operators=operators)

    edited(world, make)


def forget(world: World) -> None:
    """An erase that writes one file anew and lets all pins below go."""
    log = world.log()
    done = [r for r in log.chain if r.kind == "erase" and log.slots[r.slot].complete]

    def make(writer: Writer) -> Draft:
        assert writer.parent is not None
        path = writer.layout.shared_file(writer.epoch, writer.next_slot, world.ids(), ".sst")
        fresh = stored(world.store, path, b"without the key")
        count = writer.parent.operators["count"]
        shard = msgspec.structs.replace(count.shards[0][0], files=(fresh,))
        operators = {"count": msgspec.structs.replace(count, shards=((shard,),))}
        return Draft.continuing("erase", writer.parent, operators=operators)

    slot = done[-1].slot if done else edited(world, make).slot
    for pin in list_pins(world.store, world.layout):
        if pin.slot < slot:
            world.untag(pin.name)
    world.collect(1)


def before_edit() -> World:
    """Five numbers in, the second checkpoint tagged, the last record decided and not carried out."""
    store = MemoryStore()
    world = World(store)
    drain(2)(world)
    head = world.log().head
    assert head is not None
    world.tag(head.slot, "v1")
    drain(4, retained=3)(world)
    writer = world.claim("dies")
    writer.decide(world.prepare(writer))
    return world


LEFT = "restore that leaves the sinks"
LIVES: dict[str, Life] = {
    "restore with rewound sinks": rewind,
    LEFT: leave_sinks,
    "rescale": widen,
    "erase": forget,
}


def finish(world: World, name: str) -> None:
    """The edit, then a run to seven numbers, then everything tidied."""
    LIVES[name](world)
    if "v1" in tags(world.store, world.layout) and name != "erase":
        world.untag("v1")
    drain(7)(world)
    settle(world)


EDITED: defaultdict[str, set[Hashable]] = defaultdict(set)
"""By life, the states from which it came to its end."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if FAULTS[f][2] == "any"])
@pytest.mark.parametrize("name", LIVES)
def test_whatever_fails_at_any_call_the_job_is_as_it_was_or_edited(name: str, fault: str) -> None:
    world = before_edit()
    assert isinstance(world.store, MemoryStore)
    moment = Moment(world, world.store)
    places = lived(moment, LIVES[name]).places(fault)
    assert len(places) > 10
    for at in places:
        world, _, faults = moment.again()
        faults.aim(at, fault)
        survive(world, LIVES[name])
        assert faults.hit
        faults.rest()
        state = left_to_next(world)
        if state in EDITED[name]:
            continue
        check(world, settled=False)
        head = world.log().head
        assert head is not None
        assert offset_of(head) in (2, 4, 5)
        finish(world, name)
        check(world, settled=True, gone_back=name == LEFT)
        EDITED[name].add(state)


def test_a_restore_carries_out_what_was_decided_before_it_rewinds() -> None:
    """Rewound under a late commit: the pending record must reach the sinks first, and then be undone."""
    world = before_edit()
    pending = world.log().pending[-1]
    rewind(world)
    for sink in world.sinks.values():
        assert sink.rows == [0, 1]
        assert pending.slot in [slot for slot, _ in sink.commits]
    log = world.log()
    assert log.head is not None
    assert log.head.kind == "restore"
    assert log.head.timeline == 2
    assert log.head.origin == "tag:v1"


def test_a_fenced_run_cannot_commit_into_what_was_rewound() -> None:
    world = before_edit()
    writer = world.claim("slow")
    prepared = world.prepare(writer)
    rewind(world)
    with pytest.raises(FencedError):
        writer.decide(prepared)
    drain(3)(world)
    assert world.sinks["left"].rows == [0, 1, 2]


def test_the_restored_checkpoint_outlives_its_tag_until_the_new_timeline_needs_it_no_more() -> None:
    world = before_edit()
    rewind(world)
    world.untag("v1")
    world.collect(1)
    head = world.log().head
    assert head is not None
    kept = {ref.path for ref in references(head)}
    assert kept <= {entry.path for entry in world.store.list(world.layout.shared)}


def test_an_erased_key_leaves_no_older_checkpoint_even_within_retention() -> None:
    world = before_edit()
    forget(world)
    log = world.log()
    assert log.head is not None
    assert log.head.kind == "erase"
    assert [r.slot for r in log.chain if r.slot < log.head.slot] == []
    bodies = [world.store.read(e.path) for e in world.store.list(world.layout.shared)]
    assert bodies == [b"without the key"]


@pytest.mark.parametrize("fault", [f for f in FAULTS if FAULTS[f][2] == "any"])
def test_a_deletion_that_dies_anywhere_is_taken_up_again_and_leaves_only_the_tombstone(fault: str) -> None:
    world = before_edit()
    world.untag("v1")
    assert isinstance(world.store, MemoryStore)
    moment = Moment(world, world.store)

    def life(world: World) -> None:
        delete_job(
            world.store, world.layout, owner=world.owner("deleter"), ids=world.ids, clock=world.clock,
            dispose=lambda url: None,
        )  # fmt: skip

    for at in lived(moment, life).places(fault):
        world, _, faults = moment.again()
        faults.aim(at, fault)
        survive(world, life)
        faults.rest()
        life(world)
        left = [entry.path for entry in world.store.list("")]
        assert left == [world.layout.tombstone]
        with refused(UsageError, "tombstone"):
            world.claim()


def test_a_run_that_was_asleep_while_its_job_was_deleted_decides_nothing_that_anybody_sees() -> None:
    world = before_edit()
    world.untag("v1")
    writer = world.claim("asleep")
    draft_ = world.prepare(writer)
    delete_job(
        world.store,
        world.layout,
        owner=world.owner(),
        ids=world.ids,
        clock=world.clock,
        dispose=lambda url: None,
    )
    rows = {uid: list(sink.rows) for uid, sink in world.sinks.items()}
    with pytest.raises(FencedError):
        world.batch(writer)
    with pytest.raises(StateflowError):
        writer.decide(draft_)
    assert {uid: sink.rows for uid, sink in world.sinks.items()} == rows
    assert max(read_epochs(world.store, world.layout)) == 99_999_999


def deletion(world: World) -> None:
    delete_job(
        world.store, world.layout, owner=world.owner("deleter"), ids=world.ids, clock=world.clock,
        dispose=lambda url: None,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_that_starts_while_its_job_is_deleted_never_has_an_epoch_above_the_tombstone() -> None:
    def play(choose: Choose) -> Played:
        world = World(MemoryStore())
        drain(2)(world)
        played = Turns(
            world,
            world.store,
            {"run": lambda: world.batch(world.claim("run")), "delete": lambda: deletion(world)},
        ).play(choose)
        assert max(read_epochs(world.store, world.layout)) <= LAST_EPOCH
        # What the run had left to write lies there still, or all that a deletion which died had yet to do.
        deletion(world)
        assert [entry.path for entry in world.store.list(world.layout.folder)] == [world.layout.tombstone]
        return played

    assert len(list(some_schedules(play, 7, 300))) == 300


def test_a_job_that_is_being_forked_is_not_deleted() -> None:
    world = before_edit()
    slot = tags(world.store, world.layout)["v1"].slot
    with (
        pinned(
            world.store,
            world.layout,
            slot,
            kind="fork",
            owner=world.owner(),
            ids=world.ids,
            clock=world.clock,
        ),
        refused(UsageError, "fork"),
    ):
        delete_job(
            world.store, world.layout, owner=world.owner(), ids=world.ids, clock=world.clock,
            dispose=lambda url: None,
        )  # fmt: skip
    assert world.log().head is not None

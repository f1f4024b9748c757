"""Schedules that lose or double data, told one by one: what happens, in order, and how it must end."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.checkpoint.log import SlotContent, assemble, read_log
from stateflow.checkpoint.pins import list_pins, release
from stateflow.errors import CorruptError, FencedError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import JobLayout, origin_of, slot_of
from stateflow.format.records import JobIdentity, Link, Owner, encode
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Entry, ExistsError
from tests.jobs.log import record
from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.moments import at, run
from tests.protocol.scenario import World, check, drain, offset_of, tell
from tests.refusals.refusal import refused

# Rewinding


def test_a_restore_finds_every_lower_record_carried_out_before_it_rewinds(world: World) -> None:
    a = world.claim("A")
    permit = a.decide(world.prepare(a))
    target = world.log().checkpoints[0]
    restore = world.claim("restore")
    assert [sink.version for sink in world.sinks.values()] == [permit.slot] * 3
    decided = restore.decide(world.rewind(target))
    restore.complete(decided, {})
    # The zombie wakes up and commits: the sinks have it already.
    assert set(world.commit(permit.record).values()) == {"already"}
    head = world.log().head
    assert head is not None
    assert (head.kind, offset_of(head), head.timeline) == ("restore", offset_of(target), 2)


# A job deleted and made again


def test_a_record_of_a_deleted_job_of_this_name_is_nobodys(world: World, store: MemoryStore) -> None:
    writer = world.claim("A")
    slot = writer.next_slot
    foreign = record(slot, job="another", epoch=99, writer="w", owner=Owner(run="old"))
    store.create(world.layout.pending(slot), encode(foreign))
    assert [r.writer for r in world.log().void] == ["w"]
    with refused(StateflowError, "run again"):
        writer.decide(world.prepare(writer))
    run(world, 3)
    assert world.log().void == ()
    check(world, settled=True)


def test_a_deleted_job_is_not_recreated_in_its_old_folder(world: World, store: MemoryStore) -> None:
    store.create(world.layout.tombstone, b"deleted")
    with refused(NotFoundError, "half deleted"):
        world.claim("A")
    store.delete([world.layout.identity])
    with refused(UsageError, "tombstone"):
        world.claim("A")


# Two attempts


def test_two_attempts_of_one_slot_leave_files_of_different_names_and_the_record_lists_its_own(
    world: World,
) -> None:
    a = world.claim("A")
    first, second = world.prepare(a), world.prepare(a)
    names = [d.sinks["left"].files[0].path for d in (first, second)]
    assert len(set(names)) == 2
    assert {origin_of(name) for name in names} == {(a.epoch, a.next_slot)}
    permit = a.decide(second)
    a.complete(permit, world.commit(permit.record))
    world.batch(a)
    a.collect(1, orphans=True)
    stored = {entry.path for entry in world.store.list(world.layout.staged)}
    assert names[0] not in stored
    check(world, settled=True)


# Two claims


def test_of_two_runs_that_claim_at_once_the_newer_one_carries_on(world: World, store: MemoryStore) -> None:
    writers = []

    def c_overtakes() -> None:
        writers.append(world.claim("C"))

    at(store, "create", "_pending", c_overtakes)
    with pytest.raises(FencedError):
        world.claim("B")
    world.batch(writers[0])
    assert world.offset() == 3
    check(world, settled=False)


def test_a_newer_run_adopts_the_fence_of_an_older_one_that_got_there_first(
    world: World, store: MemoryStore
) -> None:
    b: list[BaseException] = []

    def c_claims_then_b_fences() -> None:
        # B holds the older epoch and creates the slot that C is about to take.
        at(store, "create", "_pending", b_fences)
        writers.append(world.claim("C"))

    def b_fences() -> None:
        fence = world.log()
        assert fence.identity is not None
        top = fence.decided
        assert top is not None
        body = record(
            fence.next_slot,
            kind="fence",
            job=fence.identity.uuid,
            epoch=max(fence.epochs) - 1,
            writer="B's fence",
            previous=Link(top.slot, top.writer),
            floor=top.floor,
            owner=Owner(run="B"),
        )
        store.create(world.layout.pending(body.slot), encode(body))

    writers: list[object] = []
    at(store, "create", "_pending", c_claims_then_b_fences)
    try:
        world.claim("B")
    except FencedError as error:
        b.append(error)
    assert len(b) == 1
    kinds = [(r.kind, r.writer == "B's fence") for r in world.log().chain[-2:]]
    assert kinds == [("fence", True), ("fence", False)]
    assert world.log().pending == ()


# A fence above a decision


def test_a_fence_is_complete_only_after_everything_below_it(world: World, store: MemoryStore) -> None:
    a = world.claim("A")
    permit = a.decide(world.prepare(a))

    def dies(what: str) -> None:
        raise CrashError(what)

    world.step = dies
    with pytest.raises(CrashError):
        world.claim("B")
    world.step = None
    log = world.log()
    assert [r.slot for r in log.pending] == [permit.slot, permit.slot + 1]
    assert log.pending[1].kind == "fence"
    completed: list[int] = []

    def note(call: Call) -> None:
        found = slot_of(call.path)
        if call.verb == "create" and found is not None and found[1] == "_metadata":
            completed.append(found[0])

    store.after = note
    world.claim("C")
    assert completed == [permit.slot, permit.slot + 1, permit.slot + 2]
    assert world.sinks["left"].rows == [0, 1, 2]


# Fenced while deciding


def test_a_run_that_was_fenced_while_it_decided_commits_no_sink(world: World, store: MemoryStore) -> None:
    a = world.claim("A")
    draft, slot = world.prepare(a), a.next_slot
    at(store, "create", f"{slot:08d}/_pending", lambda: run(world, 3), after=True)
    commits = len(world.sinks["left"].commits)
    with pytest.raises(FencedError):
        a.decide(draft)
    # The three batches of the next run, and the record itself, carried out by that run.
    assert len(world.sinks["left"].commits) == commits + 4
    assert world.sinks["left"].rows == [0, 1, 2, 3, 4, 5]
    with pytest.raises(StateflowError):
        a.decide(draft)


# Lies


@pytest.mark.parametrize("lie", ["own write reported as a conflict", "conflict with nothing stored"])
@pytest.mark.parametrize("name", ["epochs/", "_pending", "_metadata", "pins/", "_dead-"])
def test_a_create_that_lies_decides_what_it_would_have_decided(name: str, lie: str) -> None:
    store = MemoryStore()
    world = World(store)
    drain(2)(world)
    lied: list[str] = []

    def conflict(call: Call) -> None:
        if call.verb == "create" and name in call.path and not lied:
            lied.append(call.path)
            raise ExistsError(call.path)

    if lie.startswith("own"):
        store.after = conflict
    else:
        store.before = conflict
    world.tag(world.log().checkpoints[-1].slot, "v1")
    run(world, 2)
    assert len(lied) == 1
    assert [pin.name for pin in list_pins(store, world.layout)] == ["v1"]
    check(world, settled=True)


# Torn listings


def test_a_listing_that_missed_a_slot_is_taken_again(world: World, store: MemoryStore) -> None:
    drain(4, retained=4)(world)
    whole = world.log()
    missing = world.layout.slot(whole.chain[-2].slot)
    torn: list[Call] = []

    def tear(call: Call, found: list[Entry]) -> list[Entry]:
        if call.path == world.layout.log and not torn:
            torn.append(call)
            return [entry for entry in found if not entry.path.startswith(missing)]
        return found

    store.tear = tear
    again = world.log()
    assert torn
    assert [r.slot for r in again.chain] == [r.slot for r in whole.chain]


def test_a_slot_that_stays_missing_stops_runs_and_collectors_and_is_named(
    world: World, store: MemoryStore
) -> None:
    drain(4, retained=4)(world)
    lost = world.log().chain[-2].slot
    store.delete([world.layout.pending(lost)])
    for attempt in (lambda: world.claim("A"), lambda: world.collect(1)):
        with pytest.raises(CorruptError, match=f"slot {lost} has no record"):
            attempt()


def test_slots_are_ordered_by_number_when_they_outgrow_their_padding() -> None:
    low, high = 99_999_999, 100_000_000
    records = [
        record(low, job="j", writer="a", floor=low, previous=None),
        record(high, job="j", writer="b", floor=low, below="a"),
    ]
    slots = {r.slot: SlotContent(r.slot, record=r) for r in reversed(records)}
    log = assemble("orders", JobIdentity(uuid="j", name="orders"), [1], slots)
    assert [r.slot for r in log.chain] == [low, high]
    layout = JobLayout("orders")
    assert slot_of(layout.pending(high)) == (high, "_pending")


# A late commit of what was abandoned


def test_an_abandoned_output_that_a_fenced_run_delivers_at_the_last_moment_blocks_nobody(
    world: World,
) -> None:
    a = world.claim("A")
    permit = a.decide(world.prepare(a))
    world.abandon(permit.slot)
    # A looked at the epochs before it was fenced, and commits now.
    assert set(world.commit(permit.record).values()) == {"committed"}
    run(world, 2)
    assert world.sinks["left"].rows == world.sinks["right"].rows == [0, 1, 2, 3, 4]
    for made in list_pins(world.store, world.layout):
        release(world.store, world.layout, made.id)
    run(world, 1)
    check(world, settled=True)


def test_a_sink_stays_right_when_several_records_in_a_row_are_abandoned(world: World) -> None:
    for _ in range(2):
        a = world.claim("A")
        permit = a.decide(world.prepare(a))
        world.abandon(permit.slot)
    run(world, 1)
    assert world.sinks["left"].rows == [0, 1, 4]
    assert world.log().late == {}


# And on a disk


def test_the_whole_story_ends_well_in_memory_and_on_a_local_disk(tmp_path: Path) -> None:
    in_memory, on_disk = tell(MemoryStore()), tell(LocalStore(tmp_path, fsync=False))
    assert [e.path for e in on_disk.store.list("")] == [e.path for e in in_memory.store.list("")]


def test_a_sleeper_a_tag_and_an_abandoned_record_on_a_local_disk(tmp_path: Path) -> None:
    world = World(LocalStore(tmp_path, fsync=False))
    drain(3)(world)
    world.tag(world.log().checkpoints[-1].slot, "v1")
    a = world.claim("A")
    draft = world.prepare(a)
    run(world, 3)
    with pytest.raises(FencedError):
        a.decide(draft)
    world.untag("v1")
    stuck = world.claim("B")
    permit = stuck.decide(world.prepare(stuck))
    world.abandon(permit.slot)
    for made in list_pins(world.store, world.layout):
        release(world.store, world.layout, made.id)
    run(world, 3)
    check(world, settled=True, abandoned={uid: {6} for uid in world.sinks})
    assert read_log(world.store, world.layout).void == ()

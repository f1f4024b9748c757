"""Schedules that lose or double data, told one by one: what happens, in order, and how it must end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.control import (
    Heartbeat,
    StopRequest,
    beat,
    refuse_while_live,
    request_stop,
    stop_requested,
    watch,
)
from stateflow.checkpoint.layout import JobLayout, origin_of, slot_of
from stateflow.checkpoint.local import LocalStore
from stateflow.checkpoint.log import Slot, assemble, read_log
from stateflow.checkpoint.memory_store import Call, CrashError, MemoryStore
from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.records import JobIdentity, Link, Owner, Record, encode
from stateflow.checkpoint.store import Entry, ExistsError
from stateflow.checkpoint.writer import Writer
from stateflow.errors import BusyError, CorruptError, FencedError, NotFoundError, StateflowError, UsageError
from tests.protocol.scenario import World, check, copy_sinks, drain, offset_of, settle, state_files, tell
from tests.protocol.turns import Turns


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(store: MemoryStore) -> World:
    made = World(store)
    drain(2)(made)
    return made


def at(
    store: MemoryStore, verb: str, path: str, do: Callable[[], object], *, after: bool = False, nth: int = 1
) -> None:
    """Does something when the store sees a call for the nth time, once; what it does runs without hooks."""
    seen = 0

    def hook(call: Call) -> None:
        nonlocal seen
        if call.verb == verb and path in call.path:
            seen += 1
            if seen == nth:
                store.before = store.after = None
                do()

    if after:
        store.after = hook
    else:
        store.before = hook


def run(world: World, batches: int, *, retained: int = 1) -> None:
    writer = world.claim("next", retained=retained)
    for _ in range(batches):
        world.batch(writer)
        writer.collect(retained, orphans=True)


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
    with pytest.raises(FencedError, match="do not retry"):
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


# Rewinding


def test_a_restore_finds_every_lower_record_carried_out_before_it_rewinds(world: World) -> None:
    a = world.claim("A")
    permit = a.decide(world.prepare(a))
    target = world.log().checkpoints[0]
    restore = world.claim("restore")
    assert [sink.version for sink in world.sinks.values()] == [permit.slot, permit.slot]
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
    foreign = Record(
        kind="checkpoint", job="another", slot=slot, epoch=99, writer="w", owner=Owner(run="old")
    )
    store.create(world.layout.pending(slot), encode(foreign))
    assert [r.writer for r in world.log().void] == ["w"]
    with pytest.raises(StateflowError, match="run again"):
        writer.decide(world.prepare(writer))
    run(world, 3)
    assert world.log().void == ()
    check(world, settled=True)


def test_a_deleted_job_is_not_recreated_in_its_old_folder(world: World, store: MemoryStore) -> None:
    store.create(world.layout.tombstone, b"deleted")
    with pytest.raises(UsageError, match="tombstone"):
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
        body = Record(
            kind="fence",
            job=fence.identity.uuid,
            slot=fence.next_slot,
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
        with pytest.raises(CorruptError, match=f"slot {lost} of job 'orders' has no record"):
            attempt()


def test_slots_are_ordered_by_number_when_they_outgrow_their_padding() -> None:
    low, high = 99_999_999, 100_000_000
    records = [
        Record(kind="checkpoint", job="j", slot=low, epoch=1, writer="a", floor=low, owner=Owner(run="r")),
        Record(
            kind="checkpoint",
            job="j",
            slot=high,
            epoch=1,
            writer="b",
            floor=low,
            previous=Link(low, "a"),
            owner=Owner(run="r"),
        ),
    ]
    slots = {r.slot: Slot(r.slot, record=r) for r in reversed(records)}
    log = assemble("orders", JobIdentity(uuid="j", name="orders"), [1], slots)
    assert [r.slot for r in log.chain] == [low, high]
    layout = JobLayout("orders")
    assert slot_of(layout.pending(high)) == (high, "_pending")


# Yesterday, and wrong clocks


def test_yesterdays_stop_request_does_not_stop_todays_run(world: World) -> None:
    yesterday = world.claim("yesterday")
    request = StopRequest(epoch=yesterday.epoch, by=Owner(run="operator"), reason="maintenance")
    request_stop(world.store, world.layout, request)
    today = world.claim("today")
    assert stop_requested(world.store, world.layout, yesterday.epoch) == request
    assert stop_requested(world.store, world.layout, today.epoch) is None


class Clock:
    """The watcher's own, which only sleeping moves."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.time = 0.0
        self.during = during

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.during()


@pytest.mark.parametrize("wrong", [0, 4_000_000_000_000_000])
def test_a_dead_run_with_a_wrong_clock_does_not_block_a_takeover(world: World, wrong: int) -> None:
    dead = world.claim("A")
    beat(
        world.store,
        world.layout,
        Heartbeat(epoch=dead.epoch, counter=7, owner=Owner(run="A"), at=wrong),
    )
    clock = Clock()
    live = watch(world.store, world.layout, patience=10, monotonic=clock, sleep=clock.sleep)
    assert not live.alive
    refuse_while_live(
        world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock, sleep=clock.sleep
    )


@pytest.mark.parametrize("wrong", [0, 4_000_000_000_000_000])
def test_a_live_run_with_a_wrong_clock_is_seen_to_live(world: World, wrong: int) -> None:
    running = world.claim("A")
    counter = 0

    def beats() -> None:
        nonlocal counter
        counter += 1
        beat(
            world.store,
            world.layout,
            Heartbeat(epoch=running.epoch, counter=counter, owner=Owner(run="A"), at=wrong),
        )

    beats()
    clock = Clock(during=beats)
    with pytest.raises(BusyError, match="run 'A'"):
        refuse_while_live(
            world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock, sleep=clock.sleep
        )


def test_the_same_task_of_the_same_dag_run_takes_over_at_once(world: World) -> None:
    first = world.claim("A")
    owner = Owner(run="try 1", dag_run="2026-01-01", task="orders")
    beat(world.store, world.layout, Heartbeat(epoch=first.epoch, counter=1, owner=owner))
    clock = Clock()
    retry = Owner(run="try 2", dag_run="2026-01-01", task="orders")
    refuse_while_live(world.store, world.layout, retry, patience=60, monotonic=clock, sleep=clock.sleep)
    assert clock.time == 0.0


# One mark, two collectors


def test_a_mark_that_another_collector_withdraws_does_not_free_the_record_for_a_pinner(
    world: World, store: MemoryStore
) -> None:
    old = world.log().checkpoints[0].slot
    world.claim("last", retained=1)
    tags: list[bool] = []
    turns = Turns(
        world,
        store,
        {
            "GC1": functools.partial(collect, store, world.layout, collector="1", retained=1, orphans=False),
            "GC2": functools.partial(collect, store, world.layout, collector="2", retained=1, orphans=False),
            "P": functools.partial(tag_if_possible, world, old, tags),
        },
    )
    played = turns.follow(
        [
            ("GC1", "create"),
            ("GC1", "list orders/pins/"),  # has marked
            ("GC2", "create"),
            ("GC2", "list orders/pins/"),
            ("GC2", "list orders/epochs/"),  # has marked, and has seen no pin
            ("P", f"list {world.layout.slot(old)}"),  # has pinned
            ("GC1", "the end"),  # sees the pin and withdraws
            ("P", "the end"),  # looks for marks
        ]
    )
    assert played.errors == {}
    assert any(f"GC1: delete {world.layout.dead(old, '1')}" in step for step in played.steps), played.story()
    assert tags == [False]
    assert old not in [r.slot for r in world.log().chain]
    check(world, settled=False)


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
    check(world, settled=True, abandoned={"left": {6}, "right": {6}})
    assert read_log(world.store, world.layout).void == ()

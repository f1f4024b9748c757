"""What a collection deletes, what it keeps, and why."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.collection import (
    CollectionPlan,
    CollectionReport,
    DisposeSavepoint,
    candidates,
    collect,
    inspect,
    is_over,
    plan,
)
from stateflow.checkpoint.deletion import delete_job
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.retention import announced_by, roots
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import Pin, encode
from stateflow.storage.store import Entry
from tests.jobs.log import complete, file, log, pending, pin_of, record
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, check, drain
from tests.refusals.refusal import refused

SHARED = "orders/shared"


@pytest.mark.parametrize(
    ("what", "found", "pins", "retained", "kept"),
    [
        ("the newest", log(*(complete(record(n)) for n in (1, 2, 3))), [], 2, {2: "retained", 3: "head"}),
        (
            "a pinned one",
            log(*(complete(record(n)) for n in (1, 2, 3))),
            [pin_of(1)],
            1,
            {1: "tag v1", 3: "head"},
        ),
        (
            "what is pending",
            log(complete(record(1)), pending(record(2)), pending(record(3, kind="fence"))),
            [],
            1,
            {1: "head", 2: "pending", 3: "pending"},
        ),
        (
            "a restore that is the head, beside the newest checkpoint",
            log(complete(record(1)), complete(record(2, kind="restore"))),
            [],
            1,
            {1: "retained", 2: "head"},
        ),
        (
            "not what a collector has marked, unless a pin holds it",
            log(complete(record(1), "gc"), complete(record(2), "gc"), complete(record(3))),
            [pin_of(2)],
            3,
            {2: "tag v1", 3: "head"},
        ),
        (
            "not what came from the grave, pinned or not",
            log(pending(record(3)), complete(record(7, floor=7))),
            [pin_of(3)],
            2,
            {7: "head"},
        ),
        (
            "the last erasure above a pinned checkpoint, which still has the key",
            log(*(complete(record(n, kind="erase" if n in (2, 3) else "checkpoint")) for n in range(1, 6))),
            [pin_of(1)],
            1,
            {1: "tag v1", 3: "erasure", 5: "head"},
        ),
        (
            "no erasure that has only younger ones above it",
            log(*(complete(record(n, kind="erase" if n == 2 else "checkpoint")) for n in range(1, 6))),
            [pin_of(3)],
            1,
            {3: "tag v1", 5: "head"},
        ),
    ],
)
def test_roots_are(what: str, found: Log, pins: list[Pin], retained: int, kept: dict[int, str]) -> None:
    assert roots(found, pins, retained) == kept


@pytest.mark.parametrize("retained", [0, -1])
def test_a_job_keeps_at_least_one_checkpoint(retained: int) -> None:
    with pytest.raises(UsageError, match="keep at least 1"):
        roots(log(complete(record(1))), [], retained)


@pytest.mark.parametrize(
    ("what", "found", "kind", "retained", "floor"),
    [
        ("nothing said", log(complete(record(1)), complete(record(2))), "checkpoint", None, 1),
        ("only the new one", log(complete(record(1)), complete(record(2))), "checkpoint", 1, 3),
        ("two", log(complete(record(1)), complete(record(2))), "checkpoint", 2, 2),
        ("more than there are", log(complete(record(1)), complete(record(2))), "checkpoint", 9, 1),
        ("a fence keeps the head", log(complete(record(1)), complete(record(2))), "fence", 1, 2),
        ("a fence keeps what is pending", log(complete(record(1)), pending(record(2))), "fence", 1, 1),
        (
            "never lower than before",
            log(complete(record(3)), complete(record(7, floor=7))),
            "checkpoint",
            9,
            7,
        ),
        ("a restore", log(complete(record(1)), complete(record(2))), "restore", 1, 2),
    ],
)
def test_a_record_announces_the_floor(
    what: str, found: Log, kind: str, retained: int | None, floor: int
) -> None:
    assert announced_by(found, kind, retained) == (floor, ())


def test_nothing_at_or_above_the_floor_may_go() -> None:
    found = log(complete(record(1)), complete(record(2)), complete(record(3, floor=2)))
    assert candidates(found, [], 1) == {1: "subsumed"}


@pytest.mark.parametrize(
    ("path", "over"),
    [
        ("orders/shared/e1-c2-a.sst", True),
        ("orders/shared/e2-c9-a.sst", True),
        ("orders/shared/e3-c4-a.sst", True),
        ("orders/shared/e3-c5-a.sst", False),
        ("orders/shared/e3-c6-a.sst", False),
        ("orders/shared/e4-c1-a.sst", False),
        ("orders/staged/e1-c2-a.parquet", True),
        ("orders/shared/somebody-elses.sst", False),
    ],
)
def test_an_epoch_is_over_by_a_higher_record_and_a_slot_by_a_later_one(path: str, over: bool) -> None:
    """Epochs 2 and 4 have been claimed and have no record; 3 has decided slot 5."""
    found = log(complete(record(4)), complete(record(5, epoch=3)), epochs=(1, 2, 3, 4))
    assert is_over(found, path) == over


def garbage(todo: CollectionPlan) -> dict[str, str]:
    return {g.path: g.reason for g in todo.files}


def test_files_go_that_only_removed_records_name() -> None:
    old, kept = file(f"{SHARED}/e1-c1-a.sst", 7), file(f"{SHARED}/e1-c1-b.sst")
    found = log(complete(record(1, files=(old, kept))), complete(record(2, files=(kept,), floor=2)))
    todo = plan(found, [], 1)
    assert garbage(todo) == {old.path: "subsumed"}
    assert todo.bytes_by_reason == {"subsumed": 7}
    assert dict(todo.records) == {1: "subsumed"}
    assert dict(todo.kept) == {2: "head"}


def test_files_of_records_that_were_not_chosen_stay() -> None:
    files = [file(f"{SHARED}/e1-c{n}-a.sst") for n in (1, 2, 3)]
    found = log(
        complete(record(1, files=(files[0],))),
        complete(record(2, files=(files[0], files[1]))),
        complete(record(3, files=(files[2],), floor=3)),
    )
    todo = plan(found, [], 1, chosen=[2])
    assert list(todo.records) == [2]
    assert garbage(todo) == {files[1].path: "subsumed"}


def test_orphans_go_and_files_of_a_run_that_may_still_decide_stay() -> None:
    found = log(complete(record(1)), complete(record(2, epoch=3, floor=2)), epochs=(1, 2, 3, 4))
    listed = [
        Entry(f"{SHARED}/e1-c1-left.sst", 5),
        Entry(f"{SHARED}/e3-c3-being-written.sst", 5),
        Entry(f"{SHARED}/e4-c3-being-written.sst", 5),
        Entry("orders/staged/e2-c2-left.parquet", 6),
    ]
    todo = plan(found, [], 1, files=listed)
    assert garbage(todo) == {listed[0].path: "orphan", listed[3].path: "orphan"}
    assert todo.bytes_by_reason == {"orphan": 11}


def test_a_void_record_takes_its_own_files_along_and_no_others() -> None:
    own, shared = file(f"{SHARED}/e1-c3-zombie.sst"), file(f"{SHARED}/e1-c1-a.sst")
    found = log(
        pending(record(3, writer="zombie", files=(own, shared))),
        complete(record(7, epoch=2, floor=7, files=(shared,))),
    )
    assert dict(plan(found, [], 1).records) == {3: "void"}
    assert garbage(plan(found, [], 1)) == {own.path: "subsumed"}


@pytest.mark.parametrize("path", ["other/shared/e1-c1-a.sst", "orders/job", "orders/shared/../job"])
def test_a_record_that_names_what_is_not_its_jobs_deletes_nothing(path: str) -> None:
    found = log(complete(record(1, files=(file(path),))), complete(record(2, floor=2)))
    assert plan(found, [], 1).files == ()


def test_a_claimed_savepoint_is_let_go_with_the_last_record_that_names_it() -> None:
    url = "s3://bucket/savepoints/a"
    part = file("part.sst", base=url)
    held = log(complete(record(1, files=(part,))), complete(record(2, files=(part,), floor=2)))
    assert plan(held, [], 1).savepoints == ()
    free = log(complete(record(1, files=(part,))), complete(record(2, floor=2)))
    assert plan(free, [], 1).savepoints == (url,)
    assert plan(free, [], 1).files == ()


def test_a_pin_of_nothing_goes_only_below_the_floor_for_above_it_the_record_may_be_younger() -> None:
    found = log(complete(record(4)), complete(record(5, floor=4)))
    todo = plan(found, [pin_of(3), pin_of(6)], 1)
    assert todo.leftovers == ("orders/pins/pin-3-v1",)


# With a store


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(store: MemoryStore) -> World:
    made = World(store)
    drain(3)(made)
    return made


@pytest.mark.parametrize("retained", [1, 2, 5])
def test_a_run_keeps_exactly_what_it_was_told_to(retained: int) -> None:
    world = World(MemoryStore())
    drain(9, retained=retained)(world)
    assert len(world.log().checkpoints) == retained
    check(world, settled=True)


def test_a_claim_that_knows_the_retention_collects_down_to_it_at_once(world: World) -> None:
    drain(6, retained=4)(world)
    writer = world.claim(retained=1)
    writer.collect(1, orphans=True)
    assert [r.kind for r in world.log().chain] == ["checkpoint", "fence"]
    check(world, settled=True)


def test_a_run_forgets_the_records_that_somebody_else_collects(world: World) -> None:
    writer = world.claim(retained=2)
    for _ in range(5):
        world.batch(writer)
        world.collect(2)
        writer.collect(2, orphans=False)
    assert writer.log.slots.keys() == world.log().slots.keys()
    check(world, settled=True)


def test_between_batches_no_folder_of_files_is_listed(world: World, store: MemoryStore) -> None:
    writer = world.claim(retained=2)
    world.batch(writer)
    before = len(store.calls)
    world.batch(writer)
    report = writer.collect(2, orphans=False)
    assert report.removed
    assert report.files
    listed = {call.path for call in store.calls[before:] if call.verb == "list"}
    assert not listed & {world.layout.shared, world.layout.staged}


def test_a_dry_run_tells_what_a_collection_then_does_and_deletes_nothing(world: World) -> None:
    dead = world.claim()
    world.prepare(dead)
    writer = world.claim(retained=1)
    world.batch(writer)
    before = world.store.list("")
    todo = inspect(world.store, world.layout, 1)
    assert world.store.list("") == before
    report = collect(world.store, world.layout, collector="gc", retained=1, orphans=True)
    assert report.removed == tuple(todo.records)
    assert report.bytes_by_reason == todo.bytes_by_reason
    assert report.bytes_by_reason["orphan"] > 0
    gone = {e.path for e in before} - {e.path for e in world.store.list("")}
    assert {g.path for g in todo.files} <= gone
    assert inspect(world.store, world.layout, 1).empty


def test_a_second_collection_finds_nothing(world: World) -> None:
    world.collect(2)
    before = world.store.list("")
    report = collect(world.store, world.layout, collector="again", retained=2, orphans=True)
    assert (report.removed, report.files) == ((), 0)
    assert world.store.list("") == before


def test_records_are_deleted_oldest_first_and_after_their_files(world: World, store: MemoryStore) -> None:
    drain(6, retained=4)(world)
    writer = world.claim(retained=1)
    before = len(store.calls)
    report = writer.collect(1, orphans=True)
    assert len(report.removed) > 2
    deleted = [call.path for call in store.calls[before:] if call.verb == "delete"]
    pendings = [path for path in deleted if path.endswith("_pending")]
    assert pendings == sorted(pendings)
    last_file = max(n for n, path in enumerate(deleted) if "/shared/" in path or "/staged/" in path)
    assert last_file < deleted.index(pendings[0])
    for slot in report.removed:
        mark = next(n for n, path in enumerate(deleted) if path.startswith(world.layout.dead(slot, "")))
        assert deleted.index(world.layout.pending(slot)) < deleted.index(world.layout.metadata(slot)) < mark


def test_what_a_dead_collector_has_left_half_done_is_finished(world: World, store: MemoryStore) -> None:
    old = world.log().checkpoints[0].slot
    world.claim(retained=1)
    leftover = store.read(world.layout.metadata(old))
    collect(store, world.layout, collector="gc", retained=1, orphans=False)
    store.put(world.layout.metadata(old), leftover)
    store.put(world.layout.dead(old, "dead-collector"), b"left")
    world.collect(1)
    assert store.list(world.layout.slot(old)) == []
    check(world, settled=True)


def test_a_record_found_pinned_after_it_was_marked_is_withdrawn(world: World, store: MemoryStore) -> None:
    old = world.log().checkpoints[0].slot
    world.claim(retained=1)
    pins_read = 0

    def hook(call: Call) -> None:
        nonlocal pins_read
        if call.verb == "list" and call.path == world.layout.log and not pins_read:
            pins_read += 1
            store.before = None
            world.tag(old, "v1")

    store.before = hook
    report = collect(store, world.layout, collector="gc", retained=1, orphans=True)
    assert report.withdrawn == (old,)
    assert [e.path for e in store.list(world.layout.slot(old)) if "_dead-" in e.path] == []
    assert old in [r.slot for r in world.log().checkpoints]
    check(world, settled=True)


def test_a_claimed_savepoint_is_disposed_of_before_the_record_that_named_it_goes(world: World) -> None:
    from stateflow.checkpoint.draft import Draft
    from tests.jobs.log import record as a_record

    url = "file:///savepoints/a"
    writer = world.claim(retained=1)
    named = a_record(1, files=(file("part.sst", base=url),)).operators
    permit = writer.decide(Draft("restore", operators=named))
    writer.complete(permit, {})
    permit = writer.decide(Draft("checkpoint"))
    writer.complete(permit, {})
    permit = writer.decide(Draft("checkpoint"))
    writer.complete(permit, {})
    disposed: list[tuple[str, bool]] = []
    collect(
        world.store,
        world.layout,
        collector="gc",
        retained=1,
        orphans=False,
        dispose=lambda url: disposed.append((url, any(r.kind == "restore" for r in world.log().chain))),
    )
    assert disposed == [(url, True)]


def test_claims_and_control_files_of_past_epochs_go(world: World) -> None:

    for _ in range(4):
        writer = world.claim()
        world.beat(epoch=writer.epoch, owner=world.owner())
    writer.collect(2, orphans=True)
    assert [e.path for e in world.store.list(world.layout.epochs)] == [world.layout.epoch(writer.epoch)]
    assert [e.path for e in world.store.list(world.layout.control)] == [world.layout.heartbeat(writer.epoch)]


# What a pin keeps below the floor


@pytest.fixture
def tagged(world: World) -> World:
    """Its tag keeps a checkpoint that nothing else does."""
    head = world.log().head
    assert head is not None
    world.tag(head.slot, "v1")
    drain(8)(world)
    assert tagged_slot(world) < world.log().floor
    return world


def tagged_slot(world: World) -> int:
    (made,) = list_pins(world.store, world.layout)
    return made.slot


@pytest.mark.parametrize("missed", ["", "_pending", "_metadata"])
@pytest.mark.parametrize("orphans", [False, True])
def test_a_listing_that_misses_what_a_tag_keeps_is_taken_again(
    missed: str, orphans: bool, tagged: World
) -> None:
    """Below the floor no gap tells. Both the tag and the state that only it keeps would go."""
    slot, store = tagged_slot(tagged), tagged.store
    assert isinstance(store, MemoryStore)
    before, torn = store.snapshot(), []

    def tear(call: Call, found: list[Entry]) -> list[Entry]:
        if call.path != tagged.layout.log or len(torn) >= 3:
            return found
        torn.append(call)
        return [entry for entry in found if not entry.path.startswith(tagged.layout.slot(slot) + missed)]

    store.tear = tear
    report = collect(store, tagged.layout, collector="gc", retained=2, orphans=orphans)
    assert torn
    assert (report.removed, report.files) == ((), 0)
    assert store.snapshot() == before


@pytest.mark.parametrize("lost", ["_pending", "_metadata"])
def test_a_tagged_checkpoint_that_was_damaged_stops_a_collection_which_names_both(
    lost: str, tagged: World
) -> None:
    slot, store = tagged_slot(tagged), tagged.store
    assert isinstance(store, MemoryStore)
    path = f"{tagged.layout.slot(slot)}{lost}"
    body = store.read(path)
    store.delete([path])
    before = store.snapshot()
    for _ in range(2):
        with refused(CorruptError, f"checkpoint {slot}", "tag v1", "`stateflow tag orders v1 --remove`"):
            tagged.collect(2)
        with pytest.raises(CorruptError, match="nothing of the job may be deleted"):
            inspect(store, tagged.layout, 2)
    assert store.snapshot() == before
    store.put(path, body)
    tagged.collect(2)
    assert slot in [record.slot for record in tagged.log().chain]
    store.delete([path])
    tagged.untag("v1")
    tagged.collect(2)
    check(tagged, settled=True)


def test_a_record_from_the_grave_is_not_what_a_tag_of_its_slot_keeps(tagged: World) -> None:
    """The tag's maker died before it was refused; then a sleeper created its record in the empty slot."""
    (made,) = list_pins(tagged.store, tagged.layout)
    tagged.untag("v1")
    tagged.collect(2)
    tagged.store.put(tagged.layout.pin(made.id), encode(made))
    uuid = tagged.log().chain[-1].job
    zombie = record(made.slot, writer="zombie", job=uuid)
    tagged.store.create(tagged.layout.pending(made.slot), encode(zombie))
    tagged.collect(2)
    assert list_pins(tagged.store, tagged.layout) == []
    check(tagged, settled=True)


# Claimed savepoints that cannot be disposed of

STUCK, FINE = "file:///savepoints/stuck", "file:///savepoints/fine"


class Disposal:
    """Fails for one of two savepoints until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.done: list[str] = []

    def __call__(self, url: str) -> None:
        if url == STUCK and not self.mended:
            raise CorruptError("its _claimed is damaged")
        self.done.append(url)


@pytest.fixture
def restored(world: World) -> World:
    """Two restores, each from a savepoint that it claimed, and batches that left them behind."""
    writer = world.claim(retained=1)
    for url in (STUCK, FINE):
        named = record(1, files=(file("part.sst", base=url),)).operators
        writer.complete(writer.decide(Draft("restore", operators=named)), {})
    for _ in range(3):
        writer.complete(writer.decide(Draft("checkpoint")), {})
    return world


def collected(world: World, dispose: DisposeSavepoint) -> CollectionReport:
    return collect(
        world.store, world.layout, collector=world.ids(), retained=1, orphans=True, dispose=dispose
    )


def test_a_savepoint_that_cannot_be_disposed_of_keeps_its_record_and_nothing_else(restored: World) -> None:
    dispose = Disposal()
    report = collected(restored, dispose)
    assert report.undisposed == {STUCK: "its _claimed is damaged"}
    assert report.savepoints == (FINE,)
    left = [slot for slot in restored.log().slots if slot < restored.log().floor]
    assert len(left) == 1
    assert left[0] not in report.removed
    assert len(report.removed) > 3
    assert restored.log().slots[left[0]].doomed
    before = restored.store.list("")
    for _ in range(3):
        assert collected(restored, dispose).undisposed
        assert restored.store.list("") == before  # no mark is added
    with pytest.raises(NotFoundError, match="being collected"):
        restored.tag(left[0], "v1")
    dispose.mended = True
    assert collected(restored, dispose).savepoints == (STUCK,)
    assert dispose.done == [FINE, STUCK]
    assert [slot for slot in restored.log().slots if slot < restored.log().floor] == []


def test_a_savepoint_that_is_not_the_job_s_to_delete_stays_and_keeps_no_record(restored: World) -> None:
    report = collected(restored, lambda url: "a copy" if url == STUCK else None)
    assert (report.savepoints, report.left, report.undisposed) == ((FINE,), {STUCK: "a copy"}, {})
    assert report.warnings == [f"{STUCK} stays: a copy"]
    assert [slot for slot in restored.log().slots if slot < restored.log().floor] == []


def test_a_record_that_a_dead_collector_doomed_gets_no_second_mark(restored: World) -> None:
    dispose = Disposal()
    collected(restored, dispose)
    (slot,) = (slot for slot in restored.log().slots if slot < restored.log().floor)
    store = restored.store
    assert isinstance(store, MemoryStore)
    before = len(store.calls)
    collected(restored, dispose)
    assert [c.path for c in store.calls[before:] if c.verb == "create" and f"{slot:08d}/" in c.path] == []


def test_a_job_is_deleted_although_a_savepoint_of_it_cannot_be(restored: World) -> None:
    done = delete_job(
        restored.store, restored.layout, owner=restored.owner(), ids=restored.ids, clock=restored.clock,
        dispose=Disposal(),
    )  # fmt: skip
    assert done.undisposed == {STUCK: "its _claimed is damaged"}
    assert done.savepoints == (FINE,)
    assert [entry.path for entry in restored.store.list("")] == [restored.layout.tombstone]

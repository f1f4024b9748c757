"""What follows from the facts of a log: the chain, the head, what is pending, what is void."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stateflow.checkpoint.deletion import delete_job
from stateflow.checkpoint.log import (
    BodyCache,
    Log,
    SlotCache,
    SlotContent,
    list_jobs,
    names_by_id,
    read_epoch_claim,
    read_identity,
    read_log,
)
from stateflow.errors import CorruptError, NotFoundError, UnavailableError
from stateflow.format.layout import LAST_EPOCH, JobLayout
from stateflow.format.records import JobIdentity, encode
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Entry, Store
from tests.jobs.log import UUID, complete, log, outcome, pending, record
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, drain
from tests.refusals.refusal import refused

LAYOUT = JobLayout("orders")


def slots(records: object) -> list[int]:
    return [r.slot for r in records]  # type: ignore[attr-defined]


def carried_out(slot: int) -> SlotContent:
    """Whose record is not there."""
    return SlotContent(slot, outcome=outcome(record(slot)))


@pytest.mark.parametrize(
    ("what", "found", "chain", "head", "waiting", "void"),
    [
        ("nothing", log(), [], None, [], []),
        ("the first fence", log(pending(record(1, kind="fence"))), [1], None, [1], []),
        ("a complete one", log(complete(record(1))), [1], 1, [], []),
        ("a pending one above", log(complete(record(1)), pending(record(2))), [1, 2], 1, [2], []),
        (
            "a fence on top of a pending one",
            log(complete(record(1)), pending(record(2)), pending(record(3, kind="fence"))),
            [1, 2, 3],
            1,
            [2, 3],
            [],
        ),
        (
            "a complete fence on top",
            log(complete(record(1)), complete(record(2, kind="fence"))),
            [1, 2],
            1,
            [],
            [],
        ),
        (
            "a survivor below the floor",
            log(complete(record(3)), complete(record(7, floor=7))),
            [3, 7],
            7,
            [],
            [],
        ),
        (
            "a pending one below the floor",
            log(pending(record(3)), complete(record(7, floor=7))),
            [7],
            7,
            [],
            [3],
        ),
        (
            "one from the grave right below the floor",
            log(pending(record(6, writer="zombie")), complete(record(7, floor=7))),
            [7],
            7,
            [],
            [6],
        ),
        (
            "one from the grave beside its predecessor's outcome",
            log(
                SlotContent(6, record=record(6, writer="zombie"), outcome=outcome(record(6))),
                complete(record(7, floor=7)),
            ),
            [7],
            7,
            [],
            [6],
        ),
        (
            "one of another job of this name",
            log(complete(record(1)), pending(record(2, job="another"))),
            [1],
            1,
            [],
            [2],
        ),
        (
            "the head below the floor of a pending record",
            log(complete(record(1)), pending(record(2, floor=2))),
            [1, 2],
            1,
            [2],
            [],
        ),
    ],
)
def test_the_chain_is_what_the_newest_record_links_to(
    what: str, found: Log, chain: list[int], head: int | None, waiting: list[int], void: list[int]
) -> None:
    assert slots(found.chain) == chain
    assert (found.head.slot if found.head else None) == head
    assert slots(found.pending) == waiting
    assert slots(found.void) == void
    assert found.gaps == ()


@pytest.mark.parametrize(
    ("what", "found", "gaps"),
    [
        ("a missing slot", log(complete(record(1)), complete(record(3))), (2,)),
        (
            "another body than the one linked to",
            log(complete(record(1)), pending(record(2, below="x"))),
            (1,),
        ),
        ("a missing outcome", log(pending(record(1)), complete(record(2))), (1,)),
        ("a missing slot below the floor", log(complete(record(1)), complete(record(3, floor=3))), ()),
        ("the newest body", log(complete(record(1)), carried_out(2)), (2,)),
        ("the newest bodies", log(complete(record(1)), carried_out(2), carried_out(3)), (2, 3)),
        (
            "the newest body, which had announced a floor",
            log(complete(record(1)), complete(record(3)), carried_out(4)),
            (4,),
        ),
        ("the only body", log(carried_out(1)), (1,)),
        (
            "a body above what another job has left",
            log(complete(record(1)), pending(record(2, job="another")), carried_out(3)),
            (3,),
        ),
        (
            "an outcome that a fenced run left below the floor",
            log(carried_out(1), complete(record(3, floor=3))),
            (),
        ),
        ("an outcome that a run of a deleted job left", log(complete(record(1)), carried_out(7)), ()),
    ],
)
def test_what_is_missing_at_or_above_the_floor_is_a_gap(what: str, found: Log, gaps: tuple[int, ...]) -> None:
    assert found.gaps == gaps
    if gaps:
        with refused(CorruptError, "of job 'orders'", f"slot {gaps[0]} has"):
            found.require_sound()


def test_a_checkpoint_that_a_collector_has_marked_is_no_choice_any_more() -> None:
    found = log(complete(record(1), "gc"), complete(record(2)))
    assert slots(found.checkpoints) == [2]


def test_without_the_jobs_identity_nothing_is_decided_unless_the_job_was_deleted() -> None:
    found = replace(log(complete(record(1))), identity=None)
    with refused(CorruptError, "orders/job", "'orders'", "is missing"):
        found.require_sound()
    with refused(CorruptError, "orders/job"):
        replace(log(), identity=None).require_sound()
    replace(log(complete(record(1)), epochs=(1, LAST_EPOCH)), identity=None).require_sound()
    replace(log(epochs=()), identity=None).require_sound()


def test_the_next_slot_passes_over_what_another_job_has_left_there() -> None:
    found = log(complete(record(1)), pending(record(2, job="another")))
    assert found.next_slot == 3


def test_a_reader_sees_the_last_complete_state_while_a_batch_is_carried_out() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(2)(world)
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    found = read_log(store, world.layout)
    assert found.head is not None
    assert found.head.slot < permit.slot
    assert (outcome := found.slots[found.head.slot].outcome) is not None
    assert outcome.slot == found.head.slot
    assert slots(found.pending) == [permit.slot]
    assert found.decided == permit.record
    assert found.last_commits == {"left": found.head.slot, "right": found.head.slot}


def test_bodies_are_read_once() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(3)(world)
    cache: BodyCache = {}
    first = read_log(store, world.layout, cache=cache)
    before = len(store.calls)
    again = read_log(store, world.layout, cache=cache)
    assert again == first
    assert [call.path for call in store.calls[before:] if call.verb == "read"] == [world.layout.identity]


def test_a_body_is_forgotten_with_its_record_so_that_a_reused_name_is_read_anew() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(2)(world)
    cache: BodyCache = {}
    gone = read_log(store, world.layout, cache=cache).chain[0]
    drain(6)(world)
    read_log(store, world.layout, cache=cache)
    assert all(path != world.layout.pending(gone.slot) for path, _ in cache)


def test_a_record_collected_between_the_listing_and_the_reading_is_no_error() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(3)(world)
    writer = world.claim("last", retained=1)
    world.batch(writer)

    def collects(call: Call) -> None:
        if call.verb == "list" and call.path == world.layout.log:
            store.after = None
            writer.collect(1, orphans=True)

    store.after = collects
    found = read_log(store, world.layout)
    assert found.gaps == ()
    assert found.head == writer.parent


def test_a_damaged_record_is_named_and_stops_whoever_would_decide() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(2)(world)
    path = world.layout.pending(world.log().chain[-1].slot)
    store.put(path, store.read(path)[:-9] + b"123456789")
    found = world.log()
    assert found.unreadable == (path,)
    for act in (lambda: world.claim(), lambda: world.collect(1)):
        with pytest.raises(CorruptError, match=path):
            act()


def test_a_record_that_is_not_on_the_chain_is_not_found() -> None:
    with refused(NotFoundError, "checkpoint 9"):
        log(complete(record(1))).record(9)


def test_a_claim_tells_who_made_it() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    world.claim("run-7")
    assert read_epoch_claim(store, world.layout, 1).owner.run == "run-7"


def test_the_jobs_of_a_root_are_listed(tmp_path: Path) -> None:
    stores: list[Store] = [MemoryStore(), LocalStore(tmp_path / "root", fsync=False)]
    for store in stores:
        assert list_jobs(store) == []
        for job in ("b-side", "a"):
            World(store, job, feeds=False).claim()
        store.put("notes/readme", b"not a job")
        store.put("notes/epochs/readme", b"no claim")
        store.put("notes/chk-readme", b"no record")
        assert list_jobs(store) == ["a", "b-side"]


def test_folders_of_others_in_a_root_keep_nobody_from_its_jobs(caplog: pytest.LogCaptureFixture) -> None:
    """`lost+found` of a volume, which nobody may look into, and what somebody has put beside the jobs."""
    store = MemoryStore()
    World(store, "orders", feeds=False).claim()
    for path in ("lost+found/job", "my data/job", "private/notes"):
        store.put(path, b"not a job")

    def deny(call: Call) -> None:
        if call.path.startswith(("lost+found", "private")):
            raise UnavailableError("permission denied")

    store.before = deny
    assert list_jobs(store) == ["orders", "private"]
    assert list(names_by_id(store).values()) == ["orders"]
    assert "private" in caplog.text
    assert "lost+found" not in caplog.text


def test_a_job_that_has_lost_its_identity_is_listed_and_a_deleted_one_is_not() -> None:
    store = MemoryStore()
    for job in ("claims", "records", "deleted"):
        drain(2)(World(store, job, feeds=False))
    world = World(store, "deleted", feeds=False)
    delete_job(
        store, world.layout, owner=world.owner(), ids=world.ids, clock=world.clock, dispose=lambda url: None
    )
    store.delete(["claims/job", "records/job"])
    store.delete([entry.path for entry in store.list("records/epochs/")])
    assert list_jobs(store) == ["claims", "records"]


def test_the_names_of_the_jobs_of_a_root_are_known_by_their_ids() -> None:
    store = MemoryStore()
    for job in ("payments", "orders"):
        store.put(JobLayout(job).identity, encode(JobIdentity(uuid=f"id of {job}", name=job)))
    store.put(JobLayout("damaged").identity, b"{")
    assert names_by_id(store) == {"id of payments": "payments", "id of orders": "orders"}


def test_a_job_whose_folder_was_copied_or_renamed_is_taken_for_no_other() -> None:
    """Its records name the files in the folder of the original."""
    store = MemoryStore()
    world = World(store, "orders", feeds=False)
    drain(2)(world)
    for path, body in store.snapshot().items():
        store.put(path.replace("orders/", "backup/", 1), body)
    copied = JobLayout("backup")
    for each in (read_identity, read_log, partial(read_log, newest=1)):
        with refused(CorruptError, "backup/job", "'orders'", "--from-job orders"):
            each(store, copied)
    with refused(CorruptError, "'orders'"):
        delete_job(
            store, copied, owner=world.owner(), ids=world.ids, clock=world.clock, dispose=lambda url: None
        )
    assert list_jobs(store) == ["backup", "orders"]
    assert list(names_by_id(store).values()) == ["orders"]
    assert read_log(store, world.layout).sound


def test_a_record_that_was_put_back_is_read_again_by_who_has_seen_the_damage() -> None:
    store = MemoryStore()
    world = World(store, "orders", feeds=False)
    drain(2)(world)
    path = world.layout.metadata(2)
    body = store.read(path)
    kept = SlotCache()
    store.put(path, b"x" * len(body))
    assert read_log(store, world.layout, slots=kept).unreadable == (path,)
    store.put(path, body)
    assert read_log(store, world.layout, slots=kept).unreadable == ()


class Distant(MemoryStore):
    @property
    def url(self) -> str:
        return "s3://far/away"


def test_a_distant_store_is_asked_several_things_at_once() -> None:
    """Each answer takes a trip: of a hundred jobs in turn that made minutes."""
    store = Distant()
    for job in ("a", "b", "c"):
        drain(3, retained=9)(World(store, job, feeds=False))
    asked = threading.Barrier(3)

    def together(kind: str, about: str) -> Callable[[Call], None]:
        def hook(call: Call) -> None:
            if call.verb == kind and about in call.path:
                asked.wait(30)

        return hook

    store.before = together("list", "/job")
    assert list_jobs(store) == ["a", "b", "c"]
    store.before = together("read", "_pending")
    assert slots(read_log(store, JobLayout("a")).chain) == [2, 3, 4]


def test_objects_that_are_no_records_are_left_alone() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(1)(world)
    before = world.log()
    store.put(world.layout.slot(before.chain[-1].slot) + "notes.txt", b"mine")
    store.put("orders/chk-backup/_pending", b"not a record")
    assert [r.writer for r in world.log().chain] == [r.writer for r in before.chain]


def test_a_torn_listing_is_believed_only_after_many_tries() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(4, retained=4)(world)
    missing = world.layout.slot(world.log().chain[-2].slot)
    listings = 0

    def tear(call: Call, found: list[Entry]) -> list[Entry]:
        nonlocal listings
        if call.path == LAYOUT.log:
            listings += 1
            return [entry for entry in found if not entry.path.startswith(missing)]
        return found

    store.tear = tear
    assert world.log().gaps
    assert listings > 3


def test_records_of_another_job_do_not_move_the_chain() -> None:
    found = log(complete(record(1)), pending(record(5, job="another")))
    assert found.decided is not None
    assert (found.decided.slot, found.decided.job) == (1, UUID)


def test_a_body_reads_back_as_it_was_written() -> None:
    store = MemoryStore()
    world = World(store, feeds=False)
    drain(1)(world)
    head = world.log().head
    assert head is not None
    assert store.read(world.layout.pending(head.slot)) == encode(head)

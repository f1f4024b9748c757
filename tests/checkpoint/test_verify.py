"""What a verification finds."""

from __future__ import annotations

import msgspec
import pytest

from stateflow.checkpoint.deletion import delete_job
from stateflow.checkpoint.names import head_of
from stateflow.checkpoint.verification import Finding, verify
from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.records import Pin, Record, SourceState, encode
from stateflow.storage.roots import open_recorded
from stateflow.storage.store import Store
from tests.jobs.log import record
from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.scenario import World, check, drain, settle, state_files
from tests.refusals.refusal import refused


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(store: MemoryStore) -> World:
    made = World(store)
    drain(4, retained=3)(made)
    return made


def findings(world: World, *, deep: bool = False) -> list[tuple[str, str]]:
    return [(f.severity, f.path) for f in verify(world.store, world.layout, deep=deep)]


def state_path(world: World) -> str:
    return state_files(world.log().head)[0].path


def test_a_healthy_job_has_no_findings(world: World) -> None:
    assert findings(world, deep=True) == []


def test_a_job_that_does_not_exist_is_not_found(store: MemoryStore) -> None:
    with refused(NotFoundError, "job 'orders' does not exist"):
        verify(store, World(store).layout)


def test_a_missing_file_is_named_with_its_record_and_a_way_out(world: World) -> None:
    path = state_path(world)
    world.store.delete([path])
    (finding,) = verify(world.store, world.layout)
    assert finding.severity == "error"
    assert path in finding.text
    assert "is missing" in finding.text
    assert "restore" in finding.text
    assert finding.slot in [r.slot for r in world.log().chain]


def test_a_file_of_another_size_is_found_without_reading_it(world: World, store: MemoryStore) -> None:
    store.put(state_path(world), b"short")
    assert findings(world) == [("error", state_path(world))]


def test_a_flipped_bit_is_found_by_a_deep_verification_only(world: World, store: MemoryStore) -> None:
    path = state_path(world)
    body = bytearray(store.read(path))
    body[0] ^= 1
    store.put(path, bytes(body))
    assert findings(world) == []
    assert findings(world, deep=True) == [("error", path)]


def test_what_nobody_reaches_is_a_warning(world: World, store: MemoryStore) -> None:
    dead = world.claim()
    lost = state_files(world.prepare(dead))[-1].path
    assert ("warning", lost) not in findings(world)  # the run may still decide
    world.claim()
    assert ("warning", lost) in findings(world)
    world.collect(3)
    assert findings(world) == []


def test_a_damaged_record_is_named_once(world: World, store: MemoryStore) -> None:
    path = world.layout.pending(world.log().chain[-2].slot)
    store.put(path, b"rubbish")
    assert [f for f in findings(world) if f[0] == "error"] == [("error", path)]


def test_a_damaged_outcome_of_the_newest_record_may_be_deleted_and_is_made_anew(
    world: World, store: MemoryStore
) -> None:
    top = world.log().chain[-1].slot
    path = world.layout.metadata(top)
    store.put(path, b"rubbish")
    with refused(CorruptError, path, "stateflow verify orders"):
        world.claim()
    (finding,) = verify(store, world.layout)
    assert f"delete it and start the next run, which carries record {top} out again" in finding.text
    store.delete([path])
    settle(world)
    check(world, settled=True)
    assert world.sinks["left"].rows == list(range(5))


def test_nobody_is_told_to_delete_what_others_have_to_know(world: World, store: MemoryStore) -> None:
    """Of a damaged record the slot would be decided again, and of an outcome below a complete record the log would lack it."""
    chain = world.log().chain
    kept = world.log().checkpoints
    for path, snapshot in (
        (world.layout.pending(chain[-1].slot), kept[-2].slot),
        (world.layout.metadata(chain[-2].slot), kept[-1].slot),
    ):
        whole = store.read(path)
        store.put(path, b"rubbish")
        (text,) = [f.text for f in verify(store, world.layout) if f.severity == "error"]
        assert path in text
        assert f"`stateflow restore NAME PIPELINE --from checkpoint:{snapshot} --from-job orders`" in text
        assert "delete" not in text
        store.put(path, whole)
    assert findings(world) == []
    for path in (world.layout.metadata(chain[-2].slot), world.layout.pending(chain[-1].slot)):
        store.put(path, b"rubbish")
    assert not [f for f in verify(store, world.layout) if "delete" in f.text]


def test_a_record_of_a_newer_format_is_not_called_damaged(world: World, store: MemoryStore) -> None:
    path = world.layout.metadata(world.log().chain[-1].slot)
    store.put(path, store.read(path).replace(b"stateflow 1 ", b"stateflow 2 ", 1))
    (finding,) = verify(store, world.layout)
    assert f"{path} was written in format 2 by a newer stateflow" in finding.text
    assert "delete" not in finding.text


def test_a_missing_record_is_named(world: World, store: MemoryStore) -> None:
    slot = world.log().chain[-2].slot
    store.delete([world.layout.pending(slot)])
    errors = [f for f in verify(store, world.layout) if f.severity == "error"]
    assert [f.slot for f in errors] == [slot]
    assert f"slot {slot} is missing from the chain" in errors[0].text
    assert "`stateflow restore NAME PIPELINE --from checkpoint:" in errors[0].text


def test_a_lost_record_is_named_by_what_was_carried_out_from_it(store: MemoryStore) -> None:
    """Also the newest ones: the next run would decide their slots again, and do their output twice."""
    world = World(store)
    writer = world.claim()
    for _ in range(4):
        world.batch(writer)
    below, top = (record.slot for record in world.log().chain[-2:])
    store.delete([world.layout.pending(top)])
    assert [(f.severity, f.slot) for f in verify(store, world.layout) if f.severity == "error"] == [
        ("error", top)
    ]
    store.delete([world.layout.pending(below)])
    assert {f.slot for f in verify(store, world.layout) if f.severity == "error"} == {top, below}
    store.delete([entry.path for entry in store.list(world.layout.slot(below))])
    assert top in {f.slot for f in verify(store, world.layout) if f.severity == "error"}


@pytest.mark.parametrize("folders", [("chk-",), ("chk-", "epochs/")])
def test_a_lost_log_is_named_by_what_outlives_it_and_no_run_begins_anew(
    store: MemoryStore, folders: tuple[str, ...]
) -> None:
    """A run would decide slot 1 once more, and every output would take that for done long ago."""
    world = World(store)
    world.claim()
    assert verify(store, world.layout) == [], "a run that has not come to its first record"
    drain(4)(world)
    store.delete([entry.path for folder in folders for entry in store.list(f"orders/{folder}")])
    (finding,) = verify(store, world.layout)
    assert (finding.severity, finding.path.partition("/c0")[0]) == ("error", "orders/statistics")
    assert "`stateflow restore NAME PIPELINE --from SAVEPOINT`" in finding.text
    with refused(CorruptError, finding.path, "stateflow verify orders"):
        drain(5)(world)


def test_a_lost_identity_is_named(world: World, store: MemoryStore) -> None:
    store.delete([world.layout.identity])
    (finding,) = verify(store, world.layout)
    assert (finding.severity, finding.path) == ("error", world.layout.identity)


def test_a_lost_claim_is_an_error_and_a_damaged_one_a_warning(world: World, store: MemoryStore) -> None:
    (path,) = (entry.path for entry in store.list(world.layout.epochs))
    whole = store.read(path)
    store.put(path, b"rubbish")
    assert findings(world) == [("warning", path)]
    store.delete([path])
    assert findings(world) == [("error", path)]
    store.put(path, whole)
    assert findings(world) == []


def test_a_run_that_begins_during_the_verification_is_no_finding(world: World, store: MemoryStore) -> None:
    def claims(call: Call) -> None:
        if call.verb == "list" and call.path == world.layout.log:
            store.before = None
            world.batch(world.claim("beside"))

    store.before = claims
    assert [f for f in findings(world) if f[0] == "error"] == []


def test_a_record_from_the_grave_is_a_warning(world: World, store: MemoryStore) -> None:
    drain(9)(world)
    zombie = record(3, job=uuid(world), writer="zombie", previous=None)
    store.create(world.layout.pending(3), encode(zombie))
    (finding,) = verify(store, world.layout)
    assert (finding.severity, finding.slot) == ("warning", 3)
    assert "void" in finding.text


def uuid(world: World) -> str:
    identity = world.log().identity
    assert identity is not None
    return identity.uuid


def test_a_pin_of_nothing_is_a_warning_and_an_unreadable_one_an_error(
    world: World, store: MemoryStore
) -> None:
    store.put(world.layout.pin("p"), encode(Pin(id="p", slot=77, kind="reader", owner=world.owner())))
    assert findings(world) == [("warning", world.layout.pin("p"))]
    store.put(world.layout.pin("q"), b"rubbish")
    (found,) = verify(store, world.layout)
    assert (found.severity, found.path) == ("error", world.layout.pin("q"))
    assert "`stateflow gc orders --release q --yes`" in found.text


def test_damaged_lines_of_the_history_are_a_warning(world: World, store: MemoryStore) -> None:
    drain(9)(world)
    (path,) = (entry.path for entry in store.list(world.layout.statistics))
    body = store.read(path)
    store.put(path, body.replace(b'"run":"', b'"run":"\xf5', 1))
    assert findings(world) == [("warning", path)]


@pytest.mark.parametrize("lost", ["_pending", "_metadata"])
def test_a_tag_whose_checkpoint_was_damaged_is_an_error_and_nobody_is_told_to_delete_it(
    lost: str, world: World, store: MemoryStore
) -> None:
    slot = world.log().checkpoints[-1].slot
    world.tag(slot, "v1")
    drain(9)(world)
    store.delete([f"{world.layout.slot(slot)}{lost}"])
    (finding,) = verify(store, world.layout)
    assert (finding.severity, finding.slot) == ("error", slot)
    assert "which tag v1 of job 'orders' keeps" in finding.text
    assert "gc" not in finding.text


def test_a_reader_that_ends_during_the_verification_is_no_finding(world: World, store: MemoryStore) -> None:
    world.tag(world.log().checkpoints[0].slot, "reading")
    drain(9)(world)

    def ends(call: Call) -> None:
        if call.verb == "list" and call.path == world.layout.log:
            store.before = None
            world.untag("reading")
            world.collect(2)

    store.before = ends
    assert findings(world) == []


def test_a_record_collected_during_the_verification_is_no_finding(world: World, store: MemoryStore) -> None:
    writer = world.claim(retained=1)

    def collects(call: Call) -> None:
        if call.verb == "list" and call.path == world.layout.shared:
            store.before = None
            writer.collect(1, orphans=True)

    store.before = collects
    assert [f for f in findings(world, deep=True) if f[0] == "error"] == []


@pytest.mark.parametrize("url", ["s3://a b/x", "https://example.org/x", "x://y", "s3://127.0.0.1/x"])
def test_a_savepoint_that_cannot_be_opened_is_a_finding_and_the_check_goes_on(
    world: World, store: MemoryStore, url: str
) -> None:
    """A record in the root may hold any URL: the nightly check of the job says so, and checks the rest."""
    head = world.log().head
    assert head is not None
    ref = state_files(head)[0]
    path = world.layout.pending(head.slot)
    text = store.read(path).partition(b"\n")[2]
    record = msgspec.json.decode(text, type=Record)
    source = SourceState(("{}",), (msgspec.structs.replace(ref, base=url),))
    store.put(path, encode(msgspec.structs.replace(record, sources={**record.sources, "more": source})))
    store.delete([ref.path])

    def opened(base: str) -> Store:
        return open_recorded(
            base, {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "max_retries": "0"}, root=store.url
        )

    found = verify(store, world.layout, open_base=opened)
    assert len(found) == 2
    assert {f.severity for f in found} == {"error"}
    assert [f.path for f in found] == [ref.path, url]
    assert url in found[1].text


def test_every_finding_is_one_sentence(world: World, store: MemoryStore) -> None:
    store.delete([state_path(world)])
    store.put(world.layout.pin("q"), b"rubbish")
    for finding in verify(store, world.layout):
        assert isinstance(finding, Finding)
        assert "\n" not in str(finding)
        assert not str(finding).endswith(".")


@pytest.mark.parametrize("left", [1, 3, 9])
def test_a_job_whose_deletion_broke_off_is_told_as_one_and_how_to_finish_it(
    world: World, store: MemoryStore, left: int
) -> None:
    def delete() -> None:
        delete_job(
            store, world.layout, owner=world.owner(), ids=world.ids, clock=world.clock,
            dispose=lambda url, job: None,  # type: ignore[arg-type, misc]
        )  # fmt: skip

    files, gone = len(store.list("")), 0

    def die(call: Call) -> None:
        nonlocal gone
        gone += call.verb == "delete"
        if gone > files - left:
            raise CrashError

    store.before = die
    with pytest.raises(CrashError):
        delete()
    store.before = None
    [found] = verify(store, world.layout)
    assert "half deleted" in found.text
    with refused(NotFoundError, "half deleted", "stateflow delete orders --yes"):
        head_of(world.log())
    delete()
    assert [entry.path for entry in store.list("")] == [world.layout.tombstone]

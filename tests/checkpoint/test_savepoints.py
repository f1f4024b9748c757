"""Savepoints from outside: reading, listing, checking, claiming, disposing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint import records
from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.local import LocalStore
from stateflow.checkpoint.memory_store import Call, MemoryStore
from stateflow.checkpoint.pins import pin, release
from stateflow.checkpoint.records import Owner, Savepoint, SavepointClaim, TableFile, encode
from stateflow.checkpoint.retention import references
from stateflow.checkpoint.savepoints import (
    claim_savepoint,
    dispose_claimed,
    dispose_savepoint,
    expired,
    list_savepoints,
    read_claim,
    read_savepoint,
    resolved,
    to_pin,
    verify_savepoint,
)
from stateflow.checkpoint.store import Store
from stateflow.checkpoint.verification import verify
from stateflow.errors import (
    CorruptError,
    IncompatibleError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from tests.checkpoint.snapshots import SOMEBODY, checkpoint, clock, native, objects, stored
from tests.protocol.facts import complete, log, pending, record
from tests.protocol.facts import file as named_file
from tests.protocol.scenario import World, drain
from tests.servers import ObjectServer

JOB, OTHER = "22222222-orders", "33333333-fraud"


@pytest.fixture
def saved(tmp_path: Path) -> MemoryStore:
    """A savepoint's folder."""
    root, target = MemoryStore("root"), MemoryStore("saved")
    native(root, checkpoint(root), target, tmp_path / "scratch")
    return target


def claim(store: Store, job: str = JOB, name: str = "orders", run: str = "first run") -> Savepoint:
    return claim_savepoint(store, job=job, name=name, owner=Owner(run=run), clock=clock)


def dispose(store: Store, by_job: str = "") -> int:
    return dispose_savepoint(store, owner=SOMEBODY, clock=clock, by_job=by_job)


class TestReading:
    def test_where_there_is_none_it_is_not_found(self) -> None:
        with pytest.raises(
            NotFoundError, match="there is no savepoint in memory://empty: it has no _metadata"
        ):
            read_savepoint(MemoryStore("empty"))

    def test_damage_and_newer_formats_are_named(
        self, saved: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = read_savepoint(saved)
        with monkeypatch.context() as patch:
            patch.setattr(records, "FORMAT", 2)
            newer = encode(made)
        saved.put("_metadata", newer)
        with pytest.raises(IncompatibleError, match=r"memory://saved/_metadata was written in format 2"):
            read_savepoint(saved)
        saved.put("_metadata", b"rubbish")
        with pytest.raises(CorruptError, match="memory://saved/_metadata is not a stateflow record"):
            read_savepoint(saved)

    def test_a_checkpoint_is_no_savepoint(self) -> None:
        world = World(MemoryStore())
        drain(1)(world)
        folder = world.layout.slot(world.log().chain[-1].slot)
        store = MemoryStore("chk", {"_metadata": world.store.read(f"{folder}_metadata")})
        for call in (lambda: read_savepoint(store), lambda: dispose(store), lambda: claim(store)):
            with pytest.raises(CorruptError, match="does not have the fields of a Savepoint"):
                call()
        assert list(objects(store)) == ["_metadata"]

    def test_resolved_its_files_are_found_from_anywhere(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        taken = resolved(made, "s3://bucket/saved/")
        assert [(r.base, r.path) for r in references(taken)] == [
            ("s3://bucket/saved" if r.path else "", r.path) for r in references(made.record)
        ]

    def test_it_expires_at_a_moment_or_never(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        assert not expired(made, 10**18)
        passing = msgspec.structs.replace(made, expires=100)
        assert [expired(passing, now) for now in (99, 100, 101)] == [False, True, True]


class TestListing:
    @pytest.fixture(params=["local", "memory", "s3"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        if request.param == "local":
            return LocalStore(tmp_path / "root")
        if request.param == "memory":
            return MemoryStore("root")
        server: ObjectServer = request.getfixturevalue("s3")
        from stateflow.checkpoint.roots import open_store

        return open_store(server.new_root("root"), server.options)

    def fill(self, root: Store, saved: MemoryStore) -> None:
        """Sound: orders/a, fraud/b. Damaged: orders/d. Half: orders/h. Going: orders/g. Claimed: orders/c."""
        body = saved.read("_metadata")
        for path, content in {
            "orders/job": b"",
            "_savepoints/orders/a/_metadata": body,
            "_savepoints/orders/a/state/x-000001.sst": b"x",
            "_savepoints/fraud/b/_metadata": body,
            "_savepoints/orders/d/_metadata": body[:-7],
            "_savepoints/orders/h/state/x-000001.sst": b"x",
            "_savepoints/orders/g/_claimed": encode(SavepointClaim(job="", owner=SOMEBODY)),
            "_savepoints/orders/c/_metadata": body,
            "_savepoints/orders/c/_claimed": encode(SavepointClaim(job=JOB, name="orders", owner=SOMEBODY)),
            "_savepoints/orders/.hidden/_metadata": body,
        }.items():
            root.put(path, content)

    def test_a_root_without_any(self, root: Store) -> None:
        assert list_savepoints(root) == []
        assert list_savepoints(root, "orders") == []

    def test_the_whole_the_damaged_and_those_that_go_but_not_the_unfinished(
        self, root: Store, saved: MemoryStore
    ) -> None:
        self.fill(root, saved)
        found = dict(list_savepoints(root))
        assert list(found) == [
            f"_savepoints/{each}" for each in ("fraud/b", "orders/a", "orders/c", "orders/d", "orders/g")
        ]
        whole = [path for path, listed in found.items() if listed.savepoint == read_savepoint(saved)]
        assert whole == [f"_savepoints/{each}" for each in ("fraud/b", "orders/a", "orders/c")]
        claimed = found["_savepoints/orders/c"].claim
        assert claimed is not None
        assert claimed.name == "orders"
        assert found["_savepoints/orders/a"].claim is None
        damaged = found["_savepoints/orders/d"]
        assert "_savepoints/orders/d/_metadata is truncated" in damaged.problem
        going = found["_savepoints/orders/g"]
        assert (going.savepoint, going.problem) == (None, "it is being disposed of")
        assert [path for path, _ in list_savepoints(root, "fraud")] == ["_savepoints/fraud/b"]

    def test_no_state_file_is_listed_for_it(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)
        root.calls.clear()
        list_savepoints(root, "orders")
        listed = {c.path for c in root.calls if c.verb == "list"}
        assert listed == {
            "_savepoints/orders/",
            *(f"_savepoints/orders/{name}/_" for name in ("a", "c", "d", "g", "h")),
        }

    def test_one_that_goes_while_it_is_looked_at_is_left_out(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)

        def going(call: Call) -> None:
            if call.verb == "read" and "orders/a/" in call.path:
                root.before = None
                root.delete(["_savepoints/orders/a/_metadata"])

        root.before = going
        assert "_savepoints/orders/a" not in dict(list_savepoints(root))

    def test_a_store_out_of_reach_is_no_empty_list(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)

        def refuse(call: Call) -> None:
            if call.verb == "read":
                raise UnavailableError("no route")

        root.before = refuse
        with pytest.raises(UnavailableError, match="no route"):
            list_savepoints(root)


class TestVerifying:
    def texts(self, store: Store, *, deep: bool = False) -> list[tuple[str, str]]:
        return [(f.severity, f.text) for f in verify_savepoint(store, deep=deep)]

    def test_a_sound_one_has_no_findings(self, saved: MemoryStore) -> None:
        assert self.texts(saved, deep=True) == []
        with pytest.raises(NotFoundError):
            verify_savepoint(MemoryStore(), deep=False)

    def test_a_missing_a_truncated_and_a_changed_file(self, saved: MemoryStore) -> None:
        first, second, third = [path for path in objects(saved) if path.endswith(".sst")]
        saved.delete([first])
        saved.put(second, b"short")
        body = saved.read(third)
        saved.put(third, bytes([body[0] ^ 1]) + body[1:])
        shallow = self.texts(saved)
        assert [severity for severity, _ in shallow] == ["error"] * 2
        assert f"memory://saved/{first} is missing: restore it from a copy" in shallow[0][1]
        assert f"memory://saved/{second} has 5 bytes instead of 20" in shallow[1][1]
        deep = self.texts(saved, deep=True)
        assert len(deep) == 3
        assert f"memory://saved/{third} does not have the checksum" in deep[2][1]

    @pytest.mark.parametrize("damage", ["truncated", "flipped"])
    def test_a_damaged_container(self, damage: str, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("saved")
        native(root, checkpoint(root), target, tmp_path, max_files=1)
        (path,) = [path for path in objects(target) if path.endswith(".pack")]
        body = target.read(path)
        assert self.texts(target, deep=True) == []
        target.put(path, body[:-1] if damage == "truncated" else body[:-1] + b"X")
        assert len(self.texts(target)) == (1 if damage == "truncated" else 0)
        assert len(self.texts(target, deep=True)) == 1

    def test_bytes_kept_in_the_metadata_are_checked_too(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        shard = made.record.operators["balance"].shards[0][0]
        files = tuple(msgspec.structs.replace(f, data=b"X") if f.data else f for f in shard.files)
        operator = msgspec.structs.replace(
            made.record.operators["balance"], shards=((msgspec.structs.replace(shard, files=files),),)
        )
        changed = msgspec.structs.replace(made.record, operators={"balance": operator})
        saved.put("_metadata", encode(msgspec.structs.replace(made, record=changed)))
        ((severity, text),) = self.texts(saved)
        assert severity == "error"
        assert text.startswith("CURRENT (kept inside memory://saved) does not have the checksum")

    def test_damaged_metadata_is_a_finding(self, saved: MemoryStore) -> None:
        saved.put("_metadata", b"rubbish")
        ((severity, text),) = self.texts(saved)
        assert (severity, "_metadata is not a stateflow record" in text) == ("error", True)

    def test_tables_are_files_like_others(self, saved: MemoryStore) -> None:
        ref = stored(saved, "tables/balance/total/g00000-x.parquet", b"rows")
        file = TableFile(path=ref.path, size=ref.size, xxh3=ref.xxh3, rows=1)
        made = msgspec.structs.replace(
            read_savepoint(saved), kind="canonical", tables={"balance": {"total": (file,)}}
        )
        saved.put("_metadata", encode(made))
        assert self.texts(saved, deep=True) == []
        saved.put(ref.path, b"rowz")
        assert self.texts(saved) == []
        assert len(self.texts(saved, deep=True)) == 1
        assert dispose(saved) > 0
        assert objects(saved) == {}

    def test_what_a_failed_attempt_left_is_a_warning_and_a_disposal_an_error(
        self, saved: MemoryStore
    ) -> None:
        saved.put("state/crashed-000001.sst", b"orphan")
        saved.put("state/README", b"somebody else's")
        ((severity, text),) = self.texts(saved)
        assert (severity, "crashed-000001.sst (6 bytes) is no part of" in text) == ("warning", True)
        saved.put("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY)))
        assert [s for s, _ in self.texts(saved)] == ["warning", "error"]

    def test_every_finding_is_one_sentence(self, saved: MemoryStore) -> None:
        saved.put("state/crashed-000001.sst", b"orphan")
        saved.delete([path for path in objects(saved) if path.endswith(".sst") and "crashed" not in path])
        found = self.texts(saved)
        assert len(found) > 2
        assert not [text for _, text in found if "\n" in text or text.endswith(".")]


class TestClaiming:
    def test_a_claim_says_whose_it_is_for_good(self, saved: MemoryStore) -> None:
        assert claim(saved) == read_savepoint(saved)
        standing = read_claim(saved)
        assert standing is not None
        assert (standing.job, standing.name, standing.url) == (JOB, "orders", saved.url)
        before = saved.snapshot()
        claim(saved)
        assert saved.snapshot() == before

    def test_another_job_is_refused_and_told_whose_it_is(self, saved: MemoryStore) -> None:
        claim(saved)
        before = saved.snapshot()
        with pytest.raises(UsageError, match=r"was claimed by job 'orders'.*no-claim"):
            claim(saved, OTHER, "fraud")
        assert saved.snapshot() == before

    def test_nothing_is_claimed_where_nothing_is(self) -> None:
        store = MemoryStore("empty")
        with pytest.raises(NotFoundError, match="there is no savepoint"):
            claim(store)
        assert objects(store) == {}

    def test_one_that_is_being_disposed_of_is_gone(self, saved: MemoryStore) -> None:
        saved.create("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY)))
        with pytest.raises(NotFoundError, match="is being disposed of"):
            claim(saved)

    def test_one_that_lacks_a_file_is_not_claimed(self, saved: MemoryStore) -> None:
        lost = next(path for path in objects(saved) if path.endswith(".sst"))
        saved.delete([lost])
        before = saved.snapshot()
        with pytest.raises(CorruptError, match=f"{lost} is missing"):
            claim(saved)
        assert saved.snapshot() == before

    def test_under_another_url_it_would_be_two_savepoints_to_the_collector(self, saved: MemoryStore) -> None:
        claim(saved)
        elsewhere = MemoryStore("same-by-another-name", saved.snapshot())
        with pytest.raises(
            UsageError, match="was claimed by this job as memory://saved: restore from that URL"
        ):
            claim(elsewhere)

    @pytest.mark.parametrize("lost", ["_metadata", ".sst"])
    def test_a_claim_that_another_run_of_the_job_has_made_is_not_taken_back(
        self, lost: str, saved: MemoryStore
    ) -> None:
        claim(saved)
        body = saved.read("_claimed")

        def losing(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                saved.delete([path for path in objects(saved) if path.endswith(lost)])

        saved.before = losing
        with pytest.raises((NotFoundError, CorruptError)):
            claim(saved, run="second run")
        assert saved.read("_claimed") == body

    def test_a_savepoint_that_was_disposed_of_meanwhile_leaves_no_claim(
        self, saved: MemoryStore, tmp_path: Path
    ) -> None:
        root = MemoryStore("root")

        def disposal(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                dispose(saved)

        saved.before = disposal
        with pytest.raises(NotFoundError, match="was disposed of meanwhile"):
            claim(saved)
        assert objects(saved) == {}

        native(root, checkpoint(root), saved, tmp_path)

        def replaced(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                dispose(saved)
                native(root, checkpoint(root), saved, tmp_path)

        saved.before = replaced
        with pytest.raises(NotFoundError, match="was disposed of meanwhile"):
            claim(saved)
        assert "_claimed" not in objects(saved)
        assert verify_savepoint(saved, deep=True) == []


class TestDisposing:
    def test_nothing_is_left_and_the_bytes_are_told(self, saved: MemoryStore) -> None:
        size = sum(objects(saved).values())
        saved.put("state/crashed-000001.sst", b"orphan")
        freed = dispose(saved)
        assert freed > size + 6
        assert objects(saved) == {}
        with pytest.raises(NotFoundError, match="there is no savepoint in memory://saved"):
            dispose(saved)

    def test_on_a_disk_the_folder_goes_too_unless_something_else_is_in_it(self, tmp_path: Path) -> None:
        root, target = LocalStore(tmp_path / "root"), LocalStore(tmp_path / "saved")
        native(root, checkpoint(root), target, tmp_path / "scratch")
        dispose(target)
        assert not (tmp_path / "saved").exists()
        native(root, checkpoint(root), target, tmp_path / "scratch")
        (tmp_path / "saved/notes.txt").write_text("mine")
        (tmp_path / "saved/state/mine.sst").write_text("mine")
        dispose(target)
        left = sorted(str(p.relative_to(tmp_path / "saved")) for p in (tmp_path / "saved").rglob("*"))
        assert left == ["notes.txt", "state", "state/mine.sst"]

    def test_a_folder_that_is_none_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state/photo.jpg").write_bytes(b"x")
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables/accounts.parquet").write_bytes(b"x")
        with pytest.raises(NotFoundError, match="there is no savepoint"):
            dispose(LocalStore(tmp_path))
        assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2

    @pytest.mark.parametrize("body", [b"rubbish", b"stateflow 99 abc 3\n{}\n\n"])
    def test_what_cannot_be_read_is_not_deleted(self, body: bytes, saved: MemoryStore) -> None:
        saved.put("_metadata", body)
        before = saved.snapshot()
        with pytest.raises((CorruptError, IncompatibleError)):
            dispose(saved)
        assert saved.snapshot() == before

    def test_what_an_attempt_that_died_has_left_can_be_disposed_of(self) -> None:
        store = MemoryStore("saved", {"state/a1-000001.sst": b"12345", "state/a1-000002.pack": b"1"})
        assert dispose(store) > 6
        assert objects(store) == {}

    def test_a_claimed_one_is_its_job_s_to_dispose_of(self, saved: MemoryStore) -> None:
        claim(saved)
        before = saved.snapshot()
        with pytest.raises(UsageError, match="was claimed by job 'orders'"):
            dispose(saved)
        with pytest.raises(UsageError, match="was claimed by job 'orders'"):
            dispose(saved, OTHER)
        assert saved.snapshot() == before
        assert dispose(saved, JOB) > 0
        assert objects(saved) == {}

    def test_a_job_disposes_of_nothing_that_it_has_not_claimed(self, saved: MemoryStore) -> None:
        before = saved.snapshot()
        with pytest.raises(NotFoundError, match="no job has claimed"):
            dispose(saved, JOB)
        assert saved.snapshot() == before

    def test_its_metadata_goes_first_and_its_claim_last(self, saved: MemoryStore) -> None:
        saved.calls.clear()
        dispose(saved)
        deleted = [c.path for c in saved.calls if c.verb == "delete"]
        assert deleted[0] == "_metadata"
        assert deleted[-1] == "_claimed"
        assert len(deleted) == 6

    def test_by_several_at_once_at_any_moment_each_finishes(self, saved: MemoryStore) -> None:
        whole = saved.snapshot()
        alone = MemoryStore("saved", whole)
        dispose(alone)
        for at in range(len(alone.calls)):
            store = MemoryStore("saved", whole)

            def other(call: Call, at: int = at, store: MemoryStore = store) -> None:
                if call.number == at:
                    store.before = None
                    dispose(store)

            store.before = other
            try:
                dispose(store)
            except NotFoundError:
                assert at <= 3  # it had found nothing yet
            assert objects(store) == {}, at

    @pytest.mark.parametrize("claimed", [False, True])
    def test_one_that_wakes_up_late_does_not_touch_a_later_savepoint(
        self, claimed: bool, saved: MemoryStore, tmp_path: Path
    ) -> None:
        """Between any two calls another disposal ends, and a new savepoint is made in the folder.

        No store deletes on a condition, so the deletion of a name must come right after the look that allows it.
        """
        whole = saved.snapshot()
        alone = MemoryStore("saved", whole)
        dispose(alone)
        harmless = 0
        for at, call in enumerate(alone.calls):
            unguarded = call.verb == "delete" and call.path in ("_metadata", "_claimed")
            store, root = MemoryStore("saved", whole), MemoryStore("root")
            record = checkpoint(root)

            def others(
                call: Call,
                at: int = at,
                store: MemoryStore = store,
                root: MemoryStore = root,
                record: records.Record = record,
            ) -> None:
                if call.number == at:
                    store.before = None
                    dispose(store)
                    native(root, record, store, tmp_path)
                    if claimed:
                        claim(store)

            store.before = others
            try:
                dispose(store)
            except (NotFoundError, UsageError):
                pass
            else:
                if at <= 3:  # it had not begun, and disposed of the new one, as it was asked to
                    assert objects(store) == {}
                    continue
            if not unguarded:
                assert verify_savepoint(store, deep=True) == [], (at, call)
                assert ("_claimed" in objects(store)) == claimed
                harmless += 1
        assert harmless > 10


class TestClaimAgainstDisposal:
    """At every call of the one, the other begins and ends: one of them has it."""

    def interrupted(
        self, whole: Mapping[str, bytes], first: Callable[[Store], object], second: Callable[[Store], object]
    ) -> list[tuple[object, object, MemoryStore]]:
        alone = MemoryStore("saved", whole)
        first(alone)
        found = []
        for at in range(len(alone.calls)):
            store = MemoryStore("saved", whole)
            between: list[object] = []

            def hook(
                call: Call, at: int = at, store: MemoryStore = store, between: list[object] = between
            ) -> None:
                if call.number == at:
                    store.before = None
                    between.append(outcome(second, store))

            store.before = hook
            end = outcome(first, store)
            found.append((end, between[0], store))
        return found

    def test_two_claims_have_one_winner(self, saved: MemoryStore) -> None:
        for mine, theirs, store in self.interrupted(
            saved.snapshot(), claim, lambda store: claim(store, OTHER, "fraud")
        ):
            assert isinstance(mine, Savepoint) != isinstance(theirs, Savepoint)
            standing = read_claim(store)
            assert standing is not None
            assert standing.job == (JOB if isinstance(mine, Savepoint) else OTHER)
            assert verify_savepoint(store, deep=True) == []

    @pytest.mark.parametrize("first", ["claim", "disposal"])
    def test_a_claim_and_a_disposal_have_one_winner(self, first: str, saved: MemoryStore) -> None:
        acts = (claim, dispose) if first == "claim" else (dispose, claim)
        winners = set()
        for one, other, store in self.interrupted(saved.snapshot(), *acts):
            claimed, disposed = (one, other) if first == "claim" else (other, one)
            assert isinstance(claimed, Savepoint) != isinstance(disposed, int)
            if isinstance(claimed, Savepoint):
                assert verify_savepoint(store, deep=True) == []
                assert read_claim(store) is not None
            else:
                assert objects(store) == {}
            winners.add(type(claimed))
        assert len(winners) > 1


def outcome(act: Callable[[Store], object], store: Store) -> object:
    try:
        return act(store)
    except StateflowError as error:
        return error


class TestDisposalByCollection:
    """A savepoint that a job has claimed goes when the last record that names it does, and not before."""

    @pytest.fixture
    def world(self, saved: MemoryStore) -> World:
        world = World(MemoryStore())
        drain(2, retained=2)(world)
        self.restore(world, saved)
        return world

    def restore(self, world: World, saved: MemoryStore) -> None:
        """Claims the savepoint and goes on from its files."""
        writer = world.claim("restore")
        taken = resolved(claim(saved, writer.job), saved.url)
        draft = world.rewind(world.log().chain[-2])
        shard = taken.operators["balance"].shards[0][0]
        operator = draft.operators["count"]
        operators = {"count": msgspec.structs.replace(operator, shards=((shard,),))}
        permit = writer.decide(msgspec.structs.replace(draft, operators=operators))
        writer.complete(permit, {})

    def dispose_of(self, world: World, saved: MemoryStore, url: str) -> Callable[[str], None]:
        identity = world.log().identity
        assert identity is not None

        def opened(base: str, options: Mapping[str, str]) -> Store:
            assert (base, options) == (url, {"key": "value"})
            return saved

        return dispose_claimed(
            {"key": "value"}, job=identity.uuid, owner=SOMEBODY, clock=clock, open_base=opened
        )

    def collect(self, world: World, saved: MemoryStore) -> None:
        collect(
            world.store,
            world.layout,
            collector=world.ids(),
            retained=1,
            orphans=True,
            dispose=self.dispose_of(world, saved, saved.url),
        )

    def test_it_stays_while_a_record_or_a_tag_names_it_and_goes_after(
        self, world: World, saved: MemoryStore
    ) -> None:
        whole = saved.snapshot()
        self.collect(world, saved)
        assert saved.snapshot() == whole
        restored = world.log().chain[-1].slot
        tag = world.tag(restored, "before")
        world.kept_files = 1
        writer = world.claim("run", retained=1)
        for _ in range(3):
            world.batch(writer)
        self.collect(world, saved)
        assert saved.snapshot() == whole
        release(world.store, world.layout, tag.id)
        self.collect(world, saved)
        assert objects(saved) == {}
        assert restored not in [r.slot for r in world.log().chain]

    def test_what_was_made_in_its_place_since_is_left_alone(
        self, world: World, saved: MemoryStore, tmp_path: Path
    ) -> None:
        act = self.dispose_of(world, saved, saved.url)
        root = MemoryStore("root")
        saved.restore({})
        act(saved.url)
        native(root, checkpoint(root), saved, tmp_path)
        act(saved.url)
        assert verify_savepoint(saved, deep=True) == []
        claim(saved, OTHER, "fraud")
        act(saved.url)
        assert verify_savepoint(saved, deep=True) == []

    def test_a_verification_looks_into_it(self, world: World, saved: MemoryStore) -> None:
        def found(*, deep: bool = False) -> list[str]:
            findings = verify(world.store, world.layout, deep=deep, open_base=lambda url: saved)
            return [f.text for f in findings if f.severity == "error"]

        assert found(deep=True) == []
        path = next(p for p in objects(saved) if p.endswith("1.sst"))
        body = saved.read(path)
        saved.put(path, bytes([body[0] ^ 1]) + body[1:])
        assert found() == []
        (text,) = found(deep=True)
        slot = world.log().chain[-1].slot
        assert text.startswith(f"memory://saved/{path}, needed by record {slot}, does not have the checksum")
        saved.delete([path])
        (text,) = found()
        assert f"memory://saved/{path}, needed by record {slot}, is missing" in text
        saved.put(path, body)
        for body, words in (
            (None, "has lost its _claimed"),
            (encode(SavepointClaim(job=OTHER, name="fraud", owner=SOMEBODY)), "is claimed by 'fraud'"),
            (encode(SavepointClaim(job="", owner=SOMEBODY)), "is being disposed of"),
            (b"rubbish", "has lost its _claimed"),
        ):
            saved.delete(["_claimed"])
            if body is not None:
                saved.put("_claimed", body)
            (text,) = found()
            assert f"the savepoint memory://saved, whose files the job uses, {words}" in text

    def test_restored_again_while_the_collector_disposes_of_it_one_of_them_gives_way(
        self, world: World, saved: MemoryStore
    ) -> None:
        """At every store call of the collection, the job restores once more from what it had claimed."""
        world.kept_files = 1
        writer = world.claim("run", retained=1)
        for _ in range(3):
            world.batch(writer)
        job, claimed = world.store, saved.snapshot()
        assert isinstance(job, MemoryStore)
        before = job.snapshot()
        log_calls, save_calls = self.count(world, before, claimed)
        seen = set()
        for on_job, total in ((True, log_calls), (False, save_calls)):
            for at in range(total):
                again, target = self.branch(world, before, claimed)
                hooked = again.store if on_job else target
                assert isinstance(hooked, MemoryStore)
                outcomes: list[object] = []

                def restore(
                    call: Call,
                    at: int = at,
                    again: World = again,
                    target: MemoryStore = target,
                    hooked: MemoryStore = hooked,
                    outcomes: list[object] = outcomes,
                ) -> None:
                    if call.number == at:
                        hooked.before = None
                        outcomes.append(outcome(lambda _: self.restore_again(again, target), target))

                hooked.before = restore
                self.collect(again, target)
                assert outcomes, (on_job, at)
                seen.add(type(outcomes[0]).__name__)
                if outcomes[0] is None:
                    assert verify_savepoint(target, deep=True) == [], (on_job, at)
                    found = verify(again.store, again.layout, deep=True, open_base=lambda url, t=target: t)  # type: ignore[misc]
                    assert [f.text for f in found if f.severity == "error"] == [], (on_job, at)
        assert seen == {"NoneType", "NotFoundError"}

    def restore_again(self, world: World, saved: MemoryStore) -> None:
        needed = to_pin(world.log(), saved.url)
        made = None
        if needed is not None:
            made = pin(
                world.store,
                world.layout,
                needed.slot,
                kind="reader",
                owner=SOMEBODY,
                ids=world.ids,
                clock=world.clock,
            )
        self.restore(world, saved)
        if made is not None:
            release(world.store, world.layout, made.id)

    def branch(
        self, world: World, job: Mapping[str, bytes], saved: Mapping[str, bytes]
    ) -> tuple[World, MemoryStore]:
        again = World(MemoryStore("test", job))
        again.ticks = world.ticks
        again.sinks = world.sinks
        return again, MemoryStore("saved", saved)

    def count(self, world: World, job: Mapping[str, bytes], saved: Mapping[str, bytes]) -> tuple[int, int]:
        again, target = self.branch(world, job, saved)
        self.collect(again, target)
        assert target.snapshot() == {}
        assert isinstance(again.store, MemoryStore)
        return len(again.store.calls), len(target.calls)


class TestWhatToPin:
    URL = "s3://bucket/saved"

    def naming(self, slot: int, **fields: object) -> records.Record:
        return record(slot, files=(named_file("state/a-000001.sst", base=self.URL),), **fields)  # type: ignore[arg-type]

    def test_the_newest_record_that_names_it(self) -> None:
        facts = log(
            complete(record(1)), complete(self.naming(2)), complete(self.naming(3)), complete(record(4))
        )
        found = to_pin(facts, self.URL + "/")
        assert found is not None
        assert found.slot == 3

    def test_one_that_is_pending_too(self) -> None:
        found = to_pin(log(complete(record(1)), pending(self.naming(2))), self.URL)
        assert found is not None
        assert found.slot == 2

    def test_one_that_a_collector_has_chosen_does_not_count(self) -> None:
        facts = log(
            complete(self.naming(1, floor=1)), complete(self.naming(2), "gc-1"), complete(record(3, floor=3))
        )
        found = to_pin(facts, self.URL)
        assert found is not None
        assert found.slot == 1
        facts = log(complete(self.naming(1), "gc-1"), complete(record(2, floor=2)))
        with pytest.raises(NotFoundError, match="needs it no longer and is disposing of it"):
            to_pin(facts, self.URL)

    def test_none_when_no_record_names_it(self) -> None:
        facts = log(complete(record(1)), complete(record(2, files=(named_file("orders/shared/e1-c1-a"),))))
        assert to_pin(facts, self.URL) is None
        assert to_pin(log(), self.URL) is None

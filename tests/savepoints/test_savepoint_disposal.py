"""Disposing of savepoints: by hand, and by the collector of the job that has claimed them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.deletion import delete_job
from stateflow.checkpoint.pins import pin, release
from stateflow.checkpoint.verification import verify
from stateflow.errors import (
    CorruptError,
    IncompatibleError,
    NotFoundError,
    UsageError,
)
from stateflow.format import records
from stateflow.format.records import Savepoint, SavepointClaim, decode, encode
from stateflow.savepoints.dispose import dispose_claimed, dispose_savepoint, require_free, size_of
from stateflow.savepoints.format import (
    claim_savepoint,
    read_savepoint,
    read_savepoint_claim,
    resolved,
    to_pin,
    unfinished,
    verify_savepoint,
)
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.local import LocalStore
from stateflow.storage.store import TEMP, Store
from tests.fake_hdfs import FakeHdfs
from tests.jobs.files import objects
from tests.jobs.made import made_job
from tests.jobs.snapshots import (
    DEAD,
    JOB,
    OTHER,
    SOMEBODY,
    checkpoint,
    claim,
    clock,
    dispose,
    native,
    outcome,
)
from tests.memory_store import Call, MemoryStore, named_store
from tests.protocol.scenario import World, drain
from tests.refusals.refusal import refused


class TestDisposing:
    def test_nothing_is_left_and_the_bytes_are_told(self, saved: MemoryStore) -> None:
        size = sum(objects(saved).values())
        saved.put(f"state/{DEAD}-000001.sst", b"orphan")
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
        with refused(NotFoundError, "there is no savepoint"):
            dispose(LocalStore(tmp_path))
        assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2

    def test_names_like_those_of_a_savepoint_are_not_enough(self, tmp_path: Path) -> None:
        """A job called `built-...` in a checkpoint root, and files that other programs number."""
        made_job(tmp_path / "root", "built-orders")
        shared = tmp_path / "root/built-orders/shared"
        (shared / f"{TEMP}half").write_bytes(b"of a killed run")
        for path in ("state/orders-20261130.csv", "tables/orders/total/g00000-mine.parquet"):
            (tmp_path / "data" / path).parent.mkdir(parents=True)
            (tmp_path / "data" / path).write_bytes(b"mine")
        for place in ("root", "data"):
            before = {p: p.read_bytes() for p in (tmp_path / place).rglob("*") if p.is_file()}
            assert before
            with refused(NotFoundError, "there is no savepoint", place):
                dispose(LocalStore(tmp_path / place))
            assert {p: p.read_bytes() for p in (tmp_path / place).rglob("*") if p.is_file()} == before

    def test_files_of_others_beside_a_savepoint_stay(self, tmp_path: Path) -> None:
        root, target = LocalStore(tmp_path / "root"), LocalStore(tmp_path / "data")
        native(root, checkpoint(root), target, tmp_path / "scratch")
        target.put("state/orders-20261130.csv", b"mine")
        dispose(target)
        assert [entry.path for entry in target.list("")] == ["state/orders-20261130.csv"]

    @pytest.mark.parametrize("body", [b"rubbish", b"stateflow 99 abc 3\n{}\n\n"])
    def test_what_cannot_be_read_is_not_deleted(self, body: bytes, saved: MemoryStore) -> None:
        saved.put("_metadata", body)
        before = saved.snapshot()
        with pytest.raises((CorruptError, IncompatibleError)):
            dispose(saved)
        assert saved.snapshot() == before

    def test_what_an_attempt_that_died_has_left_can_be_disposed_of(self) -> None:
        store = MemoryStore(
            "saved", {f"state/{DEAD}-000001.sst": b"12345", f"state/{DEAD}-000002.pack": b"1"}
        )
        assert dispose(store) > 6
        assert objects(store) == {}

    def test_a_claimed_one_is_its_job_s_to_dispose_of(self, saved: MemoryStore) -> None:
        claim(saved)
        before = saved.snapshot()
        with refused(UsageError, "was claimed by job 'orders'"):
            dispose(saved)
        with refused(UsageError, "was claimed by job 'orders'"):
            dispose(saved, OTHER)
        assert saved.snapshot() == before
        assert dispose(saved, JOB) > 0
        assert objects(saved) == {}

    def test_a_job_disposes_of_nothing_that_it_has_not_claimed(self, saved: MemoryStore) -> None:
        before = saved.snapshot()
        with refused(NotFoundError, "no job has claimed"):
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
                    with suppress(NotFoundError):  # at its last look all is gone already
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


class TestWhatIsMeant:
    """Who has looked before says what is to go; what has come in its place since stays."""

    def expecting(self, store: Store, expect: str) -> int:
        return dispose_savepoint(store, owner=SOMEBODY, clock=clock, expect=expect)

    def test_the_savepoint_of_that_id_or_what_is_left_of_none(self, saved: MemoryStore) -> None:
        before = saved.snapshot()
        for other in ("", "another"):
            with refused(UsageError, "another savepoint", "memory://saved"):
                self.expecting(saved, other)
        assert saved.snapshot() == before
        assert self.expecting(saved, read_savepoint(saved).id) > 0
        assert objects(saved) == {}
        left = MemoryStore("saved", {f"state/{DEAD}-000001.sst": b"left"})
        with refused(NotFoundError, "there is no savepoint"):
            self.expecting(left, "another")
        assert self.expecting(left, "") > 0
        assert objects(left) == {}

    @pytest.mark.parametrize("claimed_by", [JOB, ""])
    def test_one_that_somebody_has_claimed_since_is_his(self, claimed_by: str, saved: MemoryStore) -> None:
        id = read_savepoint(saved).id
        saved.put(
            "_claimed", encode(SavepointClaim(job=claimed_by, name="orders", owner=SOMEBODY, savepoint=id))
        )
        before = saved.snapshot()
        error = UsageError if claimed_by else NotFoundError
        with refused(error, "claimed by job 'orders'" if claimed_by else "is being disposed of"):
            self.expecting(saved, id)
        assert saved.snapshot() == before

    def test_one_that_comes_while_the_claim_is_made_stays(self, saved: MemoryStore) -> None:
        whole = saved.snapshot()
        target = MemoryStore("saved", {path: body for path, body in whole.items() if path != "_metadata"})

        def made(call: Call) -> None:
            if call.verb == "create":
                target.before = None
                target.create("_metadata", whole["_metadata"])

        target.before = made
        with refused(UsageError, "another savepoint was made"):
            self.expecting(target, "")
        assert target.snapshot() == whole

    def test_a_disposal_that_died_before_it_saw_a_new_one_takes_it_not_along(
        self, saved: MemoryStore
    ) -> None:
        """Its claim stands over a savepoint whose maker has looked before, and was told that it is made."""
        whole = saved.snapshot()
        for meant in ("", "another"):
            saved.put("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY, savepoint=meant)))
            with refused(UsageError, "another savepoint was made"):
                self.expecting(saved, "")
            assert saved.snapshot() == whole
        # What it had begun with goes: its maker has found the claim, or misses the files.
        for meant, lost in (("", 1), (read_savepoint(saved).id, 0)):
            saved.restore(whole)
            saved.put("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY, savepoint=meant)))
            saved.delete([path for path in whole if path.startswith("state/")][:lost])
            self.expecting(saved, "")
            assert objects(saved) == {}

    def test_one_that_wakes_up_after_its_claim_was_taken_back_deletes_no_file(
        self, saved: MemoryStore
    ) -> None:
        """It has deleted a savepoint that it meant; then another maker creates `_metadata`, with files that it has listed."""
        whole = saved.snapshot()
        old = msgspec.structs.replace(decode(whole["_metadata"], Savepoint, "_metadata"), id="old")
        saved.put("_metadata", encode(old))

        def others(call: Call) -> None:
            if call.verb == "read" and call.path == "_claimed" and "_metadata" not in objects(saved):
                saved.before = None
                saved.create("_metadata", whole["_metadata"])
                with refused(UsageError, "another savepoint was made"):
                    self.expecting(saved, "")
                claim(saved)

        saved.before = others
        self.expecting(saved, "old")
        assert saved.before is None
        assert verify_savepoint(saved, deep=True) == []
        standing = read_savepoint_claim(saved)
        assert standing is not None
        assert standing.job == JOB


class TestDeletedJobs:
    """A claim whose job is gone for good stands in nobody's way."""

    @pytest.fixture
    def world(self) -> World:
        world = World(named_store("root-of-trial"))
        world.store.restore({})  # type: ignore[attr-defined]
        drain(1)(world)
        return world

    def delete(self, world: World) -> None:
        delete_job(
            world.store,
            world.layout,
            owner=SOMEBODY,
            ids=world.ids,
            clock=world.clock,
            dispose=lambda url: None,
        )

    def test_what_a_failed_restore_had_claimed_is_disposed_of_when_its_job_is_deleted(
        self, world: World, saved: MemoryStore
    ) -> None:
        identity = world.log().identity
        assert identity is not None
        claim_savepoint(
            saved, job=identity.uuid, name=world.layout.job, owner=SOMEBODY, clock=clock, root=world.store.url
        )
        before = saved.snapshot()
        with refused(UsageError, "deleted", "`stateflow savepoint dispose`"):
            dispose(saved)
        self.delete(world)
        with refused(UsageError, "was claimed by job"):
            dispose_savepoint(saved, owner=SOMEBODY, clock=clock, expect=read_savepoint(saved).id)
        with refused(UsageError, "was claimed by job"):
            claim(saved, OTHER, "fraud")
        assert saved.snapshot() == before
        assert dispose(saved) > 0
        assert objects(saved) == {}

    def test_a_root_whose_service_only_the_savepoint_names_is_looked_into_when_it_is_named(
        self, saved: MemoryStore
    ) -> None:
        """A claim in a savepoint may be a stranger's, so its root in another HDFS is not asked with anybody's credentials."""
        root = HdfsStore("hdfs://nn/root", {"hdfs_user": "me"}, web=FakeHdfs(), pause=lambda _: None)
        world = World(root)
        drain(1)(world)
        identity = world.log().identity
        assert identity is not None
        claim_savepoint(
            saved, job=identity.uuid, name=world.layout.job, owner=SOMEBODY, clock=clock, root=root.url
        )

        def look(now: Store | None) -> None:
            require_free(saved, {}, now)
            dispose_savepoint(saved, owner=SOMEBODY, clock=clock, root=now)

        with refused(UsageError, "was claimed by job", "--checkpoint-dir 'hdfs://nn/root'"):
            look(None)
        with refused(UsageError, "was claimed by job") as error:
            look(root)
        assert "--checkpoint-dir" not in str(error.value)
        self.delete(world)
        with refused(UsageError, "--checkpoint-dir 'hdfs://nn/root'"):
            look(MemoryStore("another"))
        look(root)
        assert objects(saved) == {}

    def test_a_job_of_that_name_or_at_another_place_says_nothing(
        self, world: World, saved: MemoryStore
    ) -> None:
        self.delete(world)
        for job, root in ((JOB, world.store.url), (JOB, "memory://nowhere"), (JOB, "")):
            saved.delete(["_claimed"])
            claim_savepoint(saved, job=job, name=world.layout.job, owner=SOMEBODY, clock=clock, root=root)
            with refused(UsageError, "was claimed by job"):
                dispose(saved)


class TestHalvesOfFiles:
    """What killed processes have left where no listing shows it."""

    def killed(self, store: LocalStore, path: str) -> None:
        """A process that dies while it writes a file."""
        if (child := os.fork()) == 0:

            def pieces() -> Iterator[bytes]:
                yield b"x" * 5000
                os._exit(9)

            store.write(path, pieces)
        os.waitpid(child, 0)

    @pytest.mark.parametrize(
        "path",
        [
            "state/a-000001.sst",
            "tables/balance/total/g00000-a.parquet",
            f"built-{DEAD}/shared/e1-c1-a.sst",
            "_metadata",
        ],
    )
    def test_they_are_found_and_go(self, path: str, tmp_path: Path) -> None:
        root, place = LocalStore(tmp_path), LocalStore(tmp_path / "_savepoints/orders/one")
        self.killed(place, path)
        assert root.list("") == []
        assert unfinished(root, "orders") == ["_savepoints/orders/one"]
        assert size_of(place) >= 5000
        assert dispose(place) >= 5000
        assert not (tmp_path / "_savepoints/orders/one").exists()
        with refused(NotFoundError, "there is no savepoint"):
            dispose(place)

    def test_what_a_process_is_writing_stays(self, tmp_path: Path) -> None:
        place = LocalStore(tmp_path / "_savepoints/orders/one")

        def pieces() -> Iterator[bytes]:
            yield b"x"
            dispose(place)
            yield b"y"

        place.write("state/a-000001.sst", pieces)
        assert place.read("state/a-000001.sst") == b"xy"

    def test_what_an_import_was_built_in_goes_too(self) -> None:
        root = MemoryStore("root", {f"_savepoints/orders/one/built-{DEAD}/shared/e1-c1-ab12-3.sst": b"state"})
        assert unfinished(root, "orders") == ["_savepoints/orders/one"]
        store = MemoryStore(
            "saved",
            {
                f"built-{DEAD}/shared/e1-c1-ab12-3.sst": b"state",
                f"built-{DEAD}/orders-read.log": b"log",
                f"built-{DEAD}/photo.jpg": b"x",
            },
        )
        dispose(store)
        assert list(objects(store)) == [f"built-{DEAD}/photo.jpg"]


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
            (
                encode(SavepointClaim(job=OTHER, name="fraud", owner=SOMEBODY, savepoint="s")),
                "is claimed by 'fraud'",
            ),
            (encode(SavepointClaim(job="", owner=SOMEBODY, savepoint="s")), "is being disposed of"),
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

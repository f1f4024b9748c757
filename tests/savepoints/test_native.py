"""Native savepoints: what is in them, how small files are packed, and what failures and rivals leave."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.errors import CorruptError, NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.layout import is_savepoint_file
from stateflow.format.records import FileRef, PartitionTime, Record, SavepointClaim, encode
from stateflow.format.references import references
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import (
    read_savepoint,
    resolved,
    verify_savepoint,
)
from stateflow.savepoints.native import distinct, grouped
from stateflow.storage.cache import FileCache
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import ExistsError, Store
from tests.jobs.files import objects, stored
from tests.jobs.snapshots import SOMEBODY, checkpoint, clock, native, state
from tests.memory_store import Call, MemoryStore
from tests.refusals.refusal import refused
from tests.servers import AZURE, ObjectServer
from tests.storage.forging import twin
from tests.storage.scratch_folders import in_scratch


def sound(store: Store) -> bool:
    return verify_savepoint(store, deep=True) == []


class TestWhatIsInIt:
    def test_everything_but_the_sinks_and_every_file_once(self, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("target")
        record = checkpoint(root)
        made = native(root, record, target, tmp_path, expires=99)
        assert read_savepoint(target) == made
        assert (made.kind, made.job, made.note, made.expires) == (
            "native",
            "orders",
            "before the upgrade",
            99,
        )
        assert (made.offsets, made.targets) == ({"events": [{"at": 7}]}, {"totals": "t"})
        assert (made.record.slot, made.record.job, made.record.watermark) == (3, record.job, 77)
        assert made.record.sinks == {}
        assert made.record.operators["balance"].hosts == ()
        assert state(made.record, target) == state(record, root)
        assert all(ref.base == "" and ref.offset is None for ref in references(made.record))
        files = [path for path in objects(target) if path != "_metadata"]
        assert len(files) == 4  # three state files named twice, one log
        assert all(is_savepoint_file(path) for path in files)
        assert sorted(p.rpartition(".")[2] for p in files) == ["compact", "sst", "sst", "sst"]
        assert sound(target)

    def test_it_restores_from_wherever_it_is_moved(self, tmp_path: Path) -> None:
        root, target = LocalStore(tmp_path / "root"), LocalStore(tmp_path / "saved/one")
        record = checkpoint(root)
        native(root, record, target, tmp_path / "scratch")
        shutil.move(tmp_path / "saved/one", tmp_path / "elsewhere")
        shutil.rmtree(tmp_path / "root")
        moved = open_store(str(tmp_path / "elsewhere"))
        assert sound(moved)
        taken = resolved(read_savepoint(moved), moved.url)
        assert {ref.base for ref in references(taken) if ref.path} == {f"file://{tmp_path}/elsewhere"}
        assert len(state(taken, open_store)) == 5

    def test_on_one_disk_it_takes_no_space_but_for_its_metadata(self, tmp_path: Path) -> None:
        root, target = LocalStore(tmp_path / "root"), LocalStore(tmp_path / "saved/one")
        record = checkpoint(root, (100_000, 200_000))
        made = native(root, record, target, tmp_path / "scratch")
        for ours, theirs in zip(distinct(made.record), distinct(record), strict=True):
            assert (tmp_path / "saved/one" / ours.path).samefile(tmp_path / "root" / theirs.path)

    def test_files_of_a_savepoint_that_the_job_has_claimed_are_taken_from_there(self, tmp_path: Path) -> None:
        root, claimed, target = MemoryStore("root"), MemoryStore("claimed"), MemoryStore("target")
        whole = stored(claimed, "state/a-000001.sst", b"state0", base=claimed.url)
        claimed.put("state/a-000002.pack", b"onetwo")
        one, two = (
            msgspec.structs.replace(
                stored(claimed, name, name.encode()), name=f"{name}.sst", base=claimed.url
            )
            for name in ("one", "two")
        )
        pack = "state/a-000002.pack"
        parts = [
            msgspec.structs.replace(one, path=pack, offset=0),
            msgspec.structs.replace(two, path=pack, offset=3),
        ]
        record = checkpoint(root, (10,), extra=(whole, *parts))
        opened: list[str] = []

        def open_base(url: str) -> Store:
            opened.append(url)
            return claimed

        made = native(root, record, target, tmp_path, open_base=open_base)
        assert set(opened) == {claimed.url}
        assert sound(target)
        assert state(made.record, target) == state(record, lambda base: claimed if base else root)
        assert len(distinct(made.record)) == 5

    def test_it_has_how_far_each_partition_is(self, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("target")
        known = {"orders/0": PartitionTime(900, 7), "orders/1": PartitionTime(None, 5)}
        record = checkpoint(root)
        events = msgspec.structs.replace(record.sources["events"], partitions=known, looked=90, silent=7)
        native(root, msgspec.structs.replace(record, sources={"events": events}), target, tmp_path)
        copied = read_savepoint(target).record.sources["events"]
        assert (copied.partitions, copied.looked, copied.silent) == (known, 90, 7)

    def test_a_record_without_files_is_a_savepoint_too(self, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("target")
        record = msgspec.structs.replace(checkpoint(root), operators={}, sources={})
        native(root, record, target, tmp_path)
        assert list(objects(target)) == ["_metadata"]
        assert sound(target)

    def test_bytes_are_told_as_they_are_stored(self, tmp_path: Path) -> None:
        root, told = MemoryStore("root"), []
        record = checkpoint(root, (300, 20, 7))
        total = 300 + 20 + 7 + len(b"offsets 1 2 3")
        for max_files in (0, 2):
            told.clear()
            native(
                root,
                record,
                MemoryStore("target"),
                tmp_path,
                max_files=max_files,
                progress=lambda what, done, of: told.append((done, of)),
            )
            assert told[0] == (0, total)
            assert told[-1] == (total, total)
            assert [done for done, _ in told] == sorted(done for done, _ in told)

    def test_a_container_is_no_more_readable_than_the_narrowest_file_in_it(self, tmp_path: Path) -> None:
        root, target = open_store(str(tmp_path / "root")), open_store(str(tmp_path / "saved"))
        record = checkpoint(root, (300, 20, 7))
        some = next(ref for ref in references(record) if ref.size == 20)
        (tmp_path / "root" / some.path).chmod(0o600)
        native(root, record, target, tmp_path / "scratch", max_files=1)
        (container,) = (tmp_path / "saved").rglob("*.pack")
        assert container.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("kind", ["s3", AZURE])
    @pytest.mark.parametrize("max_files", [0, 2])
    def test_in_an_object_store(
        self, kind: str, max_files: int, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        server: ObjectServer = request.getfixturevalue(kind)
        bucket = server.new_root()
        root = open_store(f"{bucket}/root", server.options)
        target = open_store(f"{bucket}/saved/one", server.options)
        record = checkpoint(root, (300, 20, 7, 100_000))
        made = native(root, record, target, tmp_path, max_files=max_files)
        assert sound(target)
        assert state(made.record, target) == state(record, root)
        with refused(UsageError, "there is a savepoint in"):
            native(root, record, target, tmp_path)
        assert sound(target)
        assert dispose_savepoint(target, owner=SOMEBODY, clock=clock) > 100_000
        assert objects(target) == {}


class TestPacking:
    def refs(self, *sizes: int) -> list[FileRef]:
        return [FileRef(f"{n}.sst", size, f"{n:016x}", f"f{n}") for n, size in enumerate(sizes)]

    def sizes(self, *sizes: int, max_files: int, container: int = 100) -> list[list[int]]:
        found = grouped(self.refs(*sizes), max_files, container)
        assert sorted(ref.path for group in found for ref in group) == sorted(
            ref.path for ref in self.refs(*sizes)
        )
        return [[ref.size for ref in group] for group in found]

    def test_unless_asked_for_nothing_is_packed(self) -> None:
        assert self.sizes(3, 2, 1, max_files=0) == [[3], [2], [1]]
        assert self.sizes(3, 2, 1, max_files=3) == [[3], [2], [1]]
        assert self.sizes(max_files=1) == []

    def test_the_smallest_go_together_and_no_more_than_need_be(self) -> None:
        assert self.sizes(90, 1, 50, 2, 60, max_files=4) == [[1, 2], [50], [60], [90]]
        assert self.sizes(90, 1, 50, 2, 60, max_files=3) == [[1, 2, 50], [60], [90]]

    def test_a_container_has_a_bound(self) -> None:
        assert self.sizes(40, 40, 40, 40, 90, max_files=3) == [[40, 40], [40, 40], [90]]
        assert self.sizes(*[30] * 9, max_files=3) == [[30, 30, 30]] * 3

    def test_which_gives_way_to_the_limit(self) -> None:
        assert self.sizes(90, 90, 90, 90, max_files=2) == [[90, 90], [90, 90]]
        assert self.sizes(90, 90, 90, 90, max_files=1) == [[90, 90, 90, 90]]
        assert self.sizes(0, 0, 500, max_files=2) == [[0, 0], [500]]

    def test_never_more_objects_than_asked_for(self) -> None:
        for count in (1, 2, 7, 30):
            for limit in range(1, 32):
                assert len(self.sizes(*[n * 13 % 97 for n in range(count)], max_files=limit)) <= limit

    @pytest.mark.parametrize("place", ["memory", "local"])
    @pytest.mark.parametrize("max_files", [1, 2, 3, 4, 50])
    def test_a_packed_savepoint_holds_the_same(self, max_files: int, place: str, tmp_path: Path) -> None:
        root: Store = MemoryStore("root") if place == "memory" else LocalStore(tmp_path / "root")
        target: Store = MemoryStore("target") if place == "memory" else LocalStore(tmp_path / "target")
        record = checkpoint(root, (300, 20, 7, 4000, 50))
        made = native(root, record, target, tmp_path / "scratch", max_files=max_files)
        assert len(objects(target)) - 1 == min(max_files, 6)
        assert sound(target)
        assert state(made.record, target) == state(record, root)
        assert in_scratch(tmp_path / "scratch") == []
        cache = FileCache(tmp_path / "cache", 1 << 20)
        for ref in references(made.record):
            assert cache.fetch(target, ref).stat().st_size == ref.size

    def test_a_savepoint_of_a_packed_one_can_be_packed_again(self, tmp_path: Path) -> None:
        root, first, second = MemoryStore("root"), MemoryStore("first"), MemoryStore("second")
        record = checkpoint(root, (300, 20, 7, 4000, 50))
        packed = native(root, record, first, tmp_path, max_files=2)
        again = resolved(packed, first.url)
        made = native(root, again, second, tmp_path, max_files=3, open_base=lambda base: first)
        assert len(objects(second)) - 1 == 3
        assert sound(second)
        assert state(made.record, second) == state(record, root)

    def test_damage_is_found_while_packing(self, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("target")
        record = checkpoint(root, (300, 20, 7))
        root.put("orders/shared/e1-c3-3.sst", b"X" * 7)
        with refused(CorruptError, "checkpoint 3 of", "job 'orders'", "is damaged", "e1-c3-3.sst"):
            native(root, record, target, tmp_path, max_files=2)
        assert objects(target) == {}
        assert in_scratch(tmp_path) == []

    @pytest.mark.parametrize("max_files", [0, 1])
    def test_other_bytes_with_the_same_xxh3_are_not_taken_along(self, max_files: int, tmp_path: Path) -> None:
        root, target = LocalStore(tmp_path / "root"), MemoryStore("target")
        ours = b"the balance of this user is 1000"
        record = checkpoint(root, (7,), extra=(stored(root, "orders/shared/e1-c3-9.sst", ours),))
        (tmp_path / "root/orders/shared/e1-c3-9.sst").unlink()
        root.put("orders/shared/e1-c3-9.sst", twin(ours, b"it is 1000000000"))
        with refused(CorruptError, "checkpoint 3 of", "job 'orders'", "is damaged", "e1-c3-9.sst"):
            native(root, record, target, tmp_path / "scratch", max_files=max_files)
        assert objects(target) == {}

    def test_a_negative_number_is_refused(self, tmp_path: Path) -> None:
        root = MemoryStore("root")
        with refused(UsageError, "max_files=-1"):
            native(root, checkpoint(root), MemoryStore("target"), tmp_path, max_files=-1)


class TestFailures:
    """Whatever fails, no savepoint is seen and no file is left."""

    @pytest.fixture
    def root(self) -> MemoryStore:
        return MemoryStore("root")

    @pytest.fixture
    def record(self, root: MemoryStore) -> Record:
        return checkpoint(root)

    def test_a_folder_that_holds_a_savepoint_is_refused_before_anything_is_written(
        self, root: MemoryStore, record: Record, tmp_path: Path
    ) -> None:
        target = MemoryStore("target")
        native(root, record, target, tmp_path)
        before = target.snapshot()
        target.calls.clear()
        with refused(UsageError, "memory://target", "already"):
            native(root, record, target, tmp_path)
        assert target.snapshot() == before
        assert [c.verb for c in target.calls] == ["list"]

    def test_so_is_one_whose_savepoint_is_being_disposed_of(
        self, root: MemoryStore, record: Record, tmp_path: Path
    ) -> None:
        target = MemoryStore("target", {"_claimed": b"whoever"})
        with pytest.raises(UsageError, match="belongs to a job or is being disposed of"):
            native(root, record, target, tmp_path)
        assert objects(target) == {"_claimed": 7}

    @pytest.mark.parametrize("max_files", [0, 1])
    def test_a_missing_file_names_the_checkpoint(
        self, max_files: int, root: MemoryStore, record: Record, tmp_path: Path
    ) -> None:
        root.delete(["orders/shared/e1-c3-2.sst"])
        target = MemoryStore("target")
        with refused(CorruptError, "'one'", "checkpoint 3 of job 'orders'", "e1-c3-2"):
            native(root, record, target, tmp_path, max_files=max_files)
        assert objects(target) == {}

    @pytest.mark.parametrize("max_files", [0, 1, 2])
    def test_a_store_that_refuses_in_the_middle(
        self, max_files: int, root: MemoryStore, record: Record, tmp_path: Path
    ) -> None:
        target = MemoryStore("target")

        def refuse(call: Call) -> None:
            if call.verb == "upload" and sum(c.verb == "upload" for c in target.calls) > (max_files == 0):
                raise UnavailableError("denied")

        target.before = refuse
        with refused(UnavailableError, "denied"):
            native(root, record, target, tmp_path, max_files=max_files)
        assert objects(target) == {}

    def test_one_who_is_interrupted_leaves_nothing(
        self, root: MemoryStore, record: Record, tmp_path: Path
    ) -> None:
        target = MemoryStore("target")

        def interrupt(call: Call) -> None:
            if call.verb == "upload" and objects_of(target) == 2:
                raise KeyboardInterrupt

        target.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            native(root, record, target, tmp_path, threads=1)
        target.before = None
        assert objects(target) == {}

    def test_a_disk_that_refuses_the_metadata_keeps_nothing(
        self, record: Record, root: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = LocalStore(tmp_path / "target")

        def full(*_: Any) -> None:
            raise UnavailableError("the disk is full")

        monkeypatch.setattr(LocalStore, "create", full)
        monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
        with refused(UnavailableError, "the disk is full"):
            native(root, record, target, tmp_path / "scratch")
        assert objects(target) == {}

    def test_when_nobody_knows_whether_it_stands_its_files_stay(
        self, root: MemoryStore, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The request may still arrive: then this is a savepoint, and it is whole.
        target = MemoryStore("target")
        monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
        late: list[bytes] = []

        def silent(call: Call) -> None:
            if call.path == "_metadata":
                late.append(call.body)
                raise UnavailableError("timed out")

        target.before = silent
        with refused(UnavailableError, "whether", "memory://target", "timed out"):
            native(root, record, target, tmp_path)
        target.before = None
        target.create("_metadata", late[0])
        assert sound(target)

    @pytest.mark.parametrize(
        "lie", ["own success as conflict", "lost answer", "conflict with nothing stored"]
    )
    def test_a_create_that_lies_makes_one_savepoint(
        self, lie: str, root: MemoryStore, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
        target = MemoryStore("target")
        lies = [UnavailableError("timed out") if lie == "lost answer" else ExistsError("_metadata")]

        def lying(call: Call) -> None:
            if call.verb == "create" and lies:
                raise lies.pop()

        if lie == "conflict with nothing stored":
            target.before = lying
        else:
            target.after = lying
        made = native(root, record, target, tmp_path)
        assert read_savepoint(target) == made
        assert sound(target)


def objects_of(store: MemoryStore) -> int:
    return len(store.snapshot())


class TestRivals:
    """Two who make a savepoint in one folder, and one who disposes meanwhile."""

    @pytest.fixture
    def root(self) -> MemoryStore:
        return MemoryStore("root")

    def test_whoever_is_first_stands_with_exactly_its_files(self, root: MemoryStore, tmp_path: Path) -> None:
        """At every call of one attempt, another one begins and ends."""
        record, other = checkpoint(root, (30, 20)), checkpoint(root, (30, 20, 9))
        alone = MemoryStore("target")
        native(root, record, alone, tmp_path, threads=1)
        for at in range(len(alone.calls)):
            target = MemoryStore("target")
            outcomes: list[object] = []

            def rival(
                call: Call, at: int = at, target: MemoryStore = target, outcomes: Any = outcomes
            ) -> None:
                if call.number == at:
                    target.before = None
                    outcomes.append(attempted(root, other, target, tmp_path))

            target.before = rival
            outcomes.append(attempted(root, record, target, tmp_path))
            target.before = None
            won = [outcome for outcome in outcomes if not isinstance(outcome, StateflowError)]
            assert len(won) == 1, (at, outcomes)
            assert read_savepoint(target) == won[0]
            assert verify_savepoint(target, deep=True) == [], at  # no file of the other is left either
            lost = [outcome for outcome in outcomes if isinstance(outcome, StateflowError)]
            assert isinstance(lost[0], UsageError)

    def test_disposed_of_at_any_moment_it_is_whole_or_not_there(
        self, root: MemoryStore, tmp_path: Path
    ) -> None:
        record = checkpoint(root, (30, 20))
        alone = MemoryStore("target")
        native(root, record, alone, tmp_path, threads=1)
        for at in range(len(alone.calls)):
            target = MemoryStore("target")

            def disposal(call: Call, at: int = at, target: MemoryStore = target) -> None:
                if call.number == at:
                    target.before = None
                    with suppress(NotFoundError):
                        dispose_savepoint(target, owner=SOMEBODY, clock=clock)

            target.before = disposal
            outcome = attempted(root, record, target, tmp_path)
            target.before = None
            # It may have been disposed of between its create and the last look of whoever made it.
            assert objects(target) == {} or (sound(target) and not isinstance(outcome, StateflowError)), at

    @pytest.mark.parametrize("others", ["take its files", "die while disposing of another"])
    def test_what_became_of_its_folder_is_looked_at_before_it_is_made_visible(
        self, others: str, root: MemoryStore, tmp_path: Path
    ) -> None:
        target = MemoryStore("target")

        def meanwhile(call: Call) -> None:
            if call.verb == "list" and call.path.startswith("state/"):
                target.after = None
                if others == "take its files":
                    target.delete([path for path in objects(target) if path.endswith(".sst")])
                else:
                    claim = SavepointClaim(job="", owner=SOMEBODY, savepoint="s")
                    target.put("_claimed", encode(claim))

        target.after = meanwhile
        with pytest.raises(StateflowError, match=r"were deleted|being disposed of"):
            native(root, checkpoint(root), target, tmp_path)
        assert "create" not in [c.verb for c in target.calls]
        assert list(objects(target)) == ([] if others == "take its files" else ["_claimed"])

    def test_made_and_disposed_of_by_others_at_any_moment_it_is_whole_or_not_there(
        self, root: MemoryStore, tmp_path: Path
    ) -> None:
        record, other = checkpoint(root, (30, 20)), checkpoint(root, (30, 20, 9))
        alone = MemoryStore("target")
        native(root, record, alone, tmp_path, threads=1)
        seen = set()
        for at in range(len(alone.calls)):
            target = MemoryStore("target")

            def others(call: Call, at: int = at, target: MemoryStore = target) -> None:
                if call.number == at:
                    target.before = None
                    made = attempted(root, other, target, tmp_path)
                    if not isinstance(made, StateflowError):
                        dispose_savepoint(target, owner=SOMEBODY, clock=clock)

            target.before = others
            outcome = attempted(root, record, target, tmp_path)
            target.before = None
            seen.add(type(outcome).__name__)
            if isinstance(outcome, StateflowError):
                assert "disposed of" in str(outcome) or "deleted" in str(outcome)
                assert objects(target) == {}, at
            else:
                assert sound(target), at
        assert len(seen) > 1


def attempted(root: Store, record: Record, target: Store, scratch: Path) -> object:
    try:
        return native(root, record, target, scratch, threads=1)
    except StateflowError as error:
        return error

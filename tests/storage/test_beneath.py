"""No path below a root leaves it through a symbolic link, whatever is done there and whenever the link appears."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.deletion import delete_job
from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.references import bases
from stateflow.jobs import savepoints
from stateflow.jobs.job import Job
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import claim_savepoint, unfinished_bytes, verify_savepoint
from stateflow.spark.task.storage import task_storage
from stateflow.storage.beneath import link_regular
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Entry, ExistsError
from stateflow.storage.transfer import Transfer, transfer
from tests.jobs.builder import options_of
from tests.jobs.made import PARAMETERS, made_job, orders_pipeline
from tests.jobs.snapshots import JOB, SOMEBODY, checkpoint, clock, native
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World, drain
from tests.refusals.refusal import refused

CANARY = b"nobody may read or delete this"


class Elsewhere:
    """A folder that no store has any business in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "deep").mkdir(parents=True)
        for name in ("a", ".tmp-dead", "deep/a"):
            (folder / name).write_bytes(CANARY)
        self.before = self._tree()

    def is_untouched(self) -> bool:
        return self._tree() == self.before

    def _tree(self) -> dict[str, bytes | None]:
        found = sorted(self.folder.rglob("*"))
        return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "elsewhere")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "root")
    made.put("job/shared/own", b"own")
    return made


PATH = "job/linked/a"
CALLS: dict[str, Callable[[LocalStore, Path], object]] = {
    "read": lambda store, got: store.read(PATH),
    "read_range": lambda store, got: store.read_range(PATH, 0, 4),
    "open": lambda store, got: store.open(PATH),
    "locate": lambda store, got: store.locate(PATH),
    "download": lambda store, got: store.download(PATH, got),
    "copy from": lambda store, got: store.copy(PATH, "job/shared/b"),
    "take": lambda store, got: LocalStore(got.parent / "other").take(store, PATH, "b"),
}
ONLY_BEHIND_A_FOLDER: dict[str, Callable[[LocalStore, Path], object]] = {
    "create": lambda store, got: store.create(PATH, b"x"),
    "put": lambda store, got: store.put("job/linked/deep/b", b"x"),
    "write": lambda store, got: store.write(PATH, lambda: [b"x"]),
    "upload": lambda store, got: store.upload(Path(__file__), "job/linked/b"),
    "copy to": lambda store, got: store.copy("job/shared/own", "job/linked/b"),
    "delete": lambda store, got: store.delete([PATH]),
    "list": lambda store, got: store.list("job/linked/"),
    "folders": lambda store, got: store.folders("job/linked/"),
    "unfinished": lambda store, got: store.unfinished("job/linked/"),
}


@pytest.mark.parametrize("call", [*CALLS, *ONLY_BEHIND_A_FOLDER])
def test_nothing_is_done_behind_a_linked_folder(
    call: str, store: LocalStore, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    (tmp_path / "root/job/linked").symlink_to(elsewhere.folder)
    with refused(CorruptError, "root/job/linked", "a symbolic link", "put what it points to"):
        {**CALLS, **ONLY_BEHIND_A_FOLDER}[call](store, tmp_path / "got")
    assert elsewhere.is_untouched()
    assert not (tmp_path / "got").exists()
    assert store.list("") == [Entry("job/shared/own", 3)]


@pytest.mark.parametrize("call", CALLS)
def test_a_linked_file_is_not_read(
    call: str, store: LocalStore, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    (tmp_path / "root/job/linked").mkdir()
    (tmp_path / "root" / PATH).symlink_to(elsewhere.folder / "a")
    with pytest.raises(CorruptError, match="job/linked/a is a symbolic link"):
        CALLS[call](store, tmp_path / "got")
    assert elsewhere.is_untouched()
    assert not (tmp_path / "got").exists()
    assert store.list("") == [Entry("job/shared/own", 3)]


def test_a_linked_file_is_taken_and_replaced_by_name_only(
    store: LocalStore, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    for name in ("created", "put", "deleted"):
        (tmp_path / "root/job/shared" / name).symlink_to(elsewhere.folder / "a")
    with pytest.raises(ExistsError):
        store.create("job/shared/created", b"x")
    store.put("job/shared/put", b"new")
    store.delete(["job/shared/deleted"])
    assert store.list("job/shared/") == [Entry("job/shared/own", 3), Entry("job/shared/put", 3)]
    assert not os.path.lexists(tmp_path / "root/job/shared/deleted")
    assert elsewhere.is_untouched()


def test_listing_and_deleting_leave_links_out_at_any_depth(
    store: LocalStore, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    (tmp_path / "root/job/shared/in").symlink_to(elsewhere.folder)
    (tmp_path / "root/job/shared/.tmp-link").symlink_to(elsewhere.folder / ".tmp-dead")
    listed = store.list("")
    assert listed == [Entry("job/shared/own", 3)]
    assert store.folders("job/shared/") == []
    assert store.unfinished("") == {}
    store.delete(entry.path for entry in listed)
    assert elsewhere.is_untouched()


def test_a_collection_and_a_deletion_of_a_job_leave_alone_what_links_point_to(
    store: LocalStore, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    world = World(store)
    drain(3)(world)
    shared = tmp_path / "root" / world.layout.shared
    shared.mkdir(parents=True, exist_ok=True)
    (shared / "e1-c1-dead.sst").symlink_to(elsewhere.folder / "a")
    (shared / "in").symlink_to(elsewhere.folder)
    collect(store, world.layout, collector="gc", retained=1, orphans=True)
    assert elsewhere.is_untouched()
    delete_job(
        store, world.layout, owner=SOMEBODY, ids=world.ids, clock=world.clock, dispose=lambda url: None
    )
    assert elsewhere.is_untouched()
    assert [e.path for e in store.list(world.layout.folder)] == [world.layout.tombstone]


def test_the_root_may_be_a_link_that_the_operator_chose(tmp_path: Path) -> None:
    (tmp_path / "mnt/data").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "mnt/data")
    store = LocalStore(tmp_path / "data/root")
    store.create("job/job", b"x")
    assert LocalStore(tmp_path / "data").list("") == [Entry("root/job/job", 1)]
    store.delete(["job/job"])
    assert store.list("") == []


def test_what_is_no_file_is_not_waited_for(store: LocalStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root/job/pipe")
    with refused(NotFoundError, "job/pipe is not a file"):
        store.read("job/pipe")


SWAPPED: dict[str, Callable[[LocalStore, Path], object]] = {
    "read": lambda store, got: store.read("job/shared/a"),
    "create": lambda store, got: store.create("job/shared/new", b"x"),
    "delete": lambda store, got: store.delete(["job/shared/a"]),
    "list": lambda store, got: store.list("job/shared/"),
    "download": lambda store, got: store.download("job/shared/a", got),
}


@pytest.mark.parametrize("call", SWAPPED)
def test_a_folder_that_becomes_a_link_after_it_was_opened_leads_nowhere(
    call: str, store: LocalStore, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("job/shared/a", b"own")
    folder, real, swapped = tmp_path / "root/job/shared", os.open, []

    def swap_after_opening(path: Any, *rest: Any, **named: Any) -> int:
        descriptor = real(path, *rest, **named)
        if str(path).rstrip("/").endswith("shared") and not swapped:
            swapped.append(folder.rename(tmp_path / "moved"))
            folder.symlink_to(elsewhere.folder)
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", swap_after_opening)
        try:
            found = SWAPPED[call](store, tmp_path / "got")
        except CorruptError:  # on a second walk, to tidy up
            found = None
    assert swapped
    assert found in (None, b"own", [Entry("job/shared/a", 3), Entry("job/shared/own", 3)])
    assert not (tmp_path / "got").exists() or (tmp_path / "got").read_bytes() == b"own"
    assert elsewhere.is_untouched()


def test_a_folder_that_becomes_a_link_while_it_is_listed_is_left_out(
    store: LocalStore, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "root/job/shared", os.open

    def swap_before_opening(path: Any, *rest: Any, **named: Any) -> int:
        if path == "shared" and not folder.is_symlink():
            folder.rename(tmp_path / "moved")
            folder.symlink_to(elsewhere.folder)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", swap_before_opening)
    assert store.list("") == []
    assert folder.is_symlink()
    assert elsewhere.is_untouched()


@pytest.mark.parametrize("call", ["download", "copy"])
def test_a_file_that_becomes_a_link_while_it_is_linked_is_not_kept(
    call: str, store: LocalStore, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = tmp_path / "root/job/shared/own", os.link

    def swap_before_linking(*names: Any, **named: Any) -> None:
        if not file.is_symlink():
            file.unlink()
            file.symlink_to(elsewhere.folder / "a")
        real(*names, **named)

    monkeypatch.setattr(os, "link", swap_before_linking)
    calls: dict[str, Callable[[], None]] = {
        "download": lambda: store.download("job/shared/own", tmp_path / "got"),
        "copy": lambda: store.copy("job/shared/own", "job/shared/b"),
    }
    with pytest.raises(CorruptError, match="job/shared/own is a symbolic link"):
        calls[call]()
    assert not os.path.lexists(tmp_path / "got")
    assert not os.path.lexists(tmp_path / "root/job/shared/b")
    assert elsewhere.is_untouched()


PLACES = ["_savepoints", "_savepoints/orders", "_savepoints/orders/daily"]
SHARED: dict[str, Callable[[LocalStore, Path], object]] = {
    "download": lambda store, got: store.download("job/shared/own", got),
    "take": lambda store, got: LocalStore(got.parent).take(store, "job/shared/own", got.name),
    "transfer": lambda store, got: transfer(
        [Transfer(store, "job/shared/own", got.name, 3, xxhash.xxh3_64(b"own").hexdigest())],
        LocalStore(got.parent),
        scratch=got.parent / "scratch",
    ),
}


def of_another_user(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(file, 65534, 65534)


OTHERS_MAY_CHANGE: dict[str, Callable[[Path], None]] = {
    "its group may write to it": lambda file: file.chmod(0o664),
    "everybody may write to it": lambda file: file.chmod(0o646),
    "another user owns it": of_another_user,
}


@pytest.mark.parametrize("why", OTHERS_MAY_CHANGE)
@pytest.mark.parametrize("call", SHARED)
def test_a_file_that_others_may_change_is_copied_and_not_linked(
    call: str, why: str, store: LocalStore, tmp_path: Path
) -> None:
    file, got = tmp_path / "root/job/shared/own", tmp_path / "to/got"
    got.parent.mkdir()
    OTHERS_MAY_CHANGE[why](file)
    SHARED[call](store, got)
    assert file.stat().st_nlink == got.stat().st_nlink == 1
    assert got.stat().st_uid == os.geteuid()
    file.write_bytes(b"bad")
    assert got.read_bytes() == b"own"


@pytest.mark.parametrize("call", SHARED)
def test_a_file_that_only_this_user_may_change_is_linked(
    call: str, store: LocalStore, tmp_path: Path
) -> None:
    file, got = tmp_path / "root/job/shared/own", tmp_path / "to/got"
    got.parent.mkdir()
    file.chmod(0o644)
    SHARED[call](store, got)
    assert got.samefile(file)


@pytest.mark.parametrize("why", OTHERS_MAY_CHANGE)
def test_within_a_store_only_files_of_other_users_are_copied(
    why: str, store: LocalStore, tmp_path: Path
) -> None:
    file, copy = tmp_path / "root/job/shared/own", tmp_path / "root/job/shared/copy"
    OTHERS_MAY_CHANGE[why](file)
    store.copy("job/shared/own", "job/shared/copy")
    assert copy.samefile(file) == (why != "another user owns it")
    assert copy.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("why", OTHERS_MAY_CHANGE)
def test_a_file_that_others_may_change_is_compared_while_it_is_copied(
    why: str, store: LocalStore, tmp_path: Path
) -> None:
    file, got = tmp_path / "root/job/shared/own", tmp_path / "to/got"
    file.write_bytes(b"bad")
    OTHERS_MAY_CHANGE[why](file)
    with pytest.raises(CorruptError, match="size and checksum that were recorded"):
        SHARED["transfer"](store, got)
    assert not got.exists()


@pytest.mark.parametrize("call", ["download", "take"])
@pytest.mark.parametrize("why", OTHERS_MAY_CHANGE)
def test_a_file_that_others_put_in_its_place_while_it_is_linked_is_copied_too(
    why: str, call: str, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, got, real = tmp_path / "root/job/shared/own", tmp_path / "to/got", os.link
    got.parent.mkdir()
    file.chmod(0o644)

    def replaced_before_linking(*names: Any, **named: Any) -> None:
        if names[0] == file.name:
            file.unlink()
            file.write_bytes(b"own")
            OTHERS_MAY_CHANGE[why](file)
        real(*names, **named)

    monkeypatch.setattr(os, "link", replaced_before_linking)
    SHARED[call](store, got)
    assert not got.samefile(file)
    assert got.read_bytes() == b"own"


class TestSavepoints:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> LocalStore:
        root, target = MemoryStore(), LocalStore(tmp_path / "saved")
        native(root, checkpoint(root), target, tmp_path / "scratch")
        return target

    @pytest.fixture
    def moved(self, saved: LocalStore, tmp_path: Path) -> Path:
        """Where the savepoint's folder `state` is by now: a link leads there."""
        there = (tmp_path / "saved/state").rename(tmp_path / "theirs")
        (there / ".tmp-dead").write_bytes(CANARY)
        (tmp_path / "saved/state").symlink_to(there)
        return there

    def test_a_disposal_refuses_a_linked_folder_and_deletes_nothing(
        self, saved: LocalStore, moved: Path, tmp_path: Path
    ) -> None:
        before = sorted(moved.iterdir())
        with refused(CorruptError, "saved/state is a symbolic link"):
            dispose_savepoint(saved, owner=SOMEBODY, clock=clock)
        assert sorted(moved.iterdir()) == before
        assert [entry.path for entry in saved.list("")] == ["_metadata"]
        (tmp_path / "saved/state").unlink()
        dispose_savepoint(saved, owner=SOMEBODY, clock=clock)
        assert not (tmp_path / "saved").exists()
        assert sorted(moved.iterdir()) == before

    def test_a_disposal_removes_a_linked_file_and_not_what_it_points_to(
        self, saved: LocalStore, tmp_path: Path
    ) -> None:
        file = next((tmp_path / "saved/state").iterdir())
        there = file.rename(tmp_path / "theirs")
        file.symlink_to(there)
        dispose_savepoint(saved, owner=SOMEBODY, clock=clock)
        assert there.exists()
        assert not (tmp_path / "saved").exists()

    def test_half_written_files_behind_a_link_are_not_looked_for(
        self, saved: LocalStore, elsewhere: Elsewhere, tmp_path: Path
    ) -> None:
        (tmp_path / "saved/state/.tmp-1").write_bytes(b"half")
        (tmp_path / "saved/tables").mkdir()
        (tmp_path / "saved/tables/in").symlink_to(elsewhere.folder)
        (tmp_path / "saved/built-x").symlink_to(elsewhere.folder)
        assert unfinished_bytes(saved) == {"state/": 4}

    @pytest.mark.parametrize("deep", [False, True])
    def test_a_check_names_the_linked_folder(self, deep: bool, saved: LocalStore, moved: Path) -> None:
        (found,) = verify_savepoint(saved, deep=deep)
        assert found.severity == "error"
        assert "saved/state is a symbolic link" in found.text

    def test_a_check_names_the_linked_file(self, saved: LocalStore, tmp_path: Path) -> None:
        file = next((tmp_path / "saved/state").iterdir())
        file.symlink_to(file.rename(tmp_path / "theirs"))
        (found,) = verify_savepoint(saved, deep=True)
        assert f"{file.name} is a symbolic link" in found.text

    def test_a_claim_refuses_links_and_leaves_no_claim(self, saved: LocalStore, moved: Path) -> None:
        with refused(CorruptError, "saved/state is a symbolic link"):
            claim_savepoint(saved, job=JOB, name="orders", owner=SOMEBODY, clock=clock)
        assert [entry.path for entry in saved.list("")] == ["_metadata"]


class TestSavepointsInTheRoot:
    """A record or a listing names them. Whoever may write to the root can put a link on the way to them."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Job `orders` has claimed its savepoint `daily` there."""
        made = made_job(tmp_path / "root", watermark=77)
        saved = made.opened().savepoint("native", options=made.options(), name="daily")
        made.restore(saved.url, claim_mode="claim").apply()
        return tmp_path / "root"

    def base(self, root: Path) -> str:
        """How the job's newest record names the savepoint."""
        head = Job(str(root), "orders").log().head
        assert head is not None
        (base,) = bases([head])
        return base

    def put_link(self, root: Path, at: str) -> Path:
        """Moves a folder away and leaves a link to it. Returns where the folder is by now."""
        there = (root / at).rename(root.parent / "theirs")
        (root / at).symlink_to(there)
        return there

    def files(self, folder: Path) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    @pytest.mark.parametrize("at", PLACES)
    def test_a_collection_leaves_what_a_link_on_the_way_points_to_and_names_the_link(
        self, at: str, root: Path
    ) -> None:
        there = self.put_link(root, at)
        before = self.files(there)
        made_job(root, run="later", retained=1, batches=4)
        report = Job(str(root), "orders").collect(1)
        (why,) = report.undisposed.values()
        assert f"root/{at} is a symbolic link" in why
        assert self.files(there) == before != {}

    @pytest.mark.parametrize("at", PLACES)
    @pytest.mark.parametrize("deep", [False, True])
    def test_a_check_of_the_job_names_a_link_on_the_way(self, deep: bool, at: str, root: Path) -> None:
        self.put_link(root, at)
        (found,) = (f for f in Job(str(root), "orders").verify(deep=deep) if f.severity == "error")
        assert f"root/{at} is a symbolic link" in found.text

    @pytest.mark.parametrize("at", PLACES)
    def test_a_task_reads_nothing_behind_a_link_on_the_way(self, at: str, root: Path) -> None:
        base = self.base(root)
        storage = task_storage(options_of(root), str(root), "orders", 1, 1)
        assert storage.store(base).read("_metadata")
        self.put_link(root, at)
        with refused(CorruptError, f"root/{at} is a symbolic link"):
            storage.store(base).read("_metadata")

    @pytest.mark.parametrize("at", [*PLACES[:2], "_savepoints/orders/expired"])
    def test_a_clean_up_deletes_nothing_behind_a_link_that_appears_after_the_listing(
        self, at: str, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = Job(str(root), "orders")
        over = datetime.timedelta(microseconds=1)
        options = options_of(root)
        made = job.savepoint("native", options=options, name="expired", expires=over)
        listed = savepoints._expired(job)
        assert list(listed) == [made.url]
        there = self.put_link(root, at)
        before = self.files(there)
        monkeypatch.setattr(savepoints, "_expired", lambda job: listed)
        with refused(CorruptError, f"root/{at} is a symbolic link"):
            savepoints.dispose_expired(job)
        assert self.files(there) == before != {}

    def test_a_clean_up_goes_on_with_the_others_and_names_the_link(self, root: Path) -> None:
        job, over = Job(str(root), "orders"), datetime.timedelta(microseconds=1)
        options = options_of(root)
        made = [job.savepoint("native", options=options, name=name, expires=over) for name in ("a", "b", "c")]
        there = self.put_link(root, "_savepoints/orders/b/state")
        before = self.files(there)
        with refused(CorruptError, "orders/b/state", "a symbolic link", "2 others were deleted"):
            savepoints.dispose_expired(job)
        left = [
            each.url.rpartition("/")[2]
            for each in made
            if (root / "_savepoints/orders" / each.url.rpartition("/")[2]).exists()
        ]
        assert left == ["b"]
        assert self.files(there) == before != {}

    @pytest.mark.parametrize("at", PLACES)
    def test_a_restore_does_not_claim_behind_a_link_on_the_way(self, at: str, root: Path) -> None:
        job, base = Job(str(root), "orders"), self.base(root)
        there = self.put_link(root, at)
        before = self.files(there)
        options = options_of(root)
        with refused(CorruptError, f"root/{at} is a symbolic link"):
            job.restore(base, orders_pipeline(), PARAMETERS, options=options, claim_mode="claim").apply()
        assert self.files(there) == before

    @pytest.mark.parametrize("at", ["_savepoints", "_savepoints/orders"])
    def test_a_savepoint_is_not_made_behind_a_link(self, at: str, root: Path) -> None:
        there = self.put_link(root, at)
        before = self.files(there)
        with refused(CorruptError, f"root/{at} is a symbolic link"):
            Job(str(root), "orders").savepoint("native", options=options_of(root), name="next")
        assert self.files(there) == before

    def test_the_last_disposal_leaves_the_root_and_no_empty_folder(self, root: Path) -> None:
        made_job(root, run="later", retained=1, batches=4)
        assert Job(str(root), "orders").collect(1).undisposed == {}
        assert not (root / "_savepoints/orders/daily").exists()
        assert (root / "orders").is_dir()


def test_a_target_that_somebody_clears_at_once_is_no_missing_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"bytes")
    link = os.link

    def cleared(source: str, target: str, **folders: Any) -> None:
        link(source, target, **folders)
        Path(target).unlink()

    monkeypatch.setattr(os, "link", cleared)
    link_regular(str(tmp_path / "source"), str(tmp_path / "target"))

"""kill -9 and power cuts between write, fsync, link, unlink and folder fsync of a local root.

The disk is modelled: what was written but not fsynced may or may not be there afterwards, name by name.
"""

from __future__ import annotations

import itertools
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import NotFoundError
from stateflow.storage.local import LocalStore
from stateflow.storage.store import ExistsError, create_once
from tests.memory_store import CrashError
from tests.storage.descriptors import whole_path

STEPS = ("open", "fsync", "link", "unlink", "replace", "mkdir", "rmdir")
PATH = "job/chk-00000001/_pending"
BODY = b"record " * 500


class Disk:
    """Follows the calls that change a folder tree, and knows what a power cut could leave of it."""

    def __init__(self, base: Path) -> None:
        self.base = str(base)
        self.seen: dict[str, dict[str, int]] = {self.base: {}}
        """Folder -> name -> file or folder, as processes see it."""
        self.kept: dict[str, dict[str, int]] = {self.base: {}}
        """The same, as it is certain to be found after a power cut."""
        self.numbers = itertools.count(1)
        self.synced: set[int] = set()
        self.descriptors: dict[int, str] = {}
        self.steps = 0
        self.die_at: int | None = None
        self.dead = False

    def step(self) -> None:
        if self.dead or self.steps == self.die_at:
            self.dead = True
            raise CrashError
        self.steps += 1

    def number(self, path: str) -> int:
        folder, name = os.path.split(path)
        return self.seen[folder][name]

    def add(self, path: str, number: int) -> None:
        folder, name = os.path.split(path)
        self.seen[folder][name] = number

    def remove(self, path: str) -> None:
        folder, name = os.path.split(path)
        del self.seen[folder][name]

    def inside(self, path: str) -> bool:
        return path.startswith(self.base)

    def possible(self, path: str) -> set[str]:
        """What a power cut now may leave at `path`: 'absent', 'whole', 'torn'."""
        found: set[str] = set()
        folder = self.base
        for name in path.split("/"):
            numbers = {tree.get(folder, {}).get(name) for tree in (self.seen, self.kept)}
            if numbers == {None}:
                return {"absent"}
            if len(numbers) == 2:
                found.add("absent")
            folder = f"{folder}/{name}"
        return found | {
            "whole" if number in self.synced else "torn" for number in numbers if number is not None
        }

    @contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        real = {name: getattr(os, name) for name in STEPS}

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            text = whole_path(path, named.get("dir_fd"))
            if not self.inside(text):
                return int(real["open"](path, flags, *rest, **named))
            if flags & os.O_CREAT:
                self.step()
            descriptor = int(real["open"](path, flags, *rest, **named))
            self.descriptors[descriptor] = text
            if flags & os.O_CREAT:
                self.add(text, next(self.numbers))
            return descriptor

        def fsync(descriptor: int) -> None:
            self.step()
            real["fsync"](descriptor)
            path = self.descriptors.get(descriptor, "")
            if path in self.seen:
                self.kept[path] = dict(self.seen[path])
            elif self.inside(path):
                self.synced.add(self.number(path))

        def link(source: Any, target: Any, **named: Any) -> None:
            self.step()
            old = whole_path(source, named.get("src_dir_fd"))
            real["link"](source, target, **named)
            self.add(whole_path(target, named.get("dst_dir_fd")), self.number(old))

        def replace(source: Any, target: Any, **named: Any) -> None:
            self.step()
            old = whole_path(source, named.get("src_dir_fd"))
            real["replace"](source, target, **named)
            self.add(whole_path(target, named.get("dst_dir_fd")), self.number(old))
            self.remove(old)

        def unlink(path: Any, **named: Any) -> None:
            self.step()
            text = whole_path(path, named.get("dir_fd"))
            real["unlink"](path, **named)
            self.remove(text)

        def mkdir(path: Any, *rest: Any, **named: Any) -> None:
            text = whole_path(path, named.get("dir_fd"))
            if self.inside(text) and text not in self.seen:
                self.step()
            real["mkdir"](path, *rest, **named)
            self.add(text, next(self.numbers))
            self.seen[text], self.kept[text] = {}, {}

        def rmdir(path: Any, **named: Any) -> None:
            self.step()
            text = whole_path(path, named.get("dir_fd"))
            real["rmdir"](path, **named)
            self.remove(text)
            del self.seen[text]

        with monkeypatch.context() as patch:
            for name, function in (
                ("open", opened),
                ("fsync", fsync),
                ("link", link),
                ("replace", replace),
                ("unlink", unlink),
                ("mkdir", mkdir),
                ("rmdir", rmdir),
            ):
                patch.setattr(os, name, function)
            yield


def every_crash(
    act: Callable[[LocalStore], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fsync: bool = True,
) -> Iterator[tuple[Disk, Path, bool]]:
    """`(disk, root, whether act had returned)` for a death before each of its steps, and for none."""
    for point in itertools.count():
        base = tmp_path / f"crash{point}"
        base.mkdir()
        disk = Disk(base)
        disk.die_at = point
        root = base / "mnt" / "root"
        done = False
        with disk.watched(monkeypatch):
            with suppress(CrashError):
                act(LocalStore(root, fsync=fsync))
                done = True
            disk.dead, disk.die_at = False, None
            yield disk, root, done
        if done:
            assert point > 5, "the model saw too few steps to mean anything"
            return


def create(store: LocalStore) -> None:
    store.create(PATH, BODY)


@pytest.mark.parametrize("act", [create, lambda store: store.put(PATH, BODY)], ids=["create", "put"])
def test_a_power_cut_leaves_a_record_whole_or_absent_and_keeps_it_once_acknowledged(
    act: Callable[[LocalStore], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for disk, _, done in every_crash(act, tmp_path, monkeypatch):
        outcome = disk.possible(f"mnt/root/{PATH}")
        assert "torn" not in outcome
        if done:
            assert outcome == {"whole"}


def test_without_fsync_a_power_cut_does_harm_so_the_model_can_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [
        disk.possible(f"mnt/root/{PATH}") for disk, _, _ in every_crash(create, tmp_path, monkeypatch, False)
    ]
    assert outcomes[-1] == {"absent", "torn"}


def test_who_has_read_a_dead_writers_record_can_rely_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    for disk, root, _ in every_crash(create, tmp_path, monkeypatch):
        with suppress(NotFoundError):
            assert LocalStore(root).read(PATH) == BODY
            assert disk.possible(f"mnt/root/{PATH}") == {"whole"}
            read += 1
    assert read >= 3


def test_who_lost_to_a_dead_writer_can_rely_on_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0
    for disk, root, _ in every_crash(create, tmp_path, monkeypatch):
        try:
            LocalStore(root).create(PATH, b"another")
        except ExistsError:
            lost += 1
        assert disk.possible(f"mnt/root/{PATH}") == {"whole"}
    assert lost >= 3


def test_folders_that_a_dead_writer_made_are_made_durable_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for disk, root, _ in every_crash(create, tmp_path, monkeypatch):
        LocalStore(root).create("job/chk-00000001/_metadata", b"outcome")
        assert disk.possible("mnt/root/job/chk-00000001/_metadata") == {"whole"}


@pytest.fixture
def one_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system such as ext4 gives a new folder the inode of one that was removed just before."""

    def of_one_inode(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def status(*args: Any, **named: Any) -> os.stat_result:
            found = list(real(*args, **named))
            return os.stat_result([found[0], 1 if stat.S_ISDIR(found[0]) else found[1], *found[2:]])

        return status

    for name in ("stat", "fstat"):
        monkeypatch.setattr(os, name, of_one_inode(getattr(os, name)))


@pytest.mark.usefixtures("one_inode")
@pytest.mark.parametrize("by_itself", [True, False])
@pytest.mark.parametrize("kept", [[], ["job/job"], ["job/chk-00000002/_pending"]])
def test_a_folder_that_is_made_again_is_durable_again(
    kept: list[str], by_itself: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    with disk.watched(monkeypatch):
        store = LocalStore(tmp_path / "root")
        for path in (*kept, PATH):
            store.create(path, BODY)
        collector = store if by_itself else LocalStore(tmp_path / "root")
        collector.delete([PATH])
        if not kept:
            collector.remove_root()
        store.create(PATH, BODY)
        assert disk.possible(f"root/{PATH}") == {"whole"}


@pytest.mark.usefixtures("one_inode")
def test_who_has_removed_a_folder_relies_on_nobody_to_have_made_it_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in range(10):
        base = tmp_path / f"crash{point}"
        base.mkdir()
        disk = Disk(base)
        with disk.watched(monkeypatch):
            store = LocalStore(base / "root")
            create(store)
            store.delete([PATH])
            disk.die_at = disk.steps + point
            with suppress(CrashError):
                create(LocalStore(base / "root"))
            disk.dead, disk.die_at = False, None
            store.create("job/chk-00000001/_metadata", b"outcome")
            assert disk.possible("root/job/chk-00000001/_metadata") == {"whole"}


def test_an_uploaded_file_is_on_disk_before_a_record_can_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(store: LocalStore) -> None:
        base = store._root.parents[1]
        made = os.open(f"{base}/made", os.O_CREAT | os.O_WRONLY)
        os.write(made, b"state")
        os.close(made)
        store.upload(base / "made", "job/shared/e1-c1-a.sst")

    for disk, _, done in every_crash(upload, tmp_path, monkeypatch):
        outcome = disk.possible("mnt/root/job/shared/e1-c1-a.sst")
        assert "torn" not in outcome
        if done:
            assert outcome == {"whole"}


def test_a_copy_is_on_disk_before_a_savepoint_can_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(store: LocalStore) -> None:
        store.put("job/shared/e1-c1-a.sst", b"state")
        store.copy("job/shared/e1-c1-a.sst", "saved/state/a-000001.sst")

    for disk, _, done in every_crash(copy, tmp_path, monkeypatch):
        outcome = disk.possible("mnt/root/saved/state/a-000001.sst")
        assert "torn" not in outcome
        if done:
            assert outcome == {"whole"}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["create", "put", "upload"])
def test_a_writer_killed_at_any_step_leaves_whole_objects_and_no_litter(verb: str, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(BODY)

    def act(store: LocalStore) -> None:
        if verb == "upload":
            store.upload(tmp_path / "made", PATH)
        else:
            getattr(store, verb)(PATH, BODY)

    killed = present = 0
    for point in itertools.count():
        root = tmp_path / f"root{point}"
        if not killed_at(point, lambda root=root: act(LocalStore(root))):  # type: ignore[misc]
            break
        killed += 1
        store = LocalStore(root)
        assert [entry.path for entry in store.list("")] in ([], [PATH])
        present += bool(store.list(""))
        assert create_once(store, PATH, b"the next writer") in (BODY, b"the next writer")
        store.delete([PATH])
        assert not root.exists() or list(root.rglob("*")) == []
    assert killed > 8
    assert 0 < present < killed


def killed_at(point: int, act: Callable[[], None]) -> bool:
    """Whether a child that runs `act` got as far as its `point`-th step, where it kills itself."""
    child = os.fork()
    if child == 0:
        left = point

        def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*args, **named)

            return call

        for name in STEPS:
            setattr(os, name, deadly(getattr(os, name)))
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

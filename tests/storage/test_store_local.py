"""What is special about a root in a local folder."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stateflow.errors import CorruptError, NotFoundError, UnavailableError, UsageError
from stateflow.storage.local import LocalStore
from stateflow.storage.probe import probe_root
from stateflow.storage.store import Entry, ExistsError
from tests.refusals.refusal import refused
from tests.storage.descriptors import whole_path


def test_an_upload_and_a_download_are_hard_links(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    (tmp_path / "made").write_bytes(b"state")
    store.upload(tmp_path / "made", "job/shared/a")
    store.download("job/shared/a", tmp_path / "got")
    assert (tmp_path / "got").samefile(tmp_path / "made")


def test_a_copy_is_a_hard_link(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("job/shared/a", b"state")
    store.copy("job/shared/a", "job/shared/b")
    assert (tmp_path / "root/job/shared/a").samefile(tmp_path / "root/job/shared/b")


def test_a_file_with_all_the_links_it_can_have_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("job/shared/a", b"state")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        store.copy("job/shared/a", "job/shared/b")
    assert store.read("job/shared/b") == b"state"
    assert not (tmp_path / "root/job/shared/a").samefile(tmp_path / "root/job/shared/b")


def test_an_upload_of_a_symbolic_link_copies_what_it_points_to(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    (tmp_path / "archive").write_bytes(b"state")
    (tmp_path / "made").symlink_to(tmp_path / "archive")
    store.upload(tmp_path / "made", "job/shared/b")
    (tmp_path / "archive").write_bytes(b"other")
    assert not (tmp_path / "root/job/shared/b").is_symlink()
    assert store.read("job/shared/b") == b"state"


def test_a_symbolic_link_to_nothing_is_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("job/shared/other", b"x")
    (tmp_path / "job/shared/a").symlink_to(tmp_path / "gone")
    for call in (
        lambda: store.download("job/shared/a", tmp_path / "got"),
        lambda: store.copy("job/shared/a", "job/shared/b"),
    ):
        with pytest.raises(CorruptError, match="job/shared/a is a symbolic link"):
            call()
    with pytest.raises(NotFoundError):
        store.upload(tmp_path / "job/shared/a", "job/shared/b")
    assert [entry.path for entry in store.list("")] == ["job/shared/other"]


@pytest.mark.parametrize("fsync", [True, False])
def test_a_source_that_goes_while_it_is_linked_is_named(
    fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "root", fsync=fsync)
    store.put("job/shared/a", b"state")
    real = os.link

    def link_after_a_collection(source: Any, target: Any, **named: Any) -> None:
        Path(whole_path(source, named["src_dir_fd"])).unlink()
        real(source, target, **named)

    monkeypatch.setattr(os, "link", link_after_a_collection)
    with refused(NotFoundError, "job/shared/a", "removed while it was stored"):
        store.copy("job/shared/a", "job/saved/b")


def test_folders_on_a_disk_are_those_that_hold_something_or_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "jobs/empty").mkdir(parents=True)
    (tmp_path / "jobs/.tmp-1").mkdir()
    (tmp_path / "jobs/link").symlink_to(tmp_path / "jobs/empty")
    assert store.folders("jobs/") == ["empty"]


def test_across_disks_files_are_copied(tmp_path: Path, other_disk: Path) -> None:
    store = LocalStore(tmp_path / "root")
    (other_disk / "made").write_bytes(b"state")
    store.upload(other_disk / "made", "job/shared/a")
    store.download("job/shared/a", other_disk / "got")
    assert (other_disk / "got").read_bytes() == b"state"
    assert store.list("") == [Entry("job/shared/a", 5)]


def test_unfinished_files_are_not_listed_and_their_names_are_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("job/pins/a", b"x")
    (tmp_path / "job/pins/.tmp-1").write_bytes(b"half")
    assert store.list("job/pins/") == [Entry("job/pins/a", 1)]
    with refused(UsageError, "reserved for unfinished files"):
        store.put("job/pins/.tmp-2", b"x")


def test_listing_the_records_does_not_open_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    for path in ("job/chk-00000001/_pending", "job/shared/a", "job/chk-00000002/_pending", "other/chk-1/x"):
        store.put(path, b"x")
    opened: list[str] = []
    real = os.scandir

    def scandir(path: Any) -> Any:
        opened.append(str(Path(whole_path(path, None)).relative_to(tmp_path)))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert len(store.list("job/chk-")) == 2
    assert sorted(opened) == ["job", "job/chk-00000001", "job/chk-00000002"]


def test_deleting_a_record_removes_its_folder_and_what_killed_writers_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("job/chk-00000001/_pending", b"x")
    (tmp_path / "root/job/chk-00000001/.tmp-dead").write_bytes(b"half")
    store.put("job/job", b"x")
    store.delete(["job/chk-00000001/_pending"])
    assert sorted(p.name for p in (tmp_path / "root/job").iterdir()) == ["job"]
    store.delete(["job/job"])
    assert list((tmp_path / "root").iterdir()) == []


def test_an_unfinished_file_whose_writer_lives_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("job/chk-00000001/_pending", b"x")
    real = os.link

    def link_after_a_collector_came_by(source: Any, target: Any, **named: Any) -> None:
        monkeypatch.setattr(os, "link", real)
        LocalStore(tmp_path).delete(["job/chk-00000001/_pending"])
        assert Path(whole_path(source, named["src_dir_fd"])).exists()
        real(source, target, **named)

    monkeypatch.setattr(os, "link", link_after_a_collector_came_by)
    store.create("job/chk-00000001/_metadata", b"y")
    assert store.list("") == [Entry("job/chk-00000001/_metadata", 1)]


@pytest.fixture(params=["disk", "nfs", "none"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The locks of the file system: NFS needs a file open for reading to share a lock, and for writing to hold one alone."""
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if request.param == "none":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        wrong = os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY
        if request.param == "nfs" and mode == wrong:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    return str(request.param)


def test_a_root_needs_no_other_locks_than_those_of_its_file_system(
    locks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: Callable[[], str]
) -> None:
    store = LocalStore(tmp_path / "root")
    probe_root(store, ids)
    store.put("job/pins/a", b"x")
    (tmp_path / "root/job/pins/.tmp-dead").write_bytes(b"half")
    living: list[bool] = []
    real = os.link

    def link_after_a_collector_came_by(source: Any, target: Any, **named: Any) -> None:
        LocalStore(tmp_path / "root").delete(["job/pins/a"])
        living.append(Path(whole_path(source, named["src_dir_fd"])).exists())
        real(source, target, **named)

    monkeypatch.setattr(os, "link", link_after_a_collector_came_by)
    store.create("job/pins/b", b"y")
    assert living == [True]
    assert store.read("job/pins/b") == b"y"
    assert (tmp_path / "root/job/pins/.tmp-dead").exists() == (locks == "none")


def test_a_writer_whose_folder_or_file_is_removed_under_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    real = os.link
    removed: list[Path] = []

    def link_after_a_careless_hand(source: Any, target: Any, **named: Any) -> None:
        if len(removed) < 3:
            temp = Path(whole_path(source, named["src_dir_fd"]))
            removed.append(temp)
            temp.unlink()
            temp.parent.rmdir()
        real(source, target, **named)

    monkeypatch.setattr(os, "link", link_after_a_careless_hand)
    store.create("job/chk-00000001/_pending", b"x")
    assert store.read("job/chk-00000001/_pending") == b"x"
    assert len(set(removed)) == 3


def test_creators_and_collectors_of_one_folder_do_not_fail_each_other(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    (tmp_path / "made").write_bytes(b"state")

    def churn(number: int) -> None:
        store = LocalStore(tmp_path / "root", fsync=False)
        path = f"job/chk-00000001/{number}"
        try:
            for _ in range(150):
                store.create(path, b"x")
                store.read(path)
                store.delete([path])
                store.upload(tmp_path / "made", path)
                store.list("job/chk-")
                store.delete([path])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list((tmp_path / "root").iterdir()) == []


def _race(root: Path, start: Any, rounds: int, number: int, won: Any) -> None:
    store = LocalStore(root)
    start.wait()
    for turn in range(rounds):
        try:
            store.create(f"job/chk-{turn:08d}/_pending", b"process %d" % number)
            won.put((turn, number))
        except ExistsError:
            pass
    won.put(None)


@pytest.mark.slow
def test_of_many_processes_that_create_one_path_exactly_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, won, rounds = context.Barrier(3), context.Queue(), 60
    racers = [context.Process(target=_race, args=(tmp_path, start, rounds, n, won)) for n in range(3)]
    for racer in racers:
        racer.start()
    wins, ended = [], 0
    while ended < len(racers):
        if (win := won.get(timeout=60)) is None:
            ended += 1
        else:
            wins.append(win)
    for racer in racers:
        racer.join()
    assert sorted(turn for turn, _ in wins) == list(range(rounds))
    store = LocalStore(tmp_path)
    for turn, number in wins:
        assert store.read(f"job/chk-{turn:08d}/_pending") == b"process %d" % number


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (errno.ENOSPC, UnavailableError, r"the disk that holds .*/job is full: free space"),
        (errno.EDQUOT, UnavailableError, r"is full"),
        (errno.EACCES, UnavailableError, r"job/job in file://.* is not permitted: grant access to .*/job"),
        (errno.EROFS, UnavailableError, r"holds .*/job is read-only: mount it"),
        (errno.EIO, UnavailableError, r"Input/output error.*check the disk"),
    ],
)
def test_what_the_disk_refuses_is_told_with_its_folder(
    code: int, error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(error, match=words):
            LocalStore(tmp_path).create("job/job", b"x")
    assert LocalStore(tmp_path).list("") == []
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("secret", ["a", "state"])
def test_a_file_that_this_user_may_not_read_is_told_with_its_own_folder(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the one that it was to be fetched to."""
    store = LocalStore(tmp_path / "root")
    store.put("job/a", b"state")
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "another disk")))
    opened, denied = os.open, {"a": "a", "state": str(tmp_path / "cache" / "state")}[secret]

    def deny(path: str | Path, *given: Any, **named: Any) -> int:
        if str(path) == denied:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "open", deny)
    folder = tmp_path / ("root/job" if secret == "a" else "cache")
    with refused(UnavailableError, "job/a", f" {folder} "):
        store.download("job/a", tmp_path / "cache" / "state")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with refused(UsageError, "without hard links"):
        LocalStore(tmp_path).create("job/job", b"x")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("job", b"x")
    for call in (lambda: store.read("job/job"), lambda: store.create("job/job", b"x")):
        with refused(NotFoundError, "job/job"):
            call()
    store.delete(["job/job"])
    assert store.list("job/") == []
    with pytest.raises(NotFoundError):
        LocalStore(tmp_path.parent).read(tmp_path.name)


def test_a_root_that_nobody_can_make_is_not_taken_for_one_that_somebody_removes(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "made").write_bytes(b"state")
    for root in ("dangling", "dangling/below"):
        store = LocalStore(tmp_path / root)
        for act in (lambda: store.create("a", b"x"), lambda: store.upload(tmp_path / "made", "a")):  # noqa: B023
            with refused(UsageError, str(tmp_path / "dangling"), f"{tmp_path}/nowhere", "make that folder"):
                act()
    with refused(UsageError, "/proc", "/proc/no-such-root", "use another root"):
        LocalStore(Path("/proc/no-such-root")).create("a", b"x")
    (tmp_path / "nowhere").mkdir()
    LocalStore(tmp_path / "dangling").create("a", b"x")
    assert (tmp_path / "nowhere/a").read_bytes() == b"x"


def test_a_file_where_a_root_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "afile").write_bytes(b"mine")
    for root in ("afile", "afile/below"):
        with refused(NotFoundError, f"{tmp_path}/afile is no folder", root):
            LocalStore(tmp_path / root).create("a", b"x")

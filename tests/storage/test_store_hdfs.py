"""What is special about HDFS: files that are seen before they are whole, and writers that die over them."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UnavailableError, UsageError
from stateflow.format.records import Owner, encode, stated_size
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.probe import probe_root
from stateflow.storage.store import ExistsError, create_once
from stateflow.storage.webhdfs import HdfsAnswerError
from tests.fake_hdfs import Accident, FakeHdfs
from tests.memory_store import CrashError
from tests.refusals.refusal import refused

PATH = "job/epochs/00000007"


def no_pause(seconds: float) -> None:
    pass


def made(web: FakeHdfs) -> HdfsStore:
    return HdfsStore("hdfs://namenode/root", pause=no_pause, web=web)


def record(writer: str) -> bytes:
    return encode(Owner(run=writer))


def die_at(share: float, *, closed: bool = True) -> FakeHdfs:
    """An HDFS in which a writer has died over `PATH`."""
    web = FakeHdfs()
    web.accident = lambda op, path: Accident(share, closed, dies=True)
    with pytest.raises(CrashError):
        made(web).create(PATH, record("dead"))
    web.accident = lambda op, path: None
    return web


def test_a_record_states_its_size_and_whatever_of_it_arrives_is_too_short() -> None:
    body = record("a")
    assert stated_size(body[:64]) == len(body)
    for length in range(1, len(body)):
        assert (stated_size(body[:length][:64]) or 0) > length
    for other in (
        b"",
        b"states",
        b"PAR1",
        b"{}",
        b"stateflow says hello\nand more",
        b"stateflow " + b"x" * 90,
    ):
        assert stated_size(other[:64]) is None


@pytest.mark.parametrize("share", [0, 0.05, 0.2, 0.5, 0.99])
def test_what_a_dead_writer_left_is_no_object_and_blocks_nobody(share: float, tmp_path: Path) -> None:
    web = die_at(share)
    reader = made(web)
    with pytest.raises(NotFoundError):
        reader.read(PATH)
    assert reader.list("") == []
    assert PATH in {name.removeprefix("/root/") for name in web.files}
    store = made(web)
    store.create(PATH, record("b"))
    assert store.read(PATH) == reader.read(PATH) == record("b")
    assert [entry.path for entry in reader.list("")] == [PATH]


@pytest.mark.parametrize("share", [0, 0.5])
def test_what_a_dead_writer_left_goes_with_the_other_files_of_its_folder(share: float) -> None:
    web = die_at(share)
    store = made(web)
    with pytest.raises(NotFoundError):
        store.read(PATH)
    store.create("job/epochs/00000008", record("b"))
    store.delete(["job/epochs/00000008"])
    assert web.files == {}
    assert web.folders == {"/", "/root"}
    store.remove_root()
    assert web.folders == {"/"}


def test_a_folder_with_something_in_it_stays_and_so_does_what_is_being_written() -> None:
    web = die_at(0.5, closed=False)
    store = made(web)
    store.put("job/epochs/00000008", b"x")
    store.delete(["job/epochs/00000008"])
    store.remove_root()
    assert list(web.files) == [f"/root/{PATH}"]


def test_who_tells_no_numbers_of_files_is_refused_and_hides_nothing(ids: Callable[[], str]) -> None:
    """What broke off would stay for ever, and all other files of the root would be taken for it."""
    web = die_at(0.5)
    made(web).put("job/job", record("a"))
    web.numbered = False
    store = made(web)
    for call in (
        lambda: store.read(PATH),
        lambda: store.list("job/"),
        lambda: store.create(PATH, record("b")),
        lambda: probe_root(made(FakeHdfs(numbered=False)), ids),
    ):
        with refused(UsageError, "hdfs://namenode/root", "fileId", "NameNode"):
            call()
    web.numbered = True
    with pytest.raises(NotFoundError):
        store.read(PATH)
    assert [entry.path for entry in store.list("job/")] == ["job/job"]
    assert store.read("job/job") == record("a")


def test_a_reader_deletes_nothing() -> None:
    web = die_at(0.5)
    made(web).list("")
    with pytest.raises(NotFoundError):
        made(web).read(PATH)
    assert not [call for call in web.calls if call[0] == "DELETE"]


def test_the_file_of_a_datanode_that_died_is_waited_for_until_hdfs_ends_it() -> None:
    web = die_at(0.5, closed=False)
    web.patience = 9
    store = made(web)
    with pytest.raises(NotFoundError):
        store.read(PATH)
    assert store.list("") == []
    store.create(PATH, record("b"))
    assert store.read(PATH) == record("b")


def test_a_writer_who_does_not_finish_is_named_with_what_ends_it() -> None:
    web = die_at(0.5, closed=False)
    web.patience = 1_000_000
    with pytest.raises(UnavailableError, match=f"hdfs debug recoverLease -path /root/{PATH}"):
        made(web).create(PATH, record("b"))


def test_what_became_whole_between_two_looks_is_not_removed() -> None:
    """A look finds no length yet. Then the writer ends, and the next look finds that nobody writes."""
    web = FakeHdfs()
    writer, other = made(web), made(web)
    named, looked = threading.Event(), threading.Event()

    def before(op: str, path: str) -> None:
        if threading.current_thread() is thread and op == "DATA":
            named.set()
            assert looked.wait(10)
        elif threading.current_thread() is not thread and op == "GET_BLOCK_LOCATIONS":
            looked.set()
            thread.join(10)

    thread = threading.Thread(target=lambda: writer.create(PATH, record("a")))
    web.before = before
    thread.start()
    assert named.wait(10)
    with pytest.raises(ExistsError):
        other.create(PATH, record("b"))
    assert other.read(PATH) == record("a")


def test_what_somebody_else_created_instead_is_not_removed() -> None:
    """Two want the name of a dead writer. The one that looked first removes last."""
    web = die_at(0.5)
    slow, quick = made(web), made(web)

    def before(op: str, path: str) -> None:
        if op == "DELETE":
            web.before = lambda op, path: None
            quick.create(PATH, record("quick"))

    web.before = before
    with pytest.raises(ExistsError):
        slow.create(PATH, record("slow"))
    assert slow.read(PATH) == record("quick")


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_writer_that_hears_nothing_finds_out(share: float) -> None:
    web = FakeHdfs()
    accidents = iter([Accident(share, True, dies=False)])
    web.accident = lambda op, path: next(accidents, None)
    assert create_once(made(web), PATH, record("a"), pause=no_pause) == record("a")
    assert made(web).read(PATH) == record("a")


def test_a_heartbeat_that_is_written_over_is_not_missed() -> None:
    web = FakeHdfs()
    store = made(web)
    store.put(PATH, record("a"))
    inside, seen = threading.Event(), threading.Event()

    def before(op: str, path: str) -> None:
        if op == "DATA":
            inside.set()
            assert seen.wait(10)

    web.before = before
    thread = threading.Thread(target=lambda: store.put(PATH, record("b")))
    thread.start()
    assert inside.wait(10)
    looks = itertools.count()
    reader = HdfsStore(
        "hdfs://namenode/root", pause=lambda _: next(looks) > 1 and (seen.set(), thread.join(10)), web=web
    )
    assert reader.read(PATH) == record("b")


def test_a_download_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    web = FakeHdfs()
    made(web).put("job/shared/a", b"x" * 100)
    short = made(web)
    short._pieces = lambda *_: iter([b"x" * 40])  # type: ignore[method-assign]
    with refused(UnavailableError, "40 of 100 bytes came"):
        short.download("job/shared/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_name_that_hdfs_has_not_is_refused() -> None:
    with refused(UsageError, "HDFS has no names with ':'"):
        made(FakeHdfs()).put("job/a:b", b"")


def test_a_store_is_never_pickled() -> None:
    with pytest.raises(TypeError, match="holds credentials"):
        pickle.dumps(made(FakeHdfs()))


def test_what_hdfs_refuses_is_told_in_one_sentence() -> None:
    def before(op: str, path: str) -> None:
        raise HdfsAnswerError("AccessControlException", "Permission denied: user=eve, access=WRITE")

    web = FakeHdfs(before=before)
    calls: tuple[Callable[[], object], ...] = (
        lambda: made(web).create(PATH, b"x"),
        lambda: made(web).read(PATH),
        lambda: made(web).list(""),
        lambda: made(web).delete([PATH]),
        lambda: made(web).put(PATH, b"x"),
    )
    for call in calls:
        with refused(UnavailableError, "hdfs://namenode/root", "user=eve") as error:
            call()
        assert "\n" not in str(error.value)

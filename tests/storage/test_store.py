"""What every store does, whatever it is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UsageError
from stateflow.storage import objects
from stateflow.storage.probe import probe
from stateflow.storage.store import Entry, ExistsError, Store, create_once
from tests.refusals.refusal import refused


def paths(store: Store, prefix: str) -> list[str]:
    return [entry.path for entry in store.list(prefix)]


def test_what_was_created_can_be_read(store: Store) -> None:
    store.create("job/chk-00000001/_pending", b"record\x00\xff")
    assert store.read("job/chk-00000001/_pending") == b"record\x00\xff"


def test_an_empty_body_is_a_body(store: Store) -> None:
    store.create("job/deleted", b"")
    assert store.read("job/deleted") == b""
    with pytest.raises(ExistsError):
        store.create("job/deleted", b"x")


def test_a_second_create_is_refused_and_the_first_body_stands(store: Store) -> None:
    store.create("job/epochs/00000001", b"first")
    with pytest.raises(ExistsError):
        store.create("job/epochs/00000001", b"second")
    assert store.read("job/epochs/00000001") == b"first"


def test_a_path_can_be_created_again_after_it_was_deleted(store: Store) -> None:
    store.create("job/pins/a", b"1")
    store.delete(["job/pins/a"])
    store.create("job/pins/a", b"2")
    assert store.read("job/pins/a") == b"2"


def test_put_replaces(store: Store) -> None:
    store.put("job/control/heartbeat-00000001", b"1")
    store.put("job/control/heartbeat-00000001", b"22")
    assert store.read("job/control/heartbeat-00000001") == b"22"
    assert store.list("job/") == [Entry("job/control/heartbeat-00000001", 2)]


def test_a_missing_object_is_named_with_its_root(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"job/job does not exist in \w+://"):
        store.read("job/job")
    with pytest.raises(NotFoundError, match=r"job/shared/x does not exist in \w+://"):
        store.download("job/shared/x", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_was_uploaded_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    content = bytes(range(256)) * 90_000  # 23 MB: more than two parts
    (tmp_path / "mine").write_bytes(content)
    store.upload(tmp_path / "mine", "job/shared/e1-c1-a.sst")
    store.download("job/shared/e1-c1-a.sst", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert store.list("job/shared/") == [Entry("job/shared/e1-c1-a.sst", len(content))]


def test_an_empty_file_can_be_uploaded(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    store.upload(tmp_path / "mine", "job/shared/e1-c1-empty")
    store.download("job/shared/e1-c1-empty", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b""
    with refused(NotFoundError, "cannot be uploaded"):
        store.upload(tmp_path / "none", "job/shared/e1-c1-none")
    assert store.list("") == [Entry("job/shared/e1-c1-empty", 0)]


def test_an_upload_can_be_repeated_when_its_answer_was_lost(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"a state")
    store.upload(tmp_path / "mine", "job/shared/e1-c1-a.sst")
    store.upload(tmp_path / "mine", "job/shared/e1-c1-a.sst")
    assert store.read("job/shared/e1-c1-a.sst") == b"a state"


def test_a_download_never_writes_into_a_file_that_is_there(store: Store, tmp_path: Path) -> None:
    store.put("job/shared/a", b"stored")
    (tmp_path / "taken").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        store.download("job/shared/a", tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"precious"


def test_a_download_into_a_missing_folder_does_not_blame_the_store(store: Store, tmp_path: Path) -> None:
    store.put("job/shared/a", b"stored")
    with pytest.raises(FileNotFoundError):
        store.download("job/shared/a", tmp_path / "no" / "such" / "target")


@pytest.mark.slow
def test_a_copy_is_an_object_of_its_own(store: Store, tmp_path: Path) -> None:
    content = bytes(range(256)) * 90_000
    (tmp_path / "mine").write_bytes(content)
    store.upload(tmp_path / "mine", "job/shared/e1-c1-a.sst")
    store.copy("job/shared/e1-c1-a.sst", "job/shared/e2-c9-b.sst")
    store.delete(["job/shared/e1-c1-a.sst"])
    assert store.list("") == [Entry("job/shared/e2-c9-b.sst", len(content))]
    store.download("job/shared/e2-c9-b.sst", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_a_copy_can_be_repeated_when_its_answer_was_lost(store: Store) -> None:
    store.put("job/shared/a", b"a state")
    store.put("job/shared/empty", b"")
    for _ in range(2):
        store.copy("job/shared/a", "job/shared/b")
        store.copy("job/shared/empty", "job/shared/empty2")
    assert store.read("job/shared/b") == store.read("job/shared/a") == b"a state"
    assert store.read("job/shared/empty2") == b""


def test_a_copy_of_nothing_names_what_is_missing_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(NotFoundError, match=r"job/shared/a does not exist in \w+://"):
        store.copy("job/shared/a", "job/shared/b")
    assert store.list("") == []


def test_a_range_is_read_and_ends_where_the_object_ends(store: Store) -> None:
    store.put("job/shared/a", b"0123456789")
    store.put("job/shared/empty", b"")
    assert store.read_range("job/shared/a", 3, 4) == b"3456"
    assert store.read_range("job/shared/a", 0, 10) == b"0123456789"
    assert store.read_range("job/shared/a", 8, 10) == b"89"
    assert store.read_range("job/shared/a", 10, 1) == b""
    assert store.read_range("job/shared/a", 99, 1) == b""
    assert store.read_range("job/shared/a", 3, 0) == b""
    assert store.read_range("job/shared/empty", 0, 5) == b""
    for length in (0, 5):
        with pytest.raises(NotFoundError, match=r"job/shared/b does not exist in \w+://"):
            store.read_range("job/shared/b", 0, length)


def test_folders_are_named_one_level_at_a_time(store: Store) -> None:
    for path in (
        "_savepoints/b/one/_metadata",
        "_savepoints/b/one/state/1",
        "_savepoints/a/two/_metadata",
        "x",
    ):
        store.put(path, b"x")
    store.put("_savepoints/file", b"x")
    assert store.folders("") == ["_savepoints"]
    assert store.folders("_savepoints/") == ["a", "b"]
    assert store.folders("_savepoints/b/") == ["one"]
    assert store.folders("_savepoints/b/one/state/") == []
    assert store.folders("nobody/") == []
    assert store.folders("x/") == []
    for prefix in ("_savepoints", "../", "/", "a//"):
        with refused(UsageError, "inside a checkpoint root"):
            store.folders(prefix)


def test_listing_goes_by_prefix_of_names_not_by_folder(store: Store) -> None:
    for path in (
        "job/chk-00000009/_pending",
        "job/chk-00000010/_metadata",
        "job/chk-00000010/_pending",
        "job/chk",
        "job/chk-",
        "job/control/stop-00000001",
        "job/job",
        "job/shared/e1-c1-chk-x.sst",
        "job2/chk-00000001/_pending",
        "jo/chk-00000001/_pending",
    ):
        store.put(path, b"x")
    records = ["job/chk-00000009/_pending", "job/chk-00000010/_metadata", "job/chk-00000010/_pending"]
    assert paths(store, "job/chk-") == ["job/chk-", *records]
    assert paths(store, "job/chk-00000010/") == records[1:]
    assert paths(store, "job/chk-00000010/_p") == records[2:]
    assert paths(store, "job/chk-0000000") == records[:1]
    assert paths(store, "job/j") == ["job/job"]
    assert paths(store, "job2") == ["job2/chk-00000001/_pending"]
    assert len(paths(store, "")) == 10
    assert len(paths(store, "jo")) == 10
    assert paths(store, "nobody/") == []
    assert paths(store, "job/chk-00000010/_pending/") == []


@pytest.mark.slow
def test_a_listing_is_in_order_and_whole_over_many_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the library, and by the servers of S3, of Google and (`tests/hdfs_servers.py`) of HDFS."""
    monkeypatch.setattr(objects, "_PAGE", 50)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "40")
    names = [f"job/chk-{n:08d}/_pending" for n in range(1, 123)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(store.put, name, b"1") for name in names]:
            done.result()
    store.put("job/shared/e1-c1-a.sst", b"1")
    assert paths(store, "job/chk-") == names
    store.delete(names)
    assert paths(store, "") == ["job/shared/e1-c1-a.sst"]


def test_deleting_is_idempotent_and_carries_on_after_a_missing_path(store: Store) -> None:
    names = [f"job/shared/{n:02d}" for n in range(30)]  # more than a client deletes at a time
    for name in (*names, "job/shared/d"):
        store.put(name, b"x")
    store.delete(["job/shared/missing", *names])
    store.delete(names[:1])
    store.delete([])
    assert paths(store, "") == ["job/shared/d"]


@pytest.mark.parametrize(
    "path", ["../out", "job/../../out", "/etc/passwd", "", "job//x", "job/./x", "job/", "a\\b"]
)
def test_no_path_leaves_the_root(store: Store, path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for call in (
        lambda: store.read(path),
        lambda: store.create(path, b"x"),
        lambda: store.put(path, b"x"),
        lambda: store.upload(tmp_path / "file", path),
        lambda: store.download(path, tmp_path / "new"),
        lambda: store.copy(path, "job/shared/a"),
        lambda: store.copy("job/shared/a", path),
        lambda: store.read_range(path, 0, 1),
        lambda: store.delete([path]),
    ):
        with pytest.raises(UsageError, match="not a path inside a checkpoint root"):
            call()


@pytest.mark.parametrize("prefix", ["/", "../", "job/../", "/etc/", "job//", ".."])
def test_no_listing_leaves_the_root(store: Store, prefix: str) -> None:
    with refused(UsageError, "inside a checkpoint root"):
        store.list(prefix)


def test_of_many_who_create_one_path_at_once_exactly_one_wins(store: Store) -> None:
    racers, rounds = 8, 12
    won: list[list[bytes]] = [[] for _ in range(rounds)]
    start = threading.Barrier(racers)

    def race(number: int) -> None:
        for turn in range(rounds):
            start.wait()
            try:
                store.create(f"job/chk-{turn:08d}/_pending", b"racer %d" % number)
            except ExistsError:
                continue
            won[turn].append(b"racer %d" % number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(winners) for winners in won] == [1] * rounds
    assert [store.read(f"job/chk-{turn:08d}/_pending") for turn in range(rounds)] == [w[0] for w in won]


def test_all_who_create_once_at_one_path_agree_on_what_stands_there(store: Store) -> None:
    start = threading.Barrier(6)
    seen: list[bytes] = []

    def race(number: int) -> None:
        start.wait()
        seen.append(create_once(store, "job/epochs/00000001", b"run %d" % number))

    threads = [threading.Thread(target=race, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {store.read("job/epochs/00000001")}
    assert len(seen) == 6


def test_a_sound_store_passes_the_probe_and_keeps_nothing_of_it(store: Store, ids: Callable[[], str]) -> None:
    probe(store, ids)
    assert store.list("") == []


def test_a_store_shows_where_it_is(store: Store) -> None:
    assert store.url.startswith(
        ("file:///", "memory://", "s3://test-", "gs://test-", "az://test-", "hdfs://")
    )
    assert (store.local_root is not None) == store.url.startswith("file://")

"""Moving files between stores: which way they go, what is compared, and what a failure leaves."""

from __future__ import annotations

import errno
import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash

from stateflow.errors import CorruptError, NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.storage import transfer as module
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from stateflow.storage.transfer import Transfer, at_once, read_through, transfer
from tests.fake_hdfs import FakeHdfs
from tests.jobs.files import body, objects, stored
from tests.memory_store import Call, MemoryStore
from tests.refusals.refusal import refused
from tests.servers import AZURE, NEEDS_AZURITE, ObjectServer
from tests.storage.forging import twin
from tests.storage.scratch_folders import in_scratch

Make = Callable[[str], Store]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path, other_disk: Path) -> Make:
    """An empty store of a kind; two of a kind have nothing in common but the disk or bucket."""
    numbers = itertools.count()
    buckets: dict[str, str] = {}

    def made(kind: str) -> Store:
        name = f"root{next(numbers)}"
        if kind == "local":
            return LocalStore(tmp_path / name)
        if kind == "other disk":
            return LocalStore(other_disk / name)
        if kind == "memory":
            return MemoryStore(name)
        server: ObjectServer = request.getfixturevalue(kind.removeprefix("another "))
        if kind not in buckets:
            buckets[kind] = server.new_root()
        return open_store(f"{buckets[kind]}/{name}", server.options)

    return made


def items(source: Store, sizes: Sequence[int]) -> list[Transfer]:
    found = []
    for n, size in enumerate(sizes):
        ref = stored(source, f"job/shared/{n}.sst", body(f"file{n}", size))
        found.append(
            Transfer(source, ref.path, f"state/a-{n:06d}.sst", ref.size, ref.xxh3, sha256=ref.sha256)
        )
    return found


def carried(items: Sequence[Transfer], target: Store) -> bool:
    return all(
        target.read(item.target_path) == item.source.read_range(item.source_path, item.offset or 0, item.size)
        for item in items
    )


WAYS = [
    ("local", "local"),
    ("local", "other disk"),
    ("memory", "memory"),
    ("memory", "local"),
    ("local", "memory"),
    ("s3", "s3"),
    ("s3", "another s3"),
    ("s3", "local"),
    ("local", "s3"),
    ("gcs", "gcs"),
    ("azure", "azure"),
    ("s3", "azure"),
]


@pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(a, b, id=f"{a} to {b}", marks=NEEDS_AZURITE if "azure" in (a, b) else ()) for a, b in WAYS],
)
def test_files_arrive_whole_whichever_way_they_go(
    source: str, target: str, make: Make, tmp_path: Path
) -> None:
    here, there = make(source), make(target)
    todo = items(here, [0, 1, 5000, 3_000_000])
    packed = stored(here, "job/shared/pack", b"zero one two")
    part = stored(here, "job/shared/one", b"one")
    todo.append(Transfer(here, packed.path, "state/a-000009.sst", 3, part.xxh3, offset=5))
    done: list[int] = []
    transfer(todo, there, scratch=tmp_path / "scratch", progress=done.append, verify=True)
    assert carried(todo, there)
    assert sorted(done) == sorted(item.size for item in todo)
    assert in_scratch(tmp_path / "scratch") == []
    assert sorted(objects(there)) == sorted(item.target_path for item in todo)


def test_on_one_disk_files_are_hard_links(make: Make, tmp_path: Path) -> None:
    here, there = make("local"), make("local")
    (item,) = items(here, [5000])
    transfer([item], there, scratch=tmp_path / "scratch", verify=True)
    assert here.local_root is not None
    assert there.local_root is not None
    assert (here.local_root / item.source_path).samefile(there.local_root / item.target_path)


@pytest.mark.parametrize("target", ["local", "other disk", "memory"])
def test_what_a_symbolic_link_points_to_does_not_arrive(target: str, make: Make, tmp_path: Path) -> None:
    here, there = make("local"), make(target)
    (item,) = items(here, [5000])
    assert here.local_root is not None
    linked, owned = here.local_root / item.source_path, tmp_path / "archive.sst"
    linked.rename(owned)
    linked.symlink_to(owned)
    with refused(CorruptError, f"{item.source_path} is a symbolic link"):
        transfer([item], there, scratch=tmp_path / "scratch", verify=True)
    assert objects(there) == {}


@pytest.mark.parametrize("target", ["local", "other disk", "memory"])
def test_a_file_arrives_no_more_readable_than_it_was(target: str, make: Make, tmp_path: Path) -> None:
    here, there = make("local"), make(target)
    (item,) = items(here, [5000])
    assert here.local_root is not None
    (here.local_root / item.source_path).chmod(0o600)
    transfer([item], there, scratch=tmp_path / "scratch", verify=True)
    if there.local_root is not None:
        assert (there.local_root / item.target_path).stat().st_mode & 0o777 == 0o600


def test_inside_one_store_nothing_is_read(tmp_path: Path) -> None:
    store = MemoryStore()
    todo = items(store, [10, 20])
    store.calls.clear()
    transfer(todo, store, scratch=tmp_path, verify=True, threads=1)
    assert [(c.verb, c.path) for c in store.calls] == [
        ("copy", "state/a-000000.sst"),
        ("copy", "state/a-000001.sst"),
        ("list", "state/a-00000"),
    ]


def test_inside_one_bucket_nothing_is_read(make: Make, s3: ObjectServer, tmp_path: Path) -> None:
    here, there = make("s3"), make("s3")
    todo = items(here, [10, 20, 30])
    s3.requests.clear()
    transfer(todo, there, scratch=tmp_path, verify=True)
    assert sorted(method for method, _ in s3.requests) == ["GET", "PUT", "PUT", "PUT"]
    listed = [path for method, path in s3.requests if method == "GET"]
    assert all("list-type" in path for path in listed)


@pytest.mark.parametrize(("most", "level"), [(30, "WARNING"), (31, "INFO")])
@pytest.mark.parametrize("root", ["hdfs://namenode/checkpoints", "hdfs://namenode/savepoints"])
def test_what_hdfs_does_not_copy_itself_is_counted_in_the_log(
    root: str,
    most: int,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_WORTH_A_WARNING", most)
    caplog.set_level("INFO")
    web = FakeHdfs()
    here = HdfsStore("hdfs://namenode/checkpoints", web=web)
    there = here if root == here.url else HdfsStore(root, web=web)
    todo = items(here, [10, 20])
    transfer(todo, there, scratch=tmp_path, verify=True)
    assert carried(todo, there)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            level,
            f"copied 30 bytes from {here.url} to {root} through this machine, since no store copied them itself",
        )
    ]


@pytest.mark.parametrize("kind", ["local", "s3", "gcs", AZURE])
def test_what_the_store_copies_itself_needs_no_line(
    kind: str, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stateflow")
    here, there = make(kind), make(kind)
    transfer(items(here, [10, 20]), there, scratch=tmp_path)
    assert caplog.messages == []


@pytest.mark.parametrize("target", ["memory", "other disk"])
@pytest.mark.parametrize("source", ["memory", "local"])
def test_a_flipped_bit_is_found_on_the_way(source: str, target: str, make: Make, tmp_path: Path) -> None:
    here, there = make(source), make(target)
    todo = items(here, [100])
    here.put(todo[0].source_path, b"x" * 100)
    with refused(CorruptError, f"{here.url}/job/shared/0.sst", "size and checksum"):
        transfer(todo, there, scratch=tmp_path / "scratch", verify=True)
    assert objects(there) == {}
    transfer(todo, there, scratch=tmp_path / "scratch", verify=False)
    assert in_scratch(tmp_path / "scratch") == []


def test_a_flipped_bit_inside_a_container_is_found_on_the_way(tmp_path: Path) -> None:
    here, there = MemoryStore("here"), MemoryStore("there")
    part = stored(here, "part", b"one")
    here.put("pack", b"zero oXe two")
    item = Transfer(here, "pack", "state/a-000001.sst", 3, part.xxh3, offset=5)
    with refused(CorruptError, "pack does not have"):
        transfer([item], there, scratch=tmp_path, verify=True)
    transfer([item], there, scratch=tmp_path, verify=False)
    assert there.read(item.target_path) == b"oXe"
    short = Transfer(here, "pack", "state/a-000002.sst", 30, part.xxh3, offset=5)
    with pytest.raises(CorruptError, match="pack ends after 12 bytes instead of 35"):
        transfer([short], there, scratch=tmp_path, verify=False)


@pytest.mark.parametrize("kept", ["its own file", "a container"])
@pytest.mark.parametrize(
    ("source", "target"),
    [("local", "other disk"), ("local", "memory"), ("memory", "local"), ("memory", "memory")],
)
def test_other_bytes_with_the_same_xxh3_are_refused_wherever_bytes_pass_through(
    source: str, target: str, kept: str, make: Make, tmp_path: Path
) -> None:
    here, there = make(source), make(target)
    ours = b"the balance of this user is 1000"
    here.put(
        "job/shared/a.sst",
        b"pack:" + twin(ours, b"it is 1000000000")
        if kept == "a container"
        else twin(ours, b"it is 1000000000"),
    )
    item = Transfer(
        here,
        "job/shared/a.sst",
        "state/a-000001.sst",
        len(ours),
        xxhash.xxh3_64_hexdigest(ours),
        offset=5 if kept == "a container" else None,
        sha256=hashlib.sha256(ours).digest(),
    )
    with refused(CorruptError, "a.sst", "size and checksum"):
        transfer([item], there, scratch=tmp_path / "scratch")
    assert objects(there) == {}
    transfer([item], there, scratch=tmp_path / "scratch", verify=False)
    assert carried([item], there)


@pytest.mark.parametrize("target", ["local", "memory", "same"])
def test_another_size_is_found_even_where_nothing_is_read(target: str, make: Make, tmp_path: Path) -> None:
    here = make("local")
    there = here if target == "same" else make(target)
    todo = items(here, [100])
    here.put(todo[0].source_path, b"x" * 99)
    with refused(CorruptError, "0.sst", "99 bytes instead of 100", "`stateflow verify`"):
        transfer(todo, there, scratch=tmp_path / "scratch", verify=False)


@pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(a, b, id=f"{a} to {b}", marks=NEEDS_AZURITE if "azure" in (a, b) else ()) for a, b in WAYS],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_is_named(source: str, target: str, verify: bool, make: Make, tmp_path: Path) -> None:
    here, there = make(source), make(target)
    item = Transfer(here, "job/shared/gone", "state/a-000001.sst", 5, "00")
    with refused(NotFoundError, "job/shared/gone"):
        transfer([item], there, scratch=tmp_path / "scratch", verify=verify)
    assert objects(there) == {}


def test_what_is_deleted_meanwhile_is_noticed(tmp_path: Path) -> None:
    store = MemoryStore()
    todo = items(store, [10, 20])

    def careless(call: Call) -> None:
        if call.verb == "list":
            store.delete(["state/a-000001.sst"])

    store.before = careless
    with refused(StateflowError, "state/a-000001.sst", "deleted while it was stored"):
        transfer(todo, store, scratch=tmp_path, verify=True)


@pytest.mark.parametrize("target", ["same", "local"])
def test_no_path_of_a_snapshot_leads_out_of_it(target: str, make: Make, tmp_path: Path) -> None:
    here = make("local")
    there = here if target == "same" else make(target)
    (tmp_path / "secret").write_bytes(b"secret")
    item = Transfer(here, "../secret", "state/a-000001.sst", 6, "")
    with refused(UsageError, "not a path inside"):
        transfer([item], there, scratch=tmp_path / "scratch", verify=False)
    assert objects(there) == {}


def test_sizes_are_compared_without_listing_the_whole_folder(tmp_path: Path) -> None:
    store = MemoryStore()
    todo = items(store, [10, 20])
    store.calls.clear()
    moved = [
        Transfer(store, todo[0].source_path, "job/shared/e7-c9-a.sst", 10, todo[0].xxh3),
        Transfer(store, todo[1].source_path, "job/shared/e7-c9-b.sst", 20, todo[1].xxh3),
        Transfer(store, todo[1].source_path, "elsewhere", 20, todo[1].xxh3),
    ]
    transfer(moved, store, scratch=tmp_path, verify=True, threads=1)
    assert [c.path for c in store.calls if c.verb == "list"] == ["job/shared/e7-c9-", "elsewhere"]


def test_nothing_is_a_transfer_too(tmp_path: Path) -> None:
    transfer([], MemoryStore(), scratch=tmp_path / "scratch", verify=True)


def test_a_full_scratch_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = MemoryStore("here"), MemoryStore("there")
    todo = items(here, [10])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryStore, "download", full)
    with refused(UnavailableError, f"written to {tmp_path}", "No space left", "free space there"):
        transfer(todo, there, scratch=tmp_path, verify=True)
    assert in_scratch(tmp_path) == []


class TestManyAtOnce:
    def test_after_a_failure_no_other_is_begun_and_none_is_under_way(self) -> None:
        begun: list[int] = []
        ended: list[int] = []
        another = threading.Event()

        def work(n: int) -> None:
            begun.append(n)
            if n == 0:
                another.wait(0.1)  # for one that is begun although another has failed
                ended.append(n)
            elif n == 1:
                raise UnavailableError("refused")
            else:
                another.set()

        with refused(UnavailableError, "refused"):
            at_once(work, range(100), threads=2)
        assert (sorted(begun), ended) == ([0, 1], [0])

    def test_one_after_another_stops_at_the_first_failure(self) -> None:
        begun: list[int] = []

        def work(n: int) -> None:
            begun.append(n)
            if n == 1:
                raise UnavailableError("refused")

        with pytest.raises(UnavailableError):
            at_once(work, range(5), threads=1)
        assert begun == [0, 1]

    def test_what_is_done_is_told_from_one_thread_at_a_time(self) -> None:
        total = 0
        inside = threading.Lock()

        def done(n: int) -> None:
            nonlocal total
            assert inside.acquire(blocking=False)
            total += n
            inside.release()

        at_once(lambda n: None, range(200), 8, done)
        assert total == 199 * 100


def test_nothing_is_under_way_any_more_after_a_signal_in_the_start_of_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool does not wait for such a thread: a savepoint that was called off would get files behind its clean-up."""
    start, begun, done = threading.Thread.start, threading.Event(), list[int]()

    def work(item: int) -> None:
        begun.set()
        threading.Event().wait(0.2)
        done.append(item)

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert begun.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        at_once(work, [1, 2])
    assert done == [1]


def test_a_large_file_is_read_in_pieces() -> None:
    store = MemoryStore()
    ref = stored(store, "a", body("a", 1000))
    pieces = [bytes(p) for p in read_through(store, "a", 0, 1000, ref.xxh3, chunk=300)]
    assert [len(p) for p in pieces] == [300, 300, 300, 100]
    assert list(read_through(store, "a", 0, 0, "")) == []


def test_the_folder_of_a_target_need_not_exist_to_know_its_disk(tmp_path: Path, other_disk: Path) -> None:
    assert module.copy_inside(LocalStore(tmp_path), LocalStore(tmp_path / "not" / "yet")) is not None
    assert module.copy_inside(LocalStore(tmp_path), LocalStore(other_disk / "not" / "yet")) is None

"""The host-local cache: hits, misses, damage, eviction, and many processes at once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import CorruptError, NotFoundError, UnavailableError, UsageError
from stateflow.format.records import FileRef
from stateflow.storage import cache as cache_module
from stateflow.storage.cache import FileCache
from stateflow.storage.files import checksum, inline, upload_file
from stateflow.storage.local import LocalStore
from stateflow.storage.store import TEMP, Store
from tests.memory_store import Call, MemoryStore
from tests.refusals.refusal import refused

BIG = 1 << 30


def stored(store: Store, folder: Path, name: str, content: bytes) -> FileRef:
    (folder / name).write_bytes(content)
    return upload_file(store, f"job/shared/{name}", folder / name, name)


def entries(cache: FileCache) -> set[str]:
    return {p.name for p in cache.folder.iterdir() if not p.name.startswith(".")}


def named(cache: FileCache, store: Store, ref: FileRef) -> Path:
    """Where the cache keeps it, told by a cache elsewhere that has nothing else."""
    scratch = cache.folder.parent / "told"
    other = FileCache(scratch, BIG)
    try:
        return cache.folder / other.fetch(store, ref).name
    finally:
        shutil.rmtree(scratch)


def counters(cache: FileCache) -> tuple[int, int, int]:
    return cache.hits, cache.misses, cache.bytes_fetched


def test_a_file_is_fetched_once_and_found_after(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state" * 100)
    assert cache.fetch(store, ref).read_bytes() == b"state" * 100
    assert entries(cache) == {cache.fetch(store, ref).name}
    assert counters(cache) == (1, 1, 500)
    assert [c.verb for c in store.calls] == ["upload", "download"]


def test_equal_content_under_two_paths_is_one_entry(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    first, second = (stored(store, tmp_path, name, b"same") for name in "ab")
    assert cache.fetch(store, first) == cache.fetch(store, second)
    assert counters(cache) == (1, 1, 4)


def test_a_file_inside_a_record_is_materialised_without_the_store(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    assert cache.fetch(store, inline("CURRENT", b"MANIFEST-7\n")).read_bytes() == b"MANIFEST-7\n"
    assert cache.fetch(store, inline("EMPTY", b"")).read_bytes() == b""
    assert store.calls == []
    assert cache.bytes_fetched == 0


def contained(store: Store, *contents: bytes) -> list[FileRef]:
    store.put("state/a-000001.pack", b"".join(contents))
    sizes = [len(c) for c in contents]
    return [
        FileRef(str(n), len(c), checksum_of(c), "state/a-000001.pack", offset=sum(sizes[:n]))
        for n, c in enumerate(contents)
    ]


def checksum_of(content: bytes) -> str:
    return inline("", content).xxh3


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_file_in_a_container_is_fetched_without_the_others(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "root")
    cache = FileCache(tmp_path / "cache", BIG)
    refs = contained(store, b"first", b"", b"the third one")
    assert cache.fetch(store, refs[2]).read_bytes() == b"the third one"
    assert cache.fetch(store, refs[1]).read_bytes() == b""
    assert cache.link(store, refs[0], tmp_path / "mine").read_bytes() == b"first"
    assert counters(cache) == (0, 3, 18)
    if isinstance(store, MemoryStore):
        assert {c.verb for c in store.calls} == {"put", "range"}


@pytest.mark.parametrize("damaged", [b"firSt", b"fir", None], ids=["bit flip", "truncated", "missing"])
def test_damage_in_a_container_is_named_and_never_cached(damaged: bytes | None, tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    _, ref = contained(store, b"zero ", b"first")
    store.delete([ref.path])
    if damaged is not None:
        store.put(ref.path, b"zero " + damaged)
    with refused(CorruptError, "memory://test/state/a-000001.pack", "verify"):
        cache.fetch(store, ref)
    assert entries(cache) == set()


def test_a_file_that_was_just_written_is_found_by_the_next_batch(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    cache.add(store, ref, tmp_path / "a")
    cache.add(store, ref, tmp_path / "a")
    (tmp_path / "a").unlink()
    assert cache.fetch(store, ref).read_bytes() == b"state"
    assert counters(cache) == (1, 0, 0)
    with refused(NotFoundError, "cannot be added"):
        cache.add(store, FileRef("b", 3, "00", "job/shared/b"), tmp_path / "b")


def test_from_a_local_root_nothing_is_copied(tmp_path: Path) -> None:
    store, cache = LocalStore(tmp_path / "root"), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    assert cache.fetch(store, ref).samefile(tmp_path / "root/job/shared/a")


def test_nothing_in_it_or_out_of_it_is_a_symbolic_link(tmp_path: Path) -> None:
    store, cache = LocalStore(tmp_path / "root"), FileCache(tmp_path / "cache", BIG)
    refs = [stored(store, tmp_path, name, name.encode()) for name in ("fetched", "added", "entry")]
    entry = named(cache, store, refs[2])
    for name in ("fetched", "entry"):
        at = tmp_path / "root/job/shared" / name
        at.rename(tmp_path / f"{name}-owned")
        at.symlink_to(tmp_path / f"{name}-owned")
    (tmp_path / "link").symlink_to(tmp_path / "added")
    cache.add(store, refs[1], tmp_path / "link")
    with refused(CorruptError, "fetched is a symbolic link"):
        cache.fetch(store, refs[0])
    entry.symlink_to(tmp_path / "entry-owned")
    got = [cache.link(store, ref, tmp_path / f"got{ref.name}") for ref in refs[1:]]
    for name in ("entry-owned", "added"):
        (tmp_path / name).unlink()
    assert [path.read_bytes() for path in got] == [b"added", b"entry"]


def test_two_processes_that_fill_one_entry_at_once_leave_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = LocalStore(tmp_path / "root"), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    monkeypatch.setattr(FileCache, "_touch", lambda *_: False)
    for _ in range(2):  # the second renames between two links to one file, which does nothing and keeps both
        cache.fetch(store, ref)
    assert [p.name for p in cache.folder.iterdir() if p.name.startswith(".tmp-")] == []


def test_a_cache_on_another_disk_copies(tmp_path: Path, other_disk: Path) -> None:
    store, cache = LocalStore(tmp_path / "root"), FileCache(other_disk / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    assert cache.link(store, ref, tmp_path / "private").read_bytes() == b"state"
    new = stored(store, tmp_path, "b", b"new")
    cache.add(store, new, tmp_path / "b")
    assert named(cache, store, new).read_bytes() == b"new"


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"stXte", "does not match its checksum"),
        (b"stat", "has 4 bytes instead of 5"),
        (b"", "has 0 bytes instead of 5"),
        (None, "is missing"),
    ],
    ids=["bit flip", "truncated", "emptied", "missing"],
)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_damage_in_the_store_is_named_and_never_cached(
    damaged: bytes | None, words: str, kind: str, tmp_path: Path
) -> None:
    store: Store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "root")
    cache = FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    store.delete([ref.path])
    if damaged is not None:
        store.put(ref.path, damaged)
    for _ in range(2):
        with refused(CorruptError, f"{store.url}/job/shared/a {words}", "verify", "restore"):
            cache.fetch(store, ref)
    assert entries(cache) == set()
    assert not [p for p in cache.folder.iterdir() if p.name.startswith(".tmp-")]


def test_a_missing_file_of_a_savepoint_is_named_by_the_savepoint(tmp_path: Path) -> None:
    ref = FileRef("a", 5, "00", "files/a", base="s3://bucket/savepoints/one")
    with refused(CorruptError, "s3://bucket/savepoints/one/files/a", "is missing"):
        FileCache(tmp_path, BIG).fetch(MemoryStore(), ref)


def test_a_truncated_entry_is_fetched_again(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    os.truncate(cache.fetch(store, ref), 2)
    assert cache.fetch(store, ref).read_bytes() == b"state"
    assert counters(cache) == (0, 2, 10)


def test_a_store_out_of_reach_is_not_damage(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")

    def refuse(call: object) -> None:
        raise UnavailableError("no route")

    store.before = refuse
    with refused(UnavailableError, "no route"):
        cache.fetch(store, ref)


def test_the_least_recently_used_go_first_and_the_limit_holds(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", 1000)
    refs = [stored(store, tmp_path, str(n), b"%03d" % n * 50) for n in range(6)]
    for age, ref in enumerate(refs):
        entry = cache.fetch(store, ref)
        os.utime(entry, (1000 + age, 1000 + age))
    assert len(entries(cache)) == 6  # 900 bytes
    cache.fetch(store, refs[0])
    more = stored(store, tmp_path, "more", b"mor" * 50)
    cache.fetch(store, more)
    left = entries(cache)
    assert sum((cache.folder / name).stat().st_size for name in left) <= 900
    assert named(cache, store, refs[0]).name in left
    assert named(cache, store, more).name in left
    assert named(cache, store, refs[1]).name not in left


def test_a_file_bigger_than_the_cache_is_served_all_the_same(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", 10)
    ref = stored(store, tmp_path, "a", b"x" * 100)
    assert cache.fetch(store, ref).stat().st_size == 100
    assert cache.link(store, ref, tmp_path / "mine").stat().st_size == 100


def test_a_cache_counts_what_other_processes_put_in(tmp_path: Path) -> None:
    store = MemoryStore()
    caches = [FileCache(tmp_path / "cache", 10_000) for _ in range(4)]
    for n in range(60):
        caches[n % 4].fetch(store, stored(store, tmp_path, str(n), b"%04d" % n * 150))
    assert sum((caches[0].folder / name).stat().st_size for name in entries(caches[0])) <= 10_000 + 4 * 625


def test_an_entry_evicted_between_fetch_and_link_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    real = FileCache.fetch
    evicted: list[Path] = []

    def evicting(self: FileCache, store: Store, ref: FileRef) -> Path:
        entry = real(self, store, ref)
        if len(evicted) < 2:
            evicted.append(entry)
            entry.unlink()
        return entry

    monkeypatch.setattr(FileCache, "fetch", evicting)
    assert cache.link(store, ref, tmp_path / "mine").read_bytes() == b"state"
    assert cache.misses == 3


def test_a_cache_that_evicts_faster_than_one_can_link_is_gone_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    monkeypatch.setattr(FileCache, "fetch", lambda *_: tmp_path / "cache" / "evicted")
    assert cache.link(store, ref, tmp_path / "mine").read_bytes() == b"state"


def test_a_reader_keeps_its_link_when_the_entry_is_evicted_or_the_folder_deleted(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    private = tmp_path / "private"
    private.mkdir()
    opened: list[str] = []

    def store_of(base: str) -> Store:
        opened.append(base)
        return store

    fetch = cache.fetcher(store_of, private)
    mine, again = fetch(ref), fetch(ref)
    for entry in list(cache.folder.iterdir()):
        entry.unlink()
    cache.folder.rmdir()
    assert mine != again
    assert {mine.read_bytes(), again.read_bytes()} == {b"state"}
    assert {mine.parent, again.parent} == {private}
    assert opened == ["", ""]
    assert cache.fetch(store, ref).read_bytes() == b"state"
    with refused(UnavailableError, "does not exist: make it"):
        cache.link(store, ref, tmp_path / "nowhere" / "mine")


def test_what_killed_processes_left_is_removed_and_what_living_ones_write_is_not(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    folder = tmp_path / "cache"
    FileCache(folder, BIG).fetch(MemoryStore(), inline("x", b"x"))
    (folder / f".tmp-{child}-a").write_bytes(b"half")
    (folder / f".tmp-{os.getpid()}-b").write_bytes(b"half")
    FileCache(folder, BIG).fetch(MemoryStore(), inline("x", b"x"))
    assert [p.name for p in folder.iterdir() if p.name.startswith(".tmp-")] == [f".tmp-{os.getpid()}-b"]


def test_entries_from_before_a_reboot_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a power cut a file that was not fsynced may have its length and not its content.
    store, boot = MemoryStore(), tmp_path / "boot_id"
    monkeypatch.setattr(cache_module, "_BOOT_ID", boot)
    ref = stored(store, tmp_path, "a", b"state")
    boot.write_text("first\n")
    FileCache(tmp_path / "cache", BIG).fetch(store, ref).write_bytes(b"\0" * 5)
    boot.write_text("second\n")
    cache = FileCache(tmp_path / "cache", BIG)
    assert cache.fetch(store, ref).read_bytes() == b"state"
    assert FileCache(tmp_path / "cache", BIG).fetch(store, ref) == named(cache, store, ref)
    assert cache.misses == 1


@pytest.mark.parametrize("boot", ["first", "second"])
def test_what_has_not_the_form_of_its_names_is_never_deleted(
    boot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever names this folder may have meant another one.
    monkeypatch.setattr(cache_module, "_BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("first\n")
    cache = FileCache(tmp_path / "cache", 100)
    ref = inline("x", b"x" * 100)
    mine = cache.fetch(MemoryStore(), ref)
    theirs = [
        *("_metadata", "000007.sst", ".bashrc", ".boot-x", f"{mine.name}.bak", mine.name.replace("-", "_")),
        *(".tmp-1", ".tmp-99999999999-", f".tmp-x-{'0' * 32}", "notes"),
    ]
    for name in theirs:
        (cache.folder / name).write_bytes(b"theirs" * 100)
    (cache.folder / ("0" * 64 + "-5")).mkdir()
    (tmp_path / "boot_id").write_text(f"{boot}\n")
    again = FileCache(tmp_path / "cache", 100)
    for number in range(20):
        again.fetch(MemoryStore(), inline("y", bytes([number]) * 50))
    again.clear()
    assert {path.name for path in cache.folder.iterdir()} >= set(theirs)
    assert entries(again) <= {*theirs, "0" * 64 + "-5"}


@pytest.mark.parametrize("call", ["fetch", "add", "clear", "evict"])
def test_a_linked_folder_is_refused_and_nothing_behind_it_is_deleted(call: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("_metadata", "0" * 64 + "-4", ".tmp-999999999-a"):
        (elsewhere / name).write_bytes(b"keep")
    (tmp_path / "file").write_bytes(b"state")
    store = MemoryStore()
    ref = stored(store, tmp_path, "a", b"state")
    cache = FileCache(tmp_path / "cache", 1)
    if call == "evict":
        cache.fetch(store, ref)
        shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").symlink_to(elsewhere)
    calls: dict[str, Callable[[], object]] = {
        "clear": cache.clear,
        "add": lambda: cache.add(store, ref, tmp_path / "file"),
    }
    with refused(UsageError, "cache is a symbolic link or a file", "have cache_dir name the folder"):
        calls.get(call, lambda: cache.fetch(store, ref))()
    assert {
        path.name: path.read_bytes() for path in elsewhere.iterdir() if path.read_bytes() == b"keep"
    } == dict.fromkeys(("_metadata", "0" * 64 + "-4", ".tmp-999999999-a"), b"keep")


def test_a_full_disk_names_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryStore, "download", full)
    with refused(UnavailableError, f"the cache folder {cache.folder} is full"):
        cache.fetch(store, ref)


def _work(root: Path, folder: Path, private: Path, refs: list[FileRef], seed: int, failures: Any) -> None:
    import random

    store, cache, order = LocalStore(root), FileCache(folder, 40_000), random.Random(seed)
    private.mkdir()
    try:
        for n in range(300):
            ref = order.choice(refs)
            mine = cache.link(store, ref, private / str(n))
            assert checksum(mine) == (ref.size, ref.xxh3)
            mine.unlink()
            if n % 50 == seed:
                for entry in folder.iterdir():
                    entry.unlink(missing_ok=True)
    except BaseException as error:
        failures.put(repr(error))
    failures.put(None)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["same", "other"])
def test_processes_that_fetch_evict_and_wipe_at_once_all_read_what_was_stored(
    disk: str, tmp_path: Path, other_disk: Path
) -> None:
    store = LocalStore(tmp_path / "root", fsync=False)
    refs = [stored(store, tmp_path, str(n), os.urandom(4000)) for n in range(20)]
    folder = (tmp_path if disk == "same" else other_disk) / "cache"
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    workers = [
        context.Process(target=_work, args=(tmp_path / "root", folder, tmp_path / f"p{n}", refs, n, failures))
        for n in range(3)
    ]
    for worker in workers:
        worker.start()
    said: list[str | None] = []
    while said.count(None) < 3:
        said.append(failures.get(timeout=120))
    for worker in workers:
        worker.join()
    assert said == [None] * 3
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 40_000 + 3 * 4000
    assert [e.size for e in store.list("job/shared/")] == [4000] * 20


def test_a_cleared_cache_leaves_what_was_linked_and_fetches_the_rest_again(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")
    mine = cache.link(store, ref, tmp_path / "mine")
    cache.clear()
    assert entries(cache) == set()
    assert mine.read_bytes() == b"state"
    assert cache.fetch(store, ref).read_bytes() == b"state"
    assert counters(cache) == (0, 2, 10)


def test_what_was_being_fetched_when_the_cache_was_cleared_is_fetched_again(tmp_path: Path) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path / "cache", BIG)
    ref = stored(store, tmp_path, "a", b"state")

    def clears(call: Call) -> None:
        if call.verb == "download":
            store.after = None
            half = cache.folder / f"{TEMP}{os.getpid()}-half"
            half.write_bytes(b"half")
            FileCache(cache.folder, BIG).clear()
            assert list(cache.folder.glob(f"{TEMP}*")) == []

    cache.fetch(store, stored(store, tmp_path, "b", b"other"))
    store.after = clears
    assert cache.link(store, ref, tmp_path / "mine").read_bytes() == b"state"
    assert entries(cache) == {named(cache, store, ref).name}


def test_clearing_a_cache_that_is_not_there_is_nothing(tmp_path: Path) -> None:
    FileCache(tmp_path / "cache", BIG).clear()
    assert not (tmp_path / "cache").exists()

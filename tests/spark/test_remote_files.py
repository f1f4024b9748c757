"""Large state files that a host does not have: tasks read parts of them, with what that must not change."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rocksdict import Cache

import stateflow as sf
from stateflow.errors import CorruptError
from stateflow.format.layout import JobLayout, is_copy
from stateflow.format.records import FileRef, Shard
from stateflow.spark.task import remote_files, subtask
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import LargeFiles, TaskStorage, large_files_of_run
from stateflow.spark.task.subtask import Subtask, Task
from stateflow.state.backends import partial_tables, rocksdb_options
from stateflow.state.backends.choice import Backends
from stateflow.state.backends.line import Line
from stateflow.state.backends.rocksdb_options import RocksOptions
from stateflow.storage.roots import open_recorded
from tests.config.test_option_effects import options
from tests.refusals.refusal import refused
from tests.servers import ObjectServer
from tests.spark.pipelines import VISIT, Visit, Workbench, at

KEYS = 6_000
MIB = 1 << 20


def key(number: int) -> bytes:
    return b"\0%c\0\1%06d" % (number % 2, number)


@pytest.fixture(autouse=True)
def small_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts pay for the small tables of a test, as if the line were a slow one with quick answers."""
    monkeypatch.setattr(remote_files, "LARGE", 64 << 10)
    monkeypatch.setattr(partial_tables, "TAIL", 16 << 10)
    monkeypatch.setattr(Line, "measured", lambda line, requests, size, seconds: None)
    monkeypatch.setattr(Line, "probe", lambda line, spent: 0)
    # A block that this process has read before must not come from its cache.
    monkeypatch.setattr(rocksdb_options, "block_cache", Cache)
    monkeypatch.setattr(Line.__init__, "__defaults__", (1e-5, 1e6))


class Pods:
    """The batches of a job, each on a host of its own unless it says otherwise."""

    def __init__(self, folder: Path, server: ObjectServer, shards: int = 1) -> None:
        self.folder = folder
        self.url = server.make("pods")
        self.options = dict(server.options)
        first = 128 // shards
        self.shards = tuple(Shard(n * first, (n + 1) * first - 1, "rocksdb") for n in range(shards))
        self.entries: dict[bytes, bytes] = {}
        self.host = 0
        self.cache_bytes = 1 << 30
        self.slot = 0
        self.task: TaskShards

    def storage(self, large_files: LargeFiles = "parts") -> TaskStorage:
        return TaskStorage(
            root=self.url,
            job="orders",
            epoch=1,
            slot=self.slot,
            cache_dir=str(self.folder / f"cache-{self.host}"),
            cache_bytes=self.cache_bytes,
            scratch_dir=str(self.folder / "scratch"),
            storage_options=self.options,
            large_files=large_files,
        )

    def begin(self, large_files: LargeFiles = "parts", in_parts: bool = True) -> TaskShards:
        self.slot += 1
        self.task = TaskShards(
            self.shards, self.storage(large_files), Backends(RocksOptions()), -1, in_parts=in_parts
        )
        return self.task

    def batch(
        self,
        numbers: Iterator[int] | range | list[int],
        large_files: LargeFiles = "parts",
        in_parts: bool = True,
        width: int = 200,
    ) -> dict[str, float]:
        """One batch that reads these keys and writes them anew."""
        task = self.begin(large_files, in_parts)
        wanted = sorted(key(number) for number in numbers)
        for index, shard in enumerate(task.inputs):
            mine = [each for each in wanted if shard.first <= int.from_bytes(each[:2], "big") <= shard.last]
            if not mine:
                continue
            backend = task.open(index)
            assert list(backend.get_many(mine)) == [self.entries.get(each) for each in mine]
            changes = {each: random.Random(each + bytes([self.slot])).randbytes(width) for each in mine}
            backend.write(changes.items())
            self.entries.update(changes)
            task.finish(index, backend, (None, None))
        # Before the files that follow behind the batch are on their way.
        figures = task.figures()
        self.shards = task.handles()
        task.close()
        return figures

    def read(self) -> dict[bytes, bytes]:
        """All entries, on a host of its own that fetches whole files."""
        self.host += 1
        task = self.begin("whole")
        found: dict[bytes, bytes] = {}
        for index in range(len(task.inputs)):
            backend = task.open(index)
            found.update(backend.scan(b"", b"\xff"))
            task.keep(index, backend)
        task.close()
        return found

    def cached(self) -> int:
        return sum(path.stat().st_size for path in self.entries_of_cache())

    def entries_of_cache(self) -> list[Path]:
        folder = self.folder / f"cache-{self.host}"
        return [path for path in folder.glob("*-*") if path.name[0] != "."]

    @property
    def size(self) -> int:
        return sum(ref.size for shard in self.shards for ref in shard.files)


@pytest.fixture
def pods(tmp_path: Path, s3: ObjectServer) -> Pods:
    made = Pods(tmp_path, s3)
    made.batch(range(KEYS))
    made.host += 1
    return made


def test_a_batch_on_a_new_host_fetches_what_it_reads(pods: Pods) -> None:
    figures = pods.batch([5, 1_800, 5_000, 10_000])
    assert figures["fetched_bytes"] < pods.size / 10
    assert pods.cached() < pods.size / 10
    assert pods.read() == pods.entries


@pytest.mark.slow
def test_many_such_batches_leave_all_that_they_wrote(pods: Pods) -> None:
    chance = random.Random(1)
    for _ in range(14):
        pods.host += 1
        pods.batch(chance.sample(range(KEYS + 500), 20))
    assert pods.read() == pods.entries


def test_a_file_that_is_read_in_parts_is_neither_kept_nor_stored_again(pods: Pods) -> None:
    before = {ref for ref in pods.shards[0].files if ref.size >= remote_files.LARGE}
    figures = pods.batch([17])
    assert before <= set(pods.shards[0].files)
    assert figures["uploaded_bytes"] < pods.size / 10


def test_a_batch_that_reads_most_keys_fetches_the_files_and_keeps_them(pods: Pods) -> None:
    pods.batch(range(0, KEYS, 2))
    assert pods.cached() > pods.size * 0.9
    assert pods.batch(range(10))["fetched_bytes"] == 0


def test_the_users_of_a_shared_cache_can_read_a_file_that_has_come_in_parts(pods: Pods) -> None:
    def modes() -> set[int]:
        return {path.stat().st_mode for path in pods.entries_of_cache()}

    pods.batch(range(0, KEYS, 2))
    assert pods.cached() > pods.size * 0.9
    in_parts = modes()
    pods.host += 1
    pods.batch(range(0, KEYS, 2), "whole")
    assert in_parts == modes()


@pytest.mark.slow
def test_after_a_shard_that_was_fetched_whole_the_next_ones_are_at_once(
    tmp_path: Path, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(tmp_path, s3, shards=128)
    pods.batch(range(KEYS))
    pods.host += 1
    asked: list[Any] = []
    real = remote_files.remote_files
    monkeypatch.setattr(
        "stateflow.spark.task.shards.remote_files", lambda *given: asked.append(given) or real(*given)
    )
    pods.batch(range(0, KEYS, 2))
    assert len(asked) == 1
    assert len(pods.shards) == 128
    assert pods.read() == pods.entries


def test_behind_the_batches_of_a_run_that_goes_on_the_files_are_fetched(pods: Pods) -> None:
    first = pods.batch([5, 1_800], "parts first")
    assert first["fetched_bytes"] < pods.size / 10
    for thread in threading.enumerate():
        if thread.name == "stateflow-fetch":
            thread.join()
    assert pods.cached() > pods.size * 0.9
    assert pods.batch([5, 1_900, 4_000], "parts first")["fetched_bytes"] == 0
    assert pods.read() == pods.entries


def test_a_cache_that_is_too_small_for_the_files_is_not_filled_behind_the_batches(pods: Pods) -> None:
    pods.cache_bytes = pods.size // 2
    pods.batch([5, 1_800], "parts first")
    for thread in threading.enumerate():
        if thread.name == "stateflow-fetch":
            thread.join()
    assert pods.cached() < pods.size / 10
    assert pods.read() == pods.entries


def test_files_of_others_and_second_attempts_come_whole(pods: Pods) -> None:
    task = pods.begin(in_parts=False)
    backend = task.open(0)
    task.keep(0, backend)
    task.close()
    assert task.figures()["fetched_bytes"] > pods.size * 0.9
    table = next(ref for ref in pods.shards[0].files if ref.name.endswith(".sst"))
    assert remote_files.is_large_and_own(table)
    replaced = msgspec.structs.replace
    assert not remote_files.is_large_and_own(replaced(table, base="s3://bucket/savepoint"))
    assert not remote_files.is_large_and_own(replaced(table, offset=0))
    copied = JobLayout("orders").shared_copy(1, 2, "unique", ".sst")
    assert is_copy(copied)
    assert not is_copy(table.path)
    assert not remote_files.is_large_and_own(replaced(table, path=copied))


def test_a_file_that_is_missing_or_short_is_named(pods: Pods) -> None:
    (table,) = [ref for ref in pods.shards[0].files if ref.size >= remote_files.LARGE]
    store = open_recorded("", pods.options, root=pods.url)
    body = store.read(table.path)
    for left in (None, body[: len(body) // 2]):
        store.delete([table.path])
        if left is not None:
            store.put(table.path, left)
        task = pods.begin()
        with refused(CorruptError, f"{table.path} is missing, or shorter"):
            task.open(0)
        task.close()


def test_other_bytes_of_a_file_are_found(pods: Pods) -> None:
    (table,) = [ref for ref in pods.shards[0].files if ref.size >= remote_files.LARGE]
    store = open_recorded("", pods.options, root=pods.url)
    body = bytearray(store.read(table.path))
    body[1_000] ^= 1
    store.delete([table.path])
    store.put(table.path, bytes(body))
    first = min(pods.entries)
    task = pods.begin()
    backend = task.open(0)
    # RocksDB finds the block damaged, so all is fetched; then the file is another one than its record says.
    with refused(CorruptError, "does not match its checksum"):
        backend.get(first)
    task.distrust()
    task.close()


@pytest.mark.parametrize(("attempt", "in_parts"), [(None, True), (0, True), (1, False), (3, False)])
def test_only_the_first_attempt_at_a_task_reads_parts(
    pods: Pods, monkeypatch: pytest.MonkeyPatch, attempt: int | None, in_parts: bool
) -> None:
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 9, attemptNumber=lambda: attempt)
    monkeypatch.setattr(
        subtask, "TaskContext", SimpleNamespace(get=lambda: None if attempt is None else context)
    )
    asked: list[bool] = []

    def task_shards(
        shards: Any, storage: Any, open_shard: Any, join_limit: int, in_parts: bool
    ) -> TaskShards:
        asked.append(in_parts)
        return TaskShards(shards, storage, open_shard, join_limit, in_parts=in_parts)

    monkeypatch.setattr(subtask, "TaskShards", task_shards)
    task = SimpleNamespace(
        shards=[pods.shards],
        storage=pods.storage(),
        open_shard=Backends(RocksOptions()),
        work=lambda index, inputs, batches: None,
        feeds=(),
    )
    Subtask(cast(Task, task), iter(()))
    assert asked == [in_parts]


def test_a_local_root_has_nothing_to_gain(tmp_path: Path) -> None:
    storage = TaskStorage("root", "orders", 1, 1, str(tmp_path), 1 << 30, str(tmp_path), large_files="parts")
    storage = replace(storage, root=str(tmp_path / "root"))
    table = FileRef("000008.sst", 1 << 30, "aa", "orders/shared/e1-c1-a.sst")
    assert remote_files.remote_files([table], storage, Line()) is None


@pytest.mark.parametrize(
    ("said", "fetched"),
    [
        ({}, "parts"),
        ({"trigger": "until-stopped"}, "parts first"),
        ({"trigger": "10 seconds"}, "parts first"),
        ({"trigger": "until-stopped", "rocksdb_fetch": "whole"}, "whole"),
        ({"rocksdb_fetch": "whole"}, "whole"),
    ],
)
def test_what_a_run_fetches_is_an_option(said: dict[str, str], fetched: str, tmp_path: Path) -> None:
    assert large_files_of_run(options(tmp_path, **said)) == fetched


@dataclass
class Seen:
    user: int
    before: int


class Documents(sf.KeyedProcess[int, Visit, Seen]):
    """A large value for each key, and how often the key came before."""

    document = sf.ValueState(bytes)
    times = sf.ValueState(int)

    def process(self, key: int, rows: Iterator[Visit], ctx: sf.Context) -> Iterator[Seen]:
        count = sum(1 for _ in rows)
        before = self.times.value or 0
        assert (self.document.value is None) == (before == 0)
        self.document.value = random.Random(key).randbytes(MIB)
        self.times.value = before + count
        yield Seen(key, before)


@pytest.mark.slow
def test_a_run_in_a_fresh_pod_fetches_what_its_batch_needs(
    bench: Workbench, tmp_path: Path, s3: ObjectServer
) -> None:
    users = 150
    given = {
        "checkpoint_dir": s3.make("pods-run"),
        "storage_options": s3.options,
        "parallelism": 1,
        "max_parallelism": 1,
    }
    out = sf.memory("documents")

    @sf.pipeline("documents")
    def documents(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        visits.key_by("user").process("documents", Documents).collect("out", out)

    def batch(chosen: range, number: int, **more: Any) -> float:
        bench.rows("visits", [Visit(user, "page", 1.0, at(0)) for user in chosen])
        bench.run(documents, cache_dir=str(tmp_path / f"cache-{number}"), **given, **more)
        (report,) = bench.reports
        return float(report.statistics["metrics"]["fetched_bytes"])

    batch(range(users), 0)
    stored, numbers = users * MIB, itertools.count(1)

    def fetches_parts(chosen: range) -> bool:
        """A machine that is busy for a moment makes the line look as if whole files were there sooner."""
        return any(batch(chosen, next(numbers)) < stored / 4 for _ in range(4))

    assert fetches_parts(range(users - 2, users + 2))
    assert batch(range(users - 2, users + 2), next(numbers), rocksdb_fetch="whole") > stored * 0.9
    assert fetches_parts(range(2, 4))
    for user in (3, users - 1, users + 1):
        seen = sorted(row["before"] for row in out.rows if row["user"] == user)
        assert seen == list(range(len(seen)))
        assert len(seen) >= 2

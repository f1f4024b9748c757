"""The files of a task's shards: how they are described, kept on this host, and forgotten."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.records import FileRef, Shard
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.subtask import worker
from stateflow.state.backends import rocksdb
from stateflow.state.backends.base import NewFile, Snapshot
from stateflow.state.backends.choice import open_backend
from stateflow.storage.local import LocalStore
from tests.spark.test_worker import Acks, Event, Sum, Total, batch, task


@pytest.fixture(autouse=True)
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes a test's state has, its files are stored like large ones."""
    monkeypatch.setattr(rocksdb, "_SMALL_FILE", 0)


EMPTY = Shard(first=0, last=127, backend="rocksdb")


def worked(folder: Path, shard: Shard, slot: int, process: type[Any] = Sum) -> tuple[Ack, list[Any]]:
    """What the task acknowledges, and the rows that it puts out. No file travels inside of the record."""
    opened = open_backend(load(code={"inline_threshold": 0}, env={}, folder=folder))
    acks = Acks()
    work = worker(replace(task(folder, process, shard, slot), open_shard=opened), acks)
    out = list(work(iter([batch(1, 1, 2)])))
    return acks.acks[0], pa.Table.from_batches(out).to_pylist()


def state_files(ack: Ack) -> list[FileRef]:
    return [ref for ref in ack.shards[0].files if ref.path]


def without_hashes(shard: Shard) -> Shard:
    files = tuple(msgspec.structs.replace(ref, sha256=b"") for ref in shard.files)
    return msgspec.structs.replace(shard, files=files)


def test_every_file_that_a_task_writes_is_described_by_its_sha256(tmp_path: Path) -> None:
    ack, _ = worked(tmp_path, EMPTY, 1)
    assert state_files(ack)
    for ref in state_files(ack):
        assert ref.sha256 == hashlib.sha256((tmp_path / "root" / ref.path).read_bytes()).digest()


def test_what_a_batch_wrote_is_on_this_host_for_the_next(tmp_path: Path) -> None:
    first, _ = worked(tmp_path, EMPTY, 1)
    again, _ = worked(tmp_path, first.shards[0], 2)
    assert (again.metrics["cache_misses"], again.metrics["fetched_bytes"]) == (0, 0)
    assert again.metrics["cache_hits"] > 0


def test_state_of_a_record_without_hashes_goes_on(tmp_path: Path) -> None:
    first, _ = worked(tmp_path, EMPTY, 1)
    second, rows = worked(tmp_path, without_hashes(first.shards[0]), 2)
    third, more = worked(tmp_path, second.shards[0], 3)
    assert [row["total"] for row in rows] == [4.0, 2.0]
    assert [row["total"] for row in more] == [6.0, 3.0]
    # What was kept is still known as it was; what is new has its hash.
    assert {bool(ref.sha256) for ref in state_files(second)} == {True, False}
    assert third.shards


def test_after_damage_a_host_forgets_its_copies(tmp_path: Path) -> None:
    class Meets(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            raise sf.CorruptError("000012.sst is damaged")

    first, _ = worked(tmp_path, EMPTY, 1)
    kept = {path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")}
    assert kept
    with pytest.raises(RuntimeError, match="CorruptError"):
        worked(tmp_path, first.shards[0], 2, Meets)
    left = {path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")}
    assert kept & left == set()


def test_the_folder_that_a_task_works_in_is_its_users_own(tmp_path: Path) -> None:
    storage = TaskStorage(str(tmp_path), "job", 1, 1, str(tmp_path / "cache"), 1, str(tmp_path / "scratch"))
    assert storage.folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_files_of_one_shard_travel_at_the_same_time_as_there_are_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each upload, and each download, waits until as many are under way; one more would break the barrier's count."""
    under_way, most, lock = [0], [0], threading.Lock()
    gate = threading.Barrier(threads)

    def counted(transfer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with lock:
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
            try:
                gate.wait(30)
                return transfer(*given, **named)
            finally:
                with lock:
                    under_way[0] -= 1

        return call

    monkeypatch.setattr(LocalStore, "upload", counted(LocalStore.upload))
    monkeypatch.setattr(LocalStore, "download", counted(LocalStore.download))
    places = [TaskStorage(
        str(tmp_path / "root"), "job", 1, 1, str(tmp_path / cache), 1 << 30, str(tmp_path / "scratch"), threads
    ) for cache in ("written", "read")]  # fmt: skip
    shards = TaskShards((Shard(0, 127, "fake"),), places[0], lambda name: Three)
    shards.finish(0, shards.open(0), (None, None))
    (shard,) = shards.handles()
    assert (len(shard.files), most[0]) == (3, threads)
    shards.close()
    most[0] = 0
    again = TaskShards((shard,), places[1], lambda name: Three)
    again.keep(0, again.open(0))
    assert most[0] == threads
    again.close()


class Three:
    """A backend whose snapshot is three files, and which reads them all when it is opened."""

    def __init__(self, shard: Shard, directory: Path, fetch: Callable[[FileRef], Path]) -> None:
        self.directory = directory
        for ref in shard.files:
            fetch(ref)

    def snapshot(self) -> Snapshot:
        paths = [self.directory / f"{n}.sst" for n in range(3)]
        for path in paths:
            path.write_bytes(path.name.encode())
        return Snapshot((), tuple(NewFile(path.name, path=path) for path in paths), 3)

    def close(self) -> None:
        pass

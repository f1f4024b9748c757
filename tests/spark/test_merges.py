"""Merges of state beside the batches: what the next task of the host makes of one, and that none is ever needed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.errors import UnavailableError
from stateflow.format.records import FileRef, Shard
from stateflow.spark.task import merges
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends import rocksdb_options
from stateflow.state.backends.base import Backend
from stateflow.state.backends.choice import Backends, open_backend_of_run
from stateflow.state.backends.rocksdb import RocksBackend
from stateflow.state.backends.rocksdb_merges import tables_of
from stateflow.state.backends.rocksdb_options import RocksOptions
from stateflow.storage import scratch
from tests.config.test_option_effects import options
from tests.refusals.refusal import refused
from tests.spark.pipelines import VISIT, Visit, Workbench, at

KEYS = 4_000


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes a test's state has, it is merged beside the batches."""
    monkeypatch.setattr(rocksdb_options, "_WORTH_A_THREAD", 1)


def key(number: int) -> bytes:
    return b"\0\1\0\1%06d" % number


class Host:
    """The batches of a shard on one host, one after the other, and what its entries must be."""

    def __init__(self, folder: Path, options: RocksOptions | None = None) -> None:
        self.folder = folder
        self.options = options or RocksOptions(merges="beside")
        self.shard = Shard(0, 127, "rocksdb")
        self.entries: dict[bytes, bytes] = {}
        self.compacted: list[int] = []
        self._slot = 0
        self._chance = random.Random(1)

    def storage(self) -> TaskStorage:
        return TaskStorage(
            root=str(self.folder / "root"),
            job="orders",
            epoch=1,
            slot=self._slot,
            cache_dir=str(self.folder / "cache"),
            cache_bytes=1 << 30,
            scratch_dir=str(self.folder / "scratch"),
            fsync=False,
            inline_threshold=self.options.inline_threshold,
        )

    def task(self) -> TaskShards:
        self._slot += 1
        return TaskShards((self.shard,), self.storage(), Backends(self.options))

    def batch(self, extra: Callable[[Backend], None] = lambda backend: None, keys: int = KEYS // 8) -> None:
        changes = {
            key(number): None if self._chance.random() < 0.1 else os.urandom(50)
            for number in self._chance.sample(range(KEYS), keys)
        }
        task = self.task()
        backend = task.open(0)
        backend.write(sorted(changes.items()))
        for name, value in changes.items():
            if value is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = value
        extra(backend)
        task.finish(0, backend, (None, None))
        (self.shard,) = task.handles()
        self.compacted.append(int(task.metrics["compacted_bytes"]))
        task.close()

    def merged(self) -> None:
        """Waits for the merge that goes on in this process."""
        for thread in threading.enumerate():
            if thread.name == "stateflow-merge":
                thread.join()

    def read(self) -> dict[bytes, bytes]:
        """The entries, as a task reads them that changes none."""
        task = self.task()
        backend = task.open(0)
        found = dict(backend.scan(b"\0", b"\xff"))
        task.keep(0, backend)
        (self.shard,) = task.handles()
        task.close()
        return found

    def left(self) -> list[Path]:
        return list((self.folder / "scratch").glob("*/*.left"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def crowded(host: Host) -> None:
    """Five batches, and the merge that the last one begins."""
    for _ in range(5):
        host.batch()
    host.merged()
    assert len(host.left()) == 1


def test_the_next_batch_has_the_merged_files_in_place_of_those_that_were_merged(host: Host) -> None:
    crowded(host)
    assert len(tables_of(host.shard)) == 5
    host.batch()
    assert len(tables_of(host.shard)) == 2
    assert host.compacted[:5] == [0] * 5
    assert host.compacted[5] > 0
    assert host.read() == host.entries
    assert not host.left()


def test_what_batches_have_added_during_a_merge_comes_on_top_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    merged = RocksBackend.merged
    monkeypatch.setattr(RocksBackend, "merged", lambda backend: (go_on.wait(60), merged(backend))[1])
    for _ in range(9):
        host.batch()
    assert len(tables_of(host.shard)) == 9
    go_on.set()
    host.merged()
    host.batch()
    # One that is merged from five, the four since, and this batch's own.
    assert len(tables_of(host.shard)) == 6
    assert host.read() == host.entries


def test_a_file_that_travels_inside_the_record_comes_on_top_of_it_too(host: Host) -> None:
    crowded(host)
    [left] = host.left()
    hidden = left.with_suffix(".hidden")
    left.rename(hidden)
    host.batch(keys=3)
    assert [ref.data is not None for ref in tables_of(host.shard)] == [False] * 5 + [True]
    host.merged()
    for other in host.left():
        other.rename(other.with_suffix(".other"))
    hidden.rename(left)
    host.batch()
    assert host.compacted[-1] > 0
    assert len(tables_of(host.shard)) == 3
    assert host.read() == host.entries


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{}, {"compaction": "level"}, {"preset": "large"}, {"preset": "write-heavy", "inline_threshold": 0}],
    ids=str,
)
def test_batch_by_batch_nothing_is_lost_however_long_the_merges_take(
    more: dict[str, Any], tmp_path: Path
) -> None:
    host = Host(tmp_path, RocksOptions(merges="beside", **more))
    for number in range(40):
        host.batch()
        if number % 7 == 0:
            host.merged()
        if number % 10 == 0:
            assert host.read() == host.entries
    host.merged()
    assert host.read() == host.entries
    assert len(tables_of(host.shard)) <= host.options.most_runs + 1
    # Another host has none of it but the files of the record.
    other = Host(host.folder / "other", host.options)
    other.shard, other.folder = host.shard, host.folder
    assert other.read() == host.entries


def test_a_task_that_only_reads_passes_the_merged_files_on(host: Host) -> None:
    crowded(host)
    assert host.read() == host.entries
    assert len(tables_of(host.shard)) == 1
    assert all((host.folder / "root" / ref.path).is_file() for ref in tables_of(host.shard) if ref.path)
    host.batch()
    assert host.read() == host.entries


@pytest.mark.parametrize(("threshold", "inside"), [(0, set()), (20 << 10, {"CURRENT", "MANIFEST"})])
def test_who_takes_a_merge_puts_into_the_record_what_who_writes_would(
    threshold: int, inside: set[str], tmp_path: Path
) -> None:
    host = Host(tmp_path, RocksOptions(merges="beside", inline_threshold=threshold))
    crowded(host)

    def travel() -> set[str]:
        return {ref.name.partition("-")[0] for ref in host.shard.files if ref.data is not None}

    assert travel() == inside
    assert host.read() == host.entries
    assert len(tables_of(host.shard)) == 1, "the merge was taken"
    assert travel() == inside
    host.batch()
    assert travel() == inside
    assert host.read() == host.entries


@pytest.mark.parametrize("writes", [False, True])
def test_no_record_names_a_merged_file_that_could_not_be_stored(
    writes: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(task: TaskShards, ref: FileRef, local: Path) -> None:
        raise UnavailableError("the store is away")

    crowded(host)
    monkeypatch.setattr(TaskShards, "_store_merged", fails)
    task = host.task()
    backend = task.open(0)
    if writes:
        backend.write([(key(1), b"new")])
        task.finish(0, backend, (None, None))
    else:
        task.keep(0, backend)
    with refused(UnavailableError, "the store is away"):
        task.handles()
    task.close()


def test_small_shards_are_not_looked_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    crowded(host)
    monkeypatch.setattr(rocksdb_options, "_WORTH_A_THREAD", host.shard.bytes + 1)
    assert host.read() == host.entries
    assert len(host.left()) == 1


def test_a_merge_of_files_that_the_shard_no_longer_has_is_of_no_use(host: Host) -> None:
    host.batch()
    before, entries = host.shard, dict(host.entries)
    for _ in range(4):
        host.batch()
    host.merged()
    # A restore takes the job back to its first batch.
    host.shard, host.entries = before, entries
    host.batch()
    assert host.compacted[-1] == 0
    assert host.read() == host.entries
    assert not host.left()


def test_ranges_that_a_batch_deletes_meanwhile_make_it_useless_and_stay_deleted(host: Host) -> None:
    for _ in range(5):
        host.batch()

    def forget_half(backend: Backend) -> None:
        backend.delete_range(key(0), key(KEYS // 2))
        for name in [name for name in host.entries if name < key(KEYS // 2)]:
            del host.entries[name]

    # The merge of the first five is taken no sooner than by the batch after the next one.
    [left] = (host.merged(), host.left())[1]
    hidden = left.with_suffix(".hidden")
    left.rename(hidden)
    host.batch(forget_half)
    host.merged()
    for other in host.left():
        other.rename(other.with_suffix(".other"))
    hidden.rename(left)
    host.batch()
    assert host.compacted[-1] == 0
    assert host.read() == host.entries


def test_a_batch_merges_by_itself_when_no_merge_comes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "begin_merge", lambda *_: None)
    monkeypatch.setattr("stateflow.spark.task.shards.begin_merge", lambda *_: None)
    for _ in range(14):
        host.batch()
    assert host.compacted[:12] == [0] * 12
    assert host.compacted[12] > 0
    assert len(tables_of(host.shard)) <= host.options.runs + 1
    assert host.read() == host.entries


def test_a_merge_that_fails_costs_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(backend: RocksBackend) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RocksBackend, "merged", full)
    for _ in range(6):
        host.batch()
    host.merged()
    assert "state was not merged beside the batches" in caplog.text
    assert "a batch will do it" in caplog.text
    assert host.read() == host.entries
    monkeypatch.undo()
    monkeypatch.setattr(rocksdb_options, "_WORTH_A_THREAD", 1)
    host.batch()
    host.merged()
    assert len(host.left()) == 1


def test_damage_in_what_was_merged_is_found(host: Host) -> None:
    crowded(host)
    [left] = host.left()
    (left / merges._FINDINGS).write_bytes(b"no findings")
    host.batch()
    assert host.compacted[-1] == 0
    assert host.read() == host.entries


def test_of_two_tasks_one_gets_the_merge(host: Host) -> None:
    crowded(host)
    first, second = host.task(), host.task()
    opened = [first.open(0), second.open(0)]
    assert [dict(each.scan(b"\0", b"\xff")) for each in opened] == [host.entries] * 2
    assert sorted([first.metrics["compacted_bytes"] > 0, second.metrics["compacted_bytes"] > 0]) == [
        False,
        True,
    ]
    for task, backend in zip((first, second), opened, strict=True):
        task.keep(0, backend)
        task.handles()
        task.close()


def test_shards_of_other_jobs_have_merges_of_their_own(host: Host) -> None:
    crowded(host)
    fork = replace(host.storage(), job="fork")
    task = TaskShards((host.shard,), fork, Backends(host.options))
    task.keep(0, task.open(0))
    assert task.metrics["compacted_bytes"] == 0
    task.close()
    assert len(host.left()) == 1


def test_what_nobody_takes_is_removed_after_an_hour(host: Host) -> None:
    crowded(host)
    [left] = host.left()
    scratch.sweep_scratch(host.folder / "scratch")
    assert left.exists()
    os.utime(left, (0, 0))
    scratch.sweep_scratch(host.folder / "scratch")
    assert not left.exists()
    assert host.read() == host.entries


def test_a_host_has_no_more_merges_under_way_than_its_cores_allow(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    host.batch()
    places = [scratch.take_place(host.folder / "scratch", "merging", 2) for _ in range(3)]
    assert places[2] is None
    for _ in range(5):
        host.batch()
    host.merged()
    assert not host.left()
    assert places[1] is not None
    os.close(places[1])
    host.batch()
    host.merged()
    assert len(host.left()) == 1
    assert places[0] is not None
    os.close(places[0])


def test_small_shards_are_merged_by_their_batches(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_options, "_WORTH_A_THREAD", 16 << 20)
    for _ in range(6):
        host.batch()
    assert max(host.compacted) > 0
    assert not host.left()


@pytest.mark.parametrize(
    ("said", "merged"),
    [
        ({}, "inside"),
        ({"trigger": "until-stopped"}, "beside"),
        ({"trigger": "10 seconds"}, "beside"),
        ({"trigger": "until-stopped", "rocksdb_merges": "inside"}, "inside"),
        ({"rocksdb_merges": "beside"}, "beside"),
    ],
)
def test_runs_that_go_on_merge_beside_their_batches(
    said: dict[str, str], merged: str, tmp_path: Path
) -> None:
    assert open_backend_of_run(options(tmp_path, **said)).rocks.merges == merged


def test_a_table_s_number_orders_it_not_its_text(host: Host) -> None:
    host.batch()
    [table] = tables_of(host.shard)
    shuffled = tuple(
        msgspec.structs.replace(table, name=name) for name in ("1000.sst", "000200.sst", "30.sst")
    )
    assert [ref.name for ref in tables_of(Shard(0, 1, "rocksdb", shuffled))] == [
        "30.sst",
        "000200.sst",
        "1000.sst",
    ]


@dataclass
class Found:
    user: int
    batch: str
    before: str


class Blobs(sf.KeyedProcess[int, Visit, Found]):
    """Keeps 2 kB of each user that do not compress, and puts out of which batch those are that it finds."""

    blob = sf.ValueState(bytes, default=b"")

    def process(self, key: int, rows: Iterator[Visit], ctx: sf.Context) -> Iterator[Found]:
        for row in rows:
            before = self.blob.value[:3].decode()
            self.blob.value = row.page.encode() + random.Random(f"{key} {row.page}").randbytes(2_000)
            yield Found(key, row.page, before)


@pytest.mark.slow
def test_in_a_run_merges_go_on_beside_its_batches_and_each_key_finds_what_it_had(bench: Workbench) -> None:
    chance, users, last, expected = random.Random(1), 12_000, {}, set()
    for number in range(14):
        chosen = range(users) if number == 0 else chance.sample(range(users), users // 8)
        page = f"{number:03d}"
        bench.rows("visits", [Visit(user, page, 1.0, at(0)) for user in chosen])
        expected |= {(user, page, last.get(user, "")) for user in chosen}
        last.update(dict.fromkeys(chosen, page))
    out = sf.memory("blobs")

    @sf.pipeline("blobs")
    def blobs(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        visits.key_by("user").process("kept", Blobs).collect("out", out)

    bench.run(blobs, rocksdb_merges="beside", parallelism=1)
    assert {(row["user"], row["batch"], row["before"]) for row in out.rows} == expected
    compacted = [report.statistics["metrics"]["compacted_bytes"] for report in bench.reports]
    # With fewer runs than 13 no batch has merged anything by itself.
    assert compacted[:5] == [0] * 5
    assert max(compacted[5:12]) > 0

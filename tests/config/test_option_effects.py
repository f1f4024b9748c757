"""Options that no other test sets: what each changes, at the place where it is read. None of this needs Spark's session."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.checkpoint.retention import Retention, roots
from stateflow.config.options import Options, load
from stateflow.format.records import FileRef, Shard, SourceState
from stateflow.spark.inputs.watermark import watermark_of
from stateflow.spark.runner import RunRequest, _Run
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import task_storage
from stateflow.state.backends.choice import open_backend
from tests.jobs.made import MadeJob
from tests.spark.pipelines import Visit

MINUTE = 60_000_000


def options(folder: Path, **code: Any) -> Options:
    return load(code=code, env={}, folder=folder)


def test_a_source_that_is_idle_for_the_timeout_no_longer_holds_the_watermark_back(tmp_path: Path) -> None:
    @sf.pipeline("two")
    def two(flow: sf.Flow) -> None:
        for uid in ("busy", "idle"):
            flow.source(uid, sf.delta(f"/in/{uid}"), Visit, event_time="ts", watermark="0 seconds").append(
                f"{uid}-out", sf.delta(f"/out/{uid}")
            )

    now = 100 * MINUTE
    sources = {
        "busy": SourceState((), event_time=90 * MINUTE, active=now),
        "idle": SourceState((), event_time=10 * MINUTE, active=now - 6 * MINUTE, silent=6 * MINUTE),
    }
    marks = {}
    for timeout in ("5 minutes", "7 minutes", "0"):
        after = options(tmp_path, source_idle_timeout=timeout).source_idle_timeout // timedelta(
            microseconds=1
        )
        marks[timeout] = watermark_of(two.build({}), sources, None, after)
    assert marks["5 minutes"] != marks["7 minutes"]
    assert marks["0"] == marks["7 minutes"]
    assert marks["5 minutes"] == (marks["0"] or 0) + 80 * MINUTE


@pytest.mark.parametrize(("limit", "shards"), [("0", 3), ("19", 3), ("20", 2)])
def test_neighbouring_shards_are_joined_up_to_the_limit(limit: str, shards: int, tmp_path: Path) -> None:
    def shard(first: int, size: int) -> Shard:
        return Shard(
            first, first, "rocksdb", (FileRef(f"{first:06d}.sst", size, "aa", path=f"j/shared/{first}"),)
        )

    storage = task_storage(
        options(tmp_path, shard_join_limit=limit, cache_dir=str(tmp_path)), str(tmp_path), "j", 1, 1
    )
    parts = (shard(0, 12), shard(1, 15), shard(2, 5))
    made = TaskShards(parts, storage, lambda name: open_backend(Options())(name), storage.join_limit)
    assert len(made.inputs) == shards


def test_checkpoints_younger_than_the_retained_age_are_kept_too(tmp_path: Path) -> None:
    job = MadeJob(tmp_path)
    job.batches(5)
    records = job.writer.log.checkpoints
    now = records[-1].at
    for age, kept in (("1 minute", 5), ("0", 2)):
        said = options(tmp_path, retained_age=age, retained_checkpoints=2)
        assert len(roots(job.log(), [], Retention.of(said, now))) == kept


def test_the_last_checkpoint_of_each_hour_stays_by_the_retention_rule(tmp_path: Path) -> None:
    job = MadeJob(tmp_path)
    job.tick = 5 * MINUTE
    job.batches(9)
    records = job.writer.log.checkpoints
    said = options(tmp_path, retention="hourly for 1 day", retained_checkpoints=1)
    last = {record.at // (60 * MINUTE): record.slot for record in records}
    assert sorted(roots(job.log(), [], Retention.of(said, records[-1].at))) == list(last.values())
    assert 3 <= len(last) < 9


ROCKSDB = {
    ("rocksdb_compaction", "level"): "compaction_style=kCompactionStyleLevel",
    ("rocksdb_compaction", "universal"): "compaction_style=kCompactionStyleUniversal",
    ("rocksdb_preset", "write-heavy"): "level0_file_num_compaction_trigger=8",
    ("rocksdb_preset", "auto"): "partition_filters=false",
    ("rocksdb_preset", "small"): "level0_file_num_compaction_trigger=4",
    ("rocksdb_preset", "large"): "partition_filters=true",
    ("rocksdb_compaction_budget", "512 MB"): "max_size_amplification_percent=50",
    ("rocksdb_compaction_budget", "0"): "max_size_amplification_percent=100",
}


@pytest.mark.parametrize(("option", "value"), ROCKSDB, ids=lambda part: str(part))
def test_what_is_set_of_rocksdb_is_what_its_database_has(option: str, value: str, tmp_path: Path) -> None:
    """RocksDB writes its settings beside the database that it opens."""
    first = open_backend(Options())("rocksdb")(
        Shard(0, 127, "rocksdb"), tmp_path / "first", lambda ref: tmp_path
    )
    first.write([(b"\0\1\0\1key", b"value" * 2_000)])
    files = first.snapshot()
    stored = {}
    for new in files.new:
        stored[new.name] = tmp_path / f"stored-{new.name}"
        stored[new.name].write_bytes(
            new.data if new.data is not None else new.path.read_bytes() if new.path else b""
        )
    first.close()
    refs = tuple(FileRef(name, path.stat().st_size, "aa", path=name) for name, path in stored.items())
    opened = open_backend(options(tmp_path, **{option: value}))("rocksdb")(
        Shard(0, 127, "rocksdb", refs), tmp_path / "second", lambda ref: stored[ref.name]
    )
    assert opened.get(b"\0\1\0\1key") == b"value" * 2_000
    opened.write([(b"\0\1\0\1other", b"value")])
    opened.get(b"\0\1\0\1other")
    written = "".join(path.read_text() for path in (tmp_path / "second").glob("OPTIONS-*"))
    opened.close()
    assert ROCKSDB[option, value] in written


def test_sizes_of_rocksdb_reach_the_backend(tmp_path: Path) -> None:
    rocks = open_backend(options(tmp_path, rocksdb_block_cache="3 MB", rocksdb_write_buffer="2 MB")).rocks
    assert (rocks.block_cache, rocks.write_buffer) == (3 << 20, 2 << 20)


def test_what_a_task_gets_of_the_options(tmp_path: Path) -> None:
    given = options(
        tmp_path,
        cache_dir=str(tmp_path / "c"),
        scratch_dir=str(tmp_path / "s"),
        cache_size="7 MB",
        upload_threads=9,
        local_fsync=False,
    )
    storage = task_storage(given, str(tmp_path / "root"), "j", 1, 1)
    assert (storage.cache_dir, storage.scratch_dir) == (str(tmp_path / "c" / "state"), str(tmp_path / "s"))
    assert (storage.cache_bytes, storage.upload_threads, storage.fsync) == (7 << 20, 9, False)


def test_what_spark_s_session_gets_of_the_options(tmp_path: Path) -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        flow.source("visits", sf.delta("/in"), Visit).append("out", sf.delta("/out"))

    given = options(tmp_path, checkpoint_dir=str(tmp_path), locality_wait="7 s", chunk_rows=123)
    conf = _Run(RunRequest(orders, given))._conf()
    assert conf["spark.locality.wait"] == "7000ms"
    assert conf["spark.sql.execution.arrow.maxRecordsPerBatch"] == "123"

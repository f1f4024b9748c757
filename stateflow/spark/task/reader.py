"""What a task opens shards with, only to read them: the host's cache and the folders of its storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stateflow.reading.snapshots import ReaderContext
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import OpenShard


def task_reader(
    storage: TaskStorage, open_shard: Callable[[str], OpenShard], now: int | None = None
) -> ReaderContext:
    """`now`: the time by which entries have expired. Whoever reads entries as they are stored needs none."""

    def clock() -> int:
        assert now is not None
        return now

    return ReaderContext(
        root=storage.root,
        cache=storage.cache(),
        scratch=Path(storage.scratch_dir),
        open_shard=open_shard,
        clock=clock,
        storage_options=storage.storage_options,
    )

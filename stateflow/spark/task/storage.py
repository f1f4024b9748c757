"""The storage of a task: the checkpoint root, the host's cache and scratch folders, and the slot that it writes for."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stateflow.config.options import Options, cache_of, scratch_parent
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef
from stateflow.storage.cache import FileCache
from stateflow.storage.roots import local_folder, open_recorded
from stateflow.storage.scratch import new_scratch
from stateflow.storage.store import Store

LargeFiles = Literal["whole", "parts", "parts first"]
"""parts: what the batch reads. parts first: the whole files follow behind the batch, for the next one."""
_caches: dict[tuple[str, int], FileCache] = {}


@dataclass(frozen=True)
class TaskStorage:
    """Spark sends it to the workers. Its repr leaves out `storage_options`, which hold credentials."""

    root: str
    job: str
    epoch: int
    slot: int
    cache_dir: str
    cache_bytes: int
    scratch_dir: str
    upload_threads: int = 4
    fsync: bool = True
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    inline_threshold: int = 20 << 10
    """A small file of state of at most so many bytes travels inside the record."""
    large_files: LargeFiles = "whole"
    """What a task fetches of large state files that the host does not have."""
    join_limit: int = 0
    """Neighbouring shards of a subtask are joined while they have at most so many bytes together."""

    @property
    def layout(self) -> JobLayout:
        return JobLayout(self.job)

    def store(self, base: str = "") -> Store:
        """The store of the root, or of the savepoint that a reference is relative to."""
        return open_recorded(base, self.storage_options, root=self.root, fsync=self.fsync)

    def cache(self) -> FileCache:
        """One per process: its tasks share the counters and the knowledge of the folder."""
        key = (self.cache_dir, self.cache_bytes)
        if key not in _caches:
            _caches[key] = FileCache(Path(self.cache_dir), self.cache_bytes)
        return _caches[key]

    def shared_path(self, suffix: str) -> str:
        return self.layout.shared_file(self.epoch, self.slot, uuid.uuid4().hex, suffix)

    def download(self, ref: FileRef, target: Path) -> None:
        self.cache().link(self.store(ref.base), ref, target)

    def folder(self) -> Path:
        """A new private folder, until `remove_scratch` removes it."""
        return new_scratch(Path(self.scratch_dir))


def task_storage(options: Options, root: str, job: str, epoch: int, slot: int) -> TaskStorage:
    """The storage for the tasks of one slot of a job, from the options."""
    cache = cache_of(options)
    folder = local_folder(root)
    return TaskStorage(
        root=root if folder is None else str(folder),
        job=job,
        epoch=epoch,
        slot=slot,
        cache_dir=str(cache / "state"),
        cache_bytes=options.cache_size,
        scratch_dir=str(scratch_parent(options)),
        upload_threads=options.upload_threads,
        fsync=options.local_fsync,
        storage_options=dict(options.storage_options),
        inline_threshold=options.inline_threshold,
        join_limit=options.shard_join_limit,
    )


def large_files_of_run(options: Options) -> LargeFiles:
    """What the tasks of a run fetch. A run that ends by itself leaves nobody who would wait for whole files."""
    if options.rocksdb_fetch == "whole":
        return "whole"
    return "parts" if options.trigger == "drain" else "parts first"

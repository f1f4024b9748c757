"""The storage of a task: the checkpoint root, the host's cache and scratch folders, and the slot that it writes for."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.config.options import Options, cache_folder
from stateflow.errors import UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef
from stateflow.private_folders import make_private
from stateflow.storage.cache import FileCache
from stateflow.storage.roots import local_folder, open_recorded
from stateflow.storage.store import Store

_caches: dict[tuple[str, int], FileCache] = {}
_swept: set[str] = set()


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
        """A fresh private folder. The first call also removes the folders of processes that died."""
        parent = Path(self.scratch_dir)
        folder = parent / f"task-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            make_private(parent)
            if self.scratch_dir not in _swept:
                _swept.add(self.scratch_dir)
                sweep(parent)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise UnavailableError(
                f"no scratch folder can be made in {parent} ({error.strerror}): free space there or choose another one with "
                "scratch_dir"
            ) from error
        return folder


def task_storage(options: Options, root: str, job: str, epoch: int, slot: int) -> TaskStorage:
    """The storage for the tasks of one slot of a job, from the options."""
    cache = Path(options.cache_dir) if options.cache_dir else cache_folder()
    folder = local_folder(root)
    return TaskStorage(
        root=root if folder is None else str(folder),
        job=job,
        epoch=epoch,
        slot=slot,
        cache_dir=str(cache / "state"),
        cache_bytes=options.cache_size,
        scratch_dir=str(Path(options.scratch_dir or cache / "scratch").absolute()),
        upload_threads=options.upload_threads,
        fsync=options.local_fsync,
        storage_options=dict(options.storage_options),
        join_limit=options.shard_join_limit,
    )


def sweep(parent: Path) -> None:
    """Removes the private folders of processes that are gone."""
    with suppress(FileNotFoundError):
        for entry in os.scandir(parent):
            words = entry.name.split("-")
            if (
                words[0] in ("task", "run")
                and len(words) > 1
                and words[1].isdigit()
                and not _alive(int(words[1]))
            ):
                shutil.rmtree(entry.path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

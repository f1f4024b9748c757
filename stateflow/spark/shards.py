"""The shards of one task: opened from handles one after another, snapshotted, uploaded while the task goes on."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from stateflow.checkpoint.files import inline, upload_file
from stateflow.checkpoint.records import FileRef, Shard
from stateflow.spark.place import TaskPlace
from stateflow.state.backend import Backend, NewFile, OpenShard, Snapshot

Timers = tuple[int | None, int | None]


class TaskShards:
    """Hands out backends in order; `handles` waits for uploads and gives the new handles."""

    def __init__(
        self, shards: tuple[Shard, ...], place: TaskPlace, open_shard: Callable[[str], OpenShard]
    ) -> None:
        self._began = time.perf_counter()
        self._place = place
        self._open_shard = open_shard
        self._handles: list[Shard | Future[Shard]] = list(shards)
        self._given = shards
        self._folder: Path | None = None
        self._open: list[Backend] = []
        self._pool: ThreadPoolExecutor | None = None
        self.metrics: dict[str, float] = dict.fromkeys(
            ("opened", "open_s", "snapshot_s", "upload_s", "uploaded_bytes", "uploaded_files", "compacted_bytes",
             "inlined_bytes"), 0,
        )  # fmt: skip
        cache = place.cache()
        self._cache_before = (cache.hits, cache.misses, cache.bytes_fetched)

    def open(self, index: int) -> Backend:
        """The state of one shard, materialised into a private folder."""
        began = time.perf_counter()
        shard = self._given[index]
        if self._folder is None:
            self._folder = self._place.folder()
        directory = self._folder / str(index)
        directory.mkdir()
        fetched = self._folder / f"{index}-fetched"
        fetched.mkdir()
        fetch = self._place.cache().fetcher(self._place.store, fetched)
        backend = self._open_shard(shard.backend)(shard, directory, fetch)
        self._open.append(backend)
        self.metrics["opened"] += 1
        self.metrics["open_s"] += time.perf_counter() - began
        return backend

    def keep(self, index: int, backend: Backend) -> None:
        """The shard was read only: its handle stands."""
        backend.close()
        self._open.remove(backend)

    def finish(self, index: int, backend: Backend, timers: Timers) -> None:
        """Makes the shard's new handle; files go up in the background."""
        began = time.perf_counter()
        snapshot = backend.snapshot()
        self.metrics["snapshot_s"] += time.perf_counter() - began
        self.metrics["compacted_bytes"] += snapshot.compacted_bytes
        for name, value in snapshot.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0) + value
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(1, self._place.upload_threads), "stateflow-upload")
        self._handles[index] = self._pool.submit(self._uploaded, index, backend, snapshot, timers)

    def _uploaded(self, index: int, backend: Backend, snapshot: Snapshot, timers: Timers) -> Shard:
        began = time.perf_counter()
        files = snapshot.kept + tuple(self._stored(new) for new in snapshot.new)
        self.metrics["upload_s"] += time.perf_counter() - began
        backend.close()
        self._open.remove(backend)
        given = self._given[index]
        return msgspec.structs.replace(
            given,
            files=files,
            physical_first=None,
            physical_last=None,
            next_event_timer=timers[0],
            next_processing_timer=timers[1],
            entries=snapshot.entries,
        )

    def _stored(self, new: NewFile) -> FileRef:
        if new.data is not None:
            self.metrics["inlined_bytes"] += len(new.data)
            return inline(new.name, new.data)
        assert new.path is not None
        place = self._place
        ref = upload_file(
            place.store(), place.shared_path(Path(new.name).suffix or ".bin"), new.path, new.name
        )
        place.cache().add(ref, new.path)
        self.metrics["uploaded_bytes"] += ref.size
        self.metrics["uploaded_files"] += 1
        return ref

    def handles(self) -> tuple[Shard, ...]:
        """Waits until everything is stored; the first failed upload raises."""
        return tuple(h.result() if isinstance(h, Future) else h for h in self._handles)

    def measured(self) -> dict[str, float]:
        """The task's own figures, for its ack."""
        cache = self._place.cache()
        hits, misses, fetched = self._cache_before
        return {
            **self.metrics,
            "cache_hits": cache.hits - hits,
            "cache_misses": cache.misses - misses,
            "fetched_bytes": cache.bytes_fetched - fetched,
            "task_s": time.perf_counter() - self._began,
            "max_peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        }

    def close(self) -> None:
        """Frees what is still open; safe after a failure in the middle."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for backend in list(self._open):
            backend.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

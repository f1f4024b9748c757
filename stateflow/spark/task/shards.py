"""The shards of one task: it opens them one after another, takes snapshots, and uploads files as it goes on."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from stateflow.checkpoint.rescale import joined
from stateflow.format.encoding import group_range
from stateflow.format.records import ExpiryShare, FileRef, Shard
from stateflow.spark.task.merges import begin_merge, take_merge
from stateflow.spark.task.remote_files import TaskRemoteFiles, begin_fetch, remote_files
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import Backend, Fetch, NewFile, OpenShard
from stateflow.state.backends.line import Line
from stateflow.state.expiry.shares import joined_shares
from stateflow.storage.files import inline, upload_file
from stateflow.storage.scratch import remove_scratch
from stateflow.storage.store import Store

Timers = tuple[int | None, int | None]
"""When the first is due, in event time and in processing time."""


class TaskShards:
    """Opens the shards in order. `handles` waits for the uploads and returns the new shards.

    Neighbours that are to be joined count as one shard: opening it reads all of them into a new one.
    """

    def __init__(
        self,
        shards: tuple[Shard, ...],
        storage: TaskStorage,
        open_shard: Callable[[str], OpenShard],
        join_limit: int = 0,
        in_parts: bool = True,
    ) -> None:
        self._parts = joined(shards, join_limit)
        self.inputs = tuple(map(_joined_shard, self._parts))
        self._began = time.perf_counter()
        self._storage = storage
        self._open_shard = open_shard
        self._handles: list[tuple[Shard, ...] | Future[Shard]] = list(self._parts)
        self._folder: Path | None = None
        self._open: list[Backend] = []
        self._taken: dict[int, tuple[FileRef, ...]] = {}
        """Of shards that were merged beside the batches, their files."""
        self._storing: dict[int, list[Future[None]]] = {}
        """Their merged files on their way to the store."""
        self._pool: ThreadPoolExecutor | None = None
        self._line = Line()
        self._in_parts = in_parts
        """Whether parts of large files may be read. They no longer are when a shard needed so many that all were fetched: keys are
        spread alike over shards."""
        self._remote: dict[int, TaskRemoteFiles] = {}
        self._counting = threading.Lock()
        self.metrics: dict[str, float] = dict.fromkeys(
            ("opened", "open_s", "snapshot_s", "upload_s", "uploaded_bytes", "uploaded_files", "compacted_bytes",
             "inlined_bytes", "joined_shards"), 0,
        )  # fmt: skip
        cache = storage.cache()
        self._cache_before = (cache.hits, cache.misses, cache.bytes_fetched)

    def open(self, index: int) -> Backend:
        """Opens the state of one shard in a private folder."""
        began = time.perf_counter()
        shard = self.inputs[index]
        if self._folder is None:
            self._folder = self._storage.folder()
        directory = self._folder / str(index)
        directory.mkdir()
        fetched = self._folder / f"{index}-fetched"
        fetched.mkdir()
        refs = [ref for part in self._parts[index] for ref in part.files]
        fetch = self._storage.cache().fetcher(self._storage.store, fetched)
        remote = None
        if self._in_parts and len(self._parts[index]) == 1:
            remote = remote_files(refs, self._storage, self._line)
        fetch = self._fetched_at_once([ref for ref in refs if remote is None or not remote.has(ref)], fetch)
        if len(self._parts[index]) == 1:
            shard, fetch = self._with_merge(index, shard, fetch)
        if remote is None:
            backend = self._open_shard(shard.backend)(shard, directory, fetch)
        else:
            self._remote[index] = remote
            backend = self._open_shard(shard.backend)(shard, directory, fetch, remote)
        self._open.append(backend)
        if len(self._parts[index]) > 1:
            self._fill(backend, index, fetch)
        self.metrics["opened"] += 1
        self.metrics["open_s"] += time.perf_counter() - began
        return backend

    def _with_merge(self, index: int, shard: Shard, fetch: Fetch) -> tuple[Shard, Fetch]:
        """The shard with what was merged beside the batches, if a merge of it is done. The merged files are stored meanwhile."""
        assert self._folder is not None
        merge = take_merge(shard, self._storage, self._folder / f"{index}-merged", fetch)
        if merge is None:
            return shard, fetch
        self._taken[index] = merge.files
        self._storing[index] = [self._threads().submit(self._store_merged, *each) for each in merge.unstored]
        here = {ref.path: path for ref, path in merge.unstored}
        self._count(compacted_bytes=sum(ref.size for ref, _ in merge.unstored))
        return msgspec.structs.replace(shard, files=merge.files), lambda ref: here.get(ref.path) or fetch(ref)

    def _store_merged(self, ref: FileRef, local: Path) -> None:
        def upload(store: Store) -> FileRef:
            store.upload(local, ref.path)
            return ref

        self._stored(local, upload)

    def _fetched_at_once(self, refs: Iterable[FileRef], fetch: Fetch) -> Fetch:
        """Fetches the files, several at a time, and returns what gives each to the backend."""
        files = {ref: None for ref in refs if ref.data is None}
        if len(files) < 2 or self._storage.upload_threads < 2:
            return fetch
        local = dict(zip(files, self._threads().map(fetch, files), strict=True))
        return lambda ref: local.pop(ref) if ref in local else fetch(ref)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(1, self._storage.upload_threads), "stateflow-transfer")
        return self._pool

    def _fill(self, backend: Backend, index: int, fetch: Fetch) -> None:
        """Copies the parts' entries into the new shard. Their files cannot be mixed: their numbers would clash."""
        assert self._folder is not None
        for number, part in enumerate(self._parts[index]):
            source = self._open_shard(part.backend)(part, self._folder / f"{index}-part-{number}", fetch)
            try:
                backend.write(source.scan(*group_range(part.first, part.last)))
            finally:
                source.close()
        self.metrics["joined_shards"] += len(self._parts[index])

    def changes(self, index: int) -> bool:
        """True if opening the shard writes it again, even if no entry changes."""
        shard = self.inputs[index]
        clipped = (shard.physical_first, shard.physical_last) != (None, None)
        return clipped or len(self._parts[index]) > 1

    def is_empty(self, index: int) -> bool:
        """True if the shard has no entries. One that is joined from several begins without files, but not empty."""
        return not self.inputs[index].files and not self.changes(index)

    def keep(self, index: int, backend: Backend) -> None:
        """The task has only read the shard: its handle stays as it is, or names what was merged beside the batches."""
        self._judge_parts(index)
        backend.close()
        self._open.remove(backend)
        if index in self._taken:
            self._handles[index] = self._threads().submit(self._kept, index)

    def _kept(self, index: int) -> Shard:
        for stored in self._storing[index]:
            stored.result()
        return msgspec.structs.replace(self.inputs[index], files=self._taken[index])

    def finish(
        self,
        index: int,
        backend: Backend,
        timers: Timers,
        expiries: Timers = (None, None),
        expiring: tuple[ExpiryShare, ...] = (),
    ) -> None:
        """Takes the shard's snapshot and uploads its files in the background."""
        began = time.perf_counter()
        snapshot = backend.snapshot()
        self._judge_parts(index)
        self.metrics["snapshot_s"] += time.perf_counter() - began
        self.metrics["compacted_bytes"] += snapshot.compacted_bytes
        for name, value in snapshot.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0) + value
        threads = self._threads()
        uploads = [threads.submit(self._store_file, new) for new in snapshot.new]

        def stored() -> Shard:
            for each in self._storing.get(index, ()):
                each.result()
            files = snapshot.kept + tuple(upload.result() for upload in uploads)
            backend.close()
            self._open.remove(backend)
            made = msgspec.structs.replace(
                self.inputs[index],
                files=files,
                physical_first=None,
                physical_last=None,
                next_event_timer=timers[0],
                next_processing_timer=timers[1],
                next_event_expiry=expiries[0],
                next_processing_expiry=expiries[1],
                entries=snapshot.entries,
                expiring=expiring,
            )
            if snapshot.merge is not None:
                begin_merge(made, self._storage, snapshot.merge)
            return made

        # It waits for uploads that stand before it in the queue, so with one thread too it waits for nobody in vain.
        self._handles[index] = threads.submit(stored)

    def _judge_parts(self, index: int) -> None:
        if index in self._remote and not self._remote[index].paid:
            self._in_parts = False

    def _store_file(self, new: NewFile) -> FileRef:
        if new.data is not None:
            self._count(inlined_bytes=len(new.data))
            return inline(new.name, new.data)
        local, path = new.path, self._storage.shared_path(Path(new.name).suffix or ".bin")
        assert local is not None
        return self._stored(local, lambda store: upload_file(store, path, local, new.name))

    def _stored(self, local: Path, upload: Callable[[Store], FileRef]) -> FileRef:
        """Stores a file, where the host's cache finds it with the next batch."""
        began = time.perf_counter()
        store = self._storage.store()
        ref = upload(store)
        self._storage.cache().add(store, ref, local)
        self._count(uploaded_bytes=ref.size, uploaded_files=1, upload_s=time.perf_counter() - began)
        return ref

    def _count(self, **figures: float) -> None:
        with self._counting:
            for name, value in figures.items():
                self.metrics[name] += value

    def handles(self) -> tuple[Shard, ...]:
        """Waits until every file is stored. The first failed upload raises its error."""
        handles = tuple(
            shard for h in self._handles for shard in ((h.result(),) if isinstance(h, Future) else h)
        )
        if self._storage.large_files == "parts first":
            remote = self._remote.values()
            here = {ref for shard in handles for ref in shard.files}
            lacking = [ref for ref in here if any(each.has(ref) and each.paid for each in remote)]
            if lacking:
                begin_fetch(lacking, self._storage)
        return handles

    def figures(self) -> dict[str, float]:
        """The task's own figures, for its ack."""
        cache = self._storage.cache()
        hits, misses, fetched = self._cache_before
        return {
            **self.metrics,
            "cache_hits": cache.hits - hits,
            "cache_misses": cache.misses - misses,
            "fetched_bytes": cache.bytes_fetched - fetched,
            "task_s": time.perf_counter() - self._began,
            "max_peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        }

    def distrust(self) -> None:
        """After a CorruptError: this host's copies may be damaged, so the next attempt fetches and checks them again."""
        cache = self._storage.cache()
        for part in (shard for parts in self._parts for shard in parts):
            for ref in part.files:
                cache.distrust(self._storage.store(ref.base), ref)

    def close(self) -> None:
        """Frees what is still open. Safe at any point, also after a failure."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for backend in list(self._open):
            backend.close()
        if self._folder is not None:
            remove_scratch(self._folder)


def _joined_shard(parts: tuple[Shard, ...]) -> Shard:
    """The shard that the parts become. It is empty as yet; its timers are due when the first of theirs is."""
    if len(parts) == 1:
        return parts[0]

    def earliest(times: Iterable[int | None]) -> int | None:
        return min((at for at in times if at is not None), default=None)

    return Shard(
        first=parts[0].first,
        last=parts[-1].last,
        backend=parts[0].backend,
        next_event_timer=earliest(p.next_event_timer for p in parts),
        next_processing_timer=earliest(p.next_processing_timer for p in parts),
        next_event_expiry=earliest(p.next_event_expiry for p in parts),
        next_processing_expiry=earliest(p.next_processing_expiry for p in parts),
        entries=sum(p.entries for p in parts),
        expiring=joined_shares(p.expiring for p in parts),
    )

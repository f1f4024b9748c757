"""Opens a snapshot (the newest, a checkpoint, a tag, a savepoint) for look-ups on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.names import LatestCheckpoint, Name, parse, slot_of
from stateflow.checkpoint.pins import found_and_held, pin, release
from stateflow.config.options import cache_of, scratch_parent
from stateflow.errors import UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Pin, Record, Shard
from stateflow.reading.files.shard_files import StateFiles
from stateflow.reading.query import StateReader
from stateflow.state.backends.base import OpenShard, ReadShard
from stateflow.state.backends.choice import open_reader
from stateflow.state.backends.openings import OpenShards
from stateflow.storage.cache import FileCache
from stateflow.storage.roots import open_recorded
from stateflow.storage.store import Store

if TYPE_CHECKING:
    from stateflow.config.options import Options


@dataclass(frozen=True)
class ReaderContext:
    """What all readers of a process share: the host's cache, a scratch folder, and how to open stores and backends."""

    root: str
    cache: FileCache
    scratch: Path
    open_shard: Callable[[str], OpenShard]
    clock: Callable[[], int]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def store(self, base: str = "") -> Store:
        """The store of the root, or of the savepoint that a reference is relative to."""
        return open_recorded(base, self.storage_options, root=self.root)

    def files(self) -> StateFiles:
        """State files of these stores, read without a database."""
        return StateFiles(self.store, self.cache)

    def reader(
        self,
        record: Record,
        shards: OpenShards | None = None,
        read_files: Callable[[Shard], ReadShard] | None = None,
    ) -> StateReader:
        return StateReader(
            self.store,
            record,
            cache=self.cache,
            scratch=self.scratch,
            open_shard=self.open_shard,
            clock=self.clock,
            shards=shards,
            read_files=read_files,
        )


def reader_context(options: Options, root: str, clock: Callable[[], int]) -> ReaderContext:
    """Uses the same folders as runs, so that a state file in this host's cache is not fetched again."""
    folder = cache_of(options)
    return ReaderContext(
        root=root,
        cache=FileCache(folder / "state", options.cache_size),
        scratch=scratch_parent(options),
        open_shard=open_reader(options),
        clock=clock,
        storage_options=options.storage_options,
    )


@contextmanager
def checkpoint_reader(
    context: ReaderContext, job: str, which: str = "latest", *, owner: Owner, ids: Callable[[], str]
) -> Iterator[StateReader]:
    """Opens a complete checkpoint: `latest`, `42`, `checkpoint:42` or `tag:v1`. It is pinned until the block ends."""
    handle = JobHandle(context.store(), JobLayout(job), clock=context.clock, ids=ids)
    record, record_pin = _pinned(handle, parse(which), owner)
    reader = context.reader(record)
    try:
        yield reader
    finally:
        reader.close()
        release(handle.store, handle.layout, record_pin.id)


@contextmanager
def savepoint_reader(context: ReaderContext, url: str, job: str = "") -> Iterator[StateReader]:
    """Opens a native savepoint in any root or folder. With `job` it raises for a savepoint of another job."""
    from stateflow.savepoints.format import read_savepoint, resolved

    store = replace(context, root=url).store()  # the person who asks named it, no record did
    # As the store writes it: what is read below it is compared with this, and people write a / at the end.
    url, context = store.url, replace(context, root=store.url)
    savepoint = read_savepoint(store)
    if savepoint.kind != "native":
        raise UsageError(
            f"the savepoint {url} is canonical: it consists of tables, which have no look-ups; read it as a table, "
            "filtered by the key"
        )
    if job and savepoint.job != job:
        raise UsageError(f"the savepoint {url} is of job {savepoint.job!r}, not of {job!r}: name its job")
    reader = context.reader(resolved(savepoint, url))
    try:
        yield reader
    finally:
        reader.close()


def _pinned(job: JobHandle, name: Name, owner: Owner) -> tuple[Record, Pin]:
    def find() -> Record:
        log = job.log()
        return log.record(slot_of(name, job, log))

    def hold(record: Record) -> Pin:
        return pin(
            job.store,
            job.layout,
            record.slot,
            kind="reader",
            owner=owner,
            ids=job.new_id,
            clock=job.clock,
            reason="query",
        )

    return found_and_held(find, hold, again=name == LatestCheckpoint())

"""Opens a snapshot (the newest, a checkpoint, a tag, a savepoint) for look-ups on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.checkpoint.log import Log, list_jobs, read_identity, read_log
from stateflow.checkpoint.pins import pin, release, tags
from stateflow.config.options import cache_folder
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Pin, Record
from stateflow.reading.query import StateReader
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.choice import open_reader
from stateflow.state.backends.openings import OpenShards
from stateflow.storage.cache import FileCache
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store

if TYPE_CHECKING:
    from stateflow.config.options import Options

_TRIES = 5


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
        return open_store(base or self.root, self.storage_options)

    def reader(self, record: Record, shards: OpenShards | None = None) -> StateReader:
        return StateReader(
            self.store,
            record,
            cache=self.cache,
            scratch=self.scratch,
            open_shard=self.open_shard,
            clock=self.clock,
            shards=shards,
        )


def reader_context(options: Options, root: str, clock: Callable[[], int]) -> ReaderContext:
    """Uses the same folders as runs, so that a state file in this host's cache is not fetched again."""
    folder = Path(options.cache_dir) if options.cache_dir else cache_folder()
    return ReaderContext(
        root=root,
        cache=FileCache(folder / "state", options.cache_size),
        scratch=Path(options.scratch_dir or folder / "scratch").absolute(),
        open_shard=open_reader(options),
        clock=clock,
        storage_options=options.storage_options,
    )


@contextmanager
def checkpoint_reader(
    context: ReaderContext, job: str, which: str = "latest", *, owner: Owner, ids: Callable[[], str]
) -> Iterator[StateReader]:
    """Opens a complete checkpoint: `latest`, `42`, `checkpoint:42` or `tag:v1`. It is pinned until the block ends."""
    store, layout = context.store(), JobLayout(job)
    record, record_pin = _pinned(context, store, layout, which, owner, ids)
    reader = context.reader(record)
    try:
        yield reader
    finally:
        reader.close()
        release(store, layout, record_pin.id)


@contextmanager
def savepoint_reader(context: ReaderContext, url: str, job: str = "") -> Iterator[StateReader]:
    """Opens a native savepoint in any root or folder. With `job` it raises for a savepoint of another job."""
    from stateflow.savepoints.format import read_savepoint, resolved

    savepoint = read_savepoint(context.store(url))
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


def read_job(store: Store, layout: JobLayout) -> Log:
    """The job's log. If there is no such job, NotFoundError names those that exist."""
    if read_identity(store, layout) is None:
        known = ", ".join(list_jobs(store)) or "none"
        raise NotFoundError(f"there is no job {layout.job!r} in {store.url}; its jobs are: {known}")
    return read_log(store, layout)


def head_of(log: Log) -> Record:
    """The newest complete record that carries state."""
    if (head := log.head) is None:
        raise NotFoundError(f"job {log.job!r} has no complete checkpoint yet: run it first")
    return head


def _pinned(
    context: ReaderContext, store: Store, layout: JobLayout, which: str, owner: Owner, ids: Callable[[], str]
) -> tuple[Record, Pin]:
    for tries_left in reversed(range(_TRIES)):
        record = _chosen(store, layout, read_job(store, layout), which)
        try:
            record_pin = pin(
                store,
                layout,
                record.slot,
                kind="reader",
                owner=owner,
                ids=ids,
                clock=context.clock,
                reason="query",
            )
            return record, record_pin
        except NotFoundError:
            # The record that was the newest a moment ago may be collected by now.
            if which != "latest" or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _chosen(store: Store, layout: JobLayout, log: Log, which: str) -> Record:
    kind, _, rest = which.rpartition(":")
    if which == "latest":
        return head_of(log)
    if kind == "tag":
        tag = tags(store, layout).get(rest)
        if tag is None:
            known = ", ".join(tags(store, layout)) or "none"
            raise NotFoundError(f"job {layout.job!r} has no tag {rest!r}; its tags are: {known}")
        slot = tag.slot
    elif kind in ("", "checkpoint") and rest.isdecimal():
        slot = int(rest)
    else:
        raise UsageError(f"{which!r} names no checkpoint: write latest, a number, or tag:NAME")
    record = log.record(slot)
    if not log.slots[slot].complete or not record.carries_state:
        problem = "is not carried out yet" if record.carries_state else "is a fence, which carries no state"
        raise NotFoundError(
            f"record {slot} of job {layout.job!r} {problem}: `stateflow checkpoints {layout.job}` lists what can be read"
        )
    return record


__all__ = ["ReaderContext", "checkpoint_reader", "head_of", "read_job", "reader_context", "savepoint_reader"]

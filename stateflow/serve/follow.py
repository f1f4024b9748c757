"""A job's newest checkpoint, open for queries. It is pinned before it is opened, and released after a newer one replaces it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import BodyCache, list_jobs, read_identity, read_log
from stateflow.checkpoint.names import complete_records, head_of, parse, slot_of
from stateflow.checkpoint.pins import found_and_held, list_pins, pin, release
from stateflow.errors import NotFoundError, StateflowError, UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Record
from stateflow.liveness.stale_pins import stale
from stateflow.reading.past_states import file_reader, gone
from stateflow.reading.query import OPEN_SHARDS, StateReader
from stateflow.reading.snapshots import ReaderContext
from stateflow.state.backends.openings import OpenShards

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Served:
    """One record while it is served."""

    record: Record
    reader: StateReader
    pin: str = ""
    users: int = 0


@dataclass(frozen=True, slots=True)
class Then:
    """An older checkpoint that was asked for, and what came after it."""

    record: Record
    later: Sequence[Record]
    """The kept records after it, which ascend."""


class FollowedJob:
    """Many threads may use it at once. Only `refresh`, `close` and `kept` use the store, and a query never calls them."""

    def __init__(
        self, context: ReaderContext, name: str, *, owner: Owner, ids: Callable[[], str], shards: OpenShards
    ) -> None:
        self.name = name
        self._context, self._store, self._layout = context, context.store(), JobLayout(name)
        self._owner, self._ids, self._shards = owner, ids, shards
        self._bodies: BodyCache = {}
        self._uuid = ""
        """Of the job that was seen last. One that was made anew under the name may have other bodies under the same names and sizes."""
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._served: Served | None = None
        self._retired: list[Served] = []
        """No longer served. Each is closed and released when its last reader is done."""
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._closed = False

    @property
    def record(self) -> Record | None:
        """The record that is served now."""
        served = self._served
        return served.record if served else None

    @contextmanager
    def reading(self) -> Iterator[Served]:
        """The record that is served now. It stays open until the block ends."""
        with self._lock:
            served = self._served
            if served is None:
                raise self._unknown()
            served.users += 1
        try:
            yield served
        finally:
            with self._lock:
                served.users -= 1

    def kept(self, name: str) -> Then:
        """An older checkpoint, by slot, tag or time. It uses the store, as `refresh` does."""
        job = JobHandle(self._store, self._layout, clock=self._context.clock, ids=self._ids)
        log = job.log()
        record = log.record(slot_of(parse(name), job, log))
        return Then(record, [each for each in complete_records(log) if each.slot > record.slot])

    @contextmanager
    def reading_kept(self, record: Record) -> Iterator[Served]:
        """An older checkpoint. Nobody pins it, so it may be collected meanwhile, which is a NotFoundError."""
        try:
            yield Served(record, file_reader(self._context, record))
        except StateflowError as error:
            if not gone(error):
                raise
            raise NotFoundError(
                f"checkpoint {record.slot} of job {self.name!r} was collected while it was read: ask for a newer one, or keep it "
                f"with `stateflow tag {self.name} NAME` first"
            ) from error

    def refresh(self) -> bool:
        """Looks for a newer checkpoint and serves it. Returns whether there was one. On an error it keeps serving the old one."""
        with self._refreshing:
            if self._closed:
                raise self._unknown()
            self._release_retired()
            # As long as nothing happens, this listing and this reading are all that a refresh costs.
            listed = frozenset((entry.path, entry.size) for entry in self._store.list(self._layout.log))
            identity = read_identity(self._store, self._layout)
            if (
                self._served is not None
                and identity is not None
                and (identity.uuid, listed) == (self._uuid, self._seen)
            ):
                return False
            if identity is None:
                self._retire(None)
                self._release_retired()
                raise self._unknown()
            if identity.uuid != self._uuid:
                self._uuid, self._bodies = identity.uuid, {}
            newest = self._pin_newest()
            if newest is not None:
                self._switch_to(*newest)
            self._seen = listed
            self._release_retired()
            return newest is not None

    def _pin_newest(self) -> tuple[Record, str] | None:
        """Pins the newest checkpoint. Returns it with the pin's id; None when it is served already."""
        served = self._served

        def find() -> Record | None:
            head = head_of(read_log(self._store, self._layout, cache=self._bodies))
            known = served is not None and (served.record.job, served.record.writer) == (
                head.job,
                head.writer,
            )
            return None if known else head

        def hold(head: Record | None) -> str:
            if head is None:
                return ""
            return pin(
                self._store,
                self._layout,
                head.slot,
                kind="reader",
                owner=self._owner,
                ids=self._ids,
                clock=self._context.clock,
                name="serve",
                reason="stateflow serve",
            ).id

        head, pin_id = found_and_held(find, hold)
        return (head, pin_id) if head else None

    def _switch_to(self, record: Record, pin_id: str) -> None:
        reader = self._context.reader(record, self._shards)
        before = self._served
        try:
            # A shard that was queried will be queried again, and that query should not wait for its files.
            for operator, first, last in before.reader.open_shards() if before else ():
                reader.warm(operator, first, last)
        except BaseException:
            reader.close()
            release(self._store, self._layout, pin_id)
            raise
        self._retire(Served(record, reader, pin_id))

    def _retire(self, successor: Served | None) -> None:
        with self._lock:
            if self._served is not None:
                self._retired.append(self._served)
            self._served = successor

    def _release_retired(self, *, also_used: bool = False) -> None:
        """Closes and releases the retired records that nobody reads. A pin that cannot be released now is released later."""
        with self._lock:
            unused = [served for served in self._retired if also_used or served.users == 0]
        for served in unused:
            served.reader.close()
            try:
                release(self._store, self._layout, served.pin)
            except UnavailableError as error:
                _log.warning("the pin on checkpoint %d stays for now: %s", served.record.slot, error)
                continue
            with self._lock:
                self._retired.remove(served)

    def close(self) -> None:
        """Closes and releases everything for good. A query that is still running may fail."""
        with self._refreshing:
            self._closed = True
            self._retire(None)
            self._release_retired(also_used=True)

    def _unknown(self) -> NotFoundError:
        return NotFoundError(f"there is no job {self.name!r} in {self._store.url}")


class FollowedJobs:
    """The jobs of a root. Each is followed from the first request for it."""

    def __init__(
        self,
        context: ReaderContext,
        *,
        owner: Owner,
        ids: Callable[[], str],
        only: Sequence[str] = (),
        open_shards: int = OPEN_SHARDS,
    ) -> None:
        self._context, self._owner, self._ids = context, owner, ids
        self.only = tuple(only)
        self._shards = OpenShards(open_shards)
        self._jobs: dict[str, FollowedJob] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> FollowedJob | None:
        """The job, if it is followed already."""
        return self._jobs.get(name)

    def follow(self, name: str) -> FollowedJob:
        """The job, opened if necessary. NotFoundError when there is no such job, or it has no checkpoint."""
        if self.only and name not in self.only:
            raise NotFoundError(f"this server does not serve job {name!r}: start it with --job {name}")
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = FollowedJob(
                    self._context, name, owner=self._owner, ids=self._ids, shards=self._shards
                )
        try:
            if job.record is None:
                job.refresh()
        finally:
            if job.record is None:
                self.forget(name)
        return job

    def forget(self, name: str) -> None:
        """Stops following a job and closes it."""
        with self._lock:
            job = self._jobs.pop(name, None)
        if job is not None:
            job.close()

    def names(self) -> list[str]:
        """Every job that a client may ask for."""
        return sorted(self.only) if self.only else list_jobs(self._context.store())

    def close(self) -> None:
        for name in list(self._jobs):
            try:
                self.forget(name)
            except StateflowError as error:
                _log.warning("job %s was not closed properly: %s", name, error)
        self._shards.drop()

    def release_stale(self) -> int:
        """Releases the pins of readers that died on this host. Returns how many."""
        store, released = self._context.store(), 0
        for name in self.names():
            layout = JobLayout(name)
            try:
                for old in stale(list_pins(store, layout), self._owner):
                    release(store, layout, old.id)
                    released += 1
            except StateflowError as error:
                # The other jobs are served all the same.
                _log.warning("pins of dead readers of job %s stay for now: %s", name, error)
        return released


__all__ = ["FollowedJob", "FollowedJobs", "Served"]

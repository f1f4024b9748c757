"""A job's newest checkpoint, open for queries: pinned before it is opened, let go when a newer one has taken over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stateflow.checkpoint.log import BodyCache, list_jobs, read_identity, read_log
from stateflow.checkpoint.names import head_of
from stateflow.checkpoint.pins import list_pins, pin, release
from stateflow.errors import NotFoundError, StateflowError, UnavailableError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Record
from stateflow.liveness.stale_pins import stale
from stateflow.reading.query import OPEN_SHARDS, StateReader
from stateflow.reading.snapshots import ReadingPlace
from stateflow.state.backends.openings import OpenShards

_log = logging.getLogger(__name__)
_TRIES = 5


@dataclass(slots=True)
class Served:
    """One record while it is served."""

    record: Record
    reader: StateReader
    pin: str
    users: int = 0


class FollowedJob:
    """Safe from many threads. Only `refresh` and `close` speak to the store, and they are never called by a query."""

    def __init__(
        self, place: ReadingPlace, name: str, *, owner: Owner, ids: Callable[[], str], shards: OpenShards
    ) -> None:
        self.name = name
        self._place, self._store, self._layout = place, place.store(), JobLayout(name)
        self._owner, self._ids, self._shards = owner, ids, shards
        self._bodies: BodyCache = {}
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._served: Served | None = None
        self._past: list[Served] = []
        """No longer served; let go when their last user has."""
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._closed = False

    @property
    def record(self) -> Record | None:
        """What is served now."""
        served = self._served
        return served.record if served else None

    @contextmanager
    def reading(self) -> Iterator[Served]:
        """What is served now, kept until the block ends."""
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

    def refresh(self) -> bool:
        """Looks for a newer checkpoint and goes over to it; whether it did. What is served stays if that fails."""
        with self._refreshing:
            if self._closed:
                raise self._unknown()
            self._let_go()
            # One listing, for as long as nothing happens.
            listed = frozenset((entry.path, entry.size) for entry in self._store.list(self._layout.log))
            if self._served is not None and listed == self._seen:
                return False
            if read_identity(self._store, self._layout) is None:
                self._retire(None)
                self._let_go()
                raise self._unknown()
            found = self._pinned()
            if found is not None:
                self._go_over(*found)
            self._seen = listed
            self._let_go()
            return found is not None

    def _pinned(self) -> tuple[Record, str] | None:
        """The newest checkpoint and the pin on it; None when it is served already."""
        for tries_left in reversed(range(_TRIES)):
            head = head_of(read_log(self._store, self._layout, cache=self._bodies))
            served = self._served
            if served is not None and served.record.writer == head.writer:
                return None
            try:
                made = pin(
                    self._store,
                    self._layout,
                    head.slot,
                    kind="reader",
                    owner=self._owner,
                    ids=self._ids,
                    clock=self._place.clock,
                    name="serve",
                    reason="stateflow serve",
                )
                return head, made.id
            except NotFoundError:
                # Collected since it was the newest.
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _go_over(self, record: Record, pin_id: str) -> None:
        reader = self._place.reader(record, self._shards)
        before = self._served
        try:
            # What was asked for will be asked for again, and should not wait for its files.
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
                self._past.append(self._served)
            self._served = successor

    def _let_go(self, *, all_of_it: bool = False) -> None:
        """Of what nobody reads any more. A pin that cannot be released now is released later."""
        with self._lock:
            over = [served for served in self._past if all_of_it or served.users == 0]
        for served in over:
            served.reader.close()
            try:
                release(self._store, self._layout, served.pin)
            except UnavailableError as error:
                _log.warning("the pin on checkpoint %d stays for now: %s", served.record.slot, error)
                continue
            with self._lock:
                self._past.remove(served)

    def close(self) -> None:
        """Releases everything, for good. A query that is still under way may fail."""
        with self._refreshing:
            self._closed = True
            self._retire(None)
            self._let_go(all_of_it=True)

    def _unknown(self) -> NotFoundError:
        return NotFoundError(f"there is no job {self.name!r} in {self._store.url}")


class FollowedJobs:
    """The jobs of a root, each followed from the first time that it is asked for."""

    def __init__(
        self,
        place: ReadingPlace,
        *,
        owner: Owner,
        ids: Callable[[], str],
        only: Sequence[str] = (),
        open_shards: int = OPEN_SHARDS,
    ) -> None:
        self._place, self._owner, self._ids = place, owner, ids
        self.only = tuple(only)
        self._shards = OpenShards(open_shards)
        self._jobs: dict[str, FollowedJob] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> FollowedJob | None:
        """The job, if it is followed already."""
        return self._jobs.get(name)

    def follow(self, name: str) -> FollowedJob:
        """The job, opened if need be. NotFoundError when there is none, or none with a checkpoint."""
        if self.only and name not in self.only:
            raise NotFoundError(f"this server does not serve job {name!r}: start it with --job {name}")
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = FollowedJob(
                    self._place, name, owner=self._owner, ids=self._ids, shards=self._shards
                )
        try:
            if job.record is None:
                job.refresh()
        finally:
            if job.record is None:
                self.forget(name)
        return job

    def forget(self, name: str) -> None:
        """A job that is no more."""
        with self._lock:
            job = self._jobs.pop(name, None)
        if job is not None:
            job.close()

    def names(self) -> list[str]:
        """Every job that could be asked for."""
        return sorted(self.only) if self.only else list_jobs(self._place.store())

    def close(self) -> None:
        for name in list(self._jobs):
            try:
                self.forget(name)
            except StateflowError as error:
                _log.warning("job %s was not closed properly: %s", name, error)
        self._shards.drop()

    def release_stale(self) -> int:
        """Releases what readers that died on this host had pinned; how many pins those were."""
        store, released = self._place.store(), 0
        for name in self.names():
            layout = JobLayout(name)
            try:
                for old in stale(list_pins(store, layout), self._owner):
                    release(store, layout, old.id)
                    released += 1
            except StateflowError as error:
                # Others may be served all the same.
                _log.warning("pins of dead readers of job %s stay for now: %s", name, error)
        return released


__all__ = ["FollowedJob", "FollowedJobs", "Served"]

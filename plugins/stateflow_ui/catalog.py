"""All roots and jobs as the pages know them: answers come from memory, and threads keep it fresh at a bounded pace.

Nothing is read while nobody looks. While somebody does (a page, or a monitoring system that scrapes), every root is read
by a few threads of its own, jobs one after the other, for a fifth of the time at most; a job whose page is open comes first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log, list_jobs
from stateflow.checkpoint.retention import cleanup_rules
from stateflow.config.retention_rule import RetentionRule
from stateflow.errors import (
    BusyError,
    CorruptError,
    NotFoundError,
    StateflowError,
    UnavailableError,
)
from stateflow.format.layout import JobLayout
from stateflow.format.records import Outcome, Record
from stateflow.reading.past_states import KeyOfState
from stateflow.replay.reports import KeptReport, kept_reports
from stateflow.savepoints.format import ListedSavepoint, list_savepoints
from stateflow.storage.store import Store
from stateflow_ui.cached_value import CachedValue, CacheState
from stateflow_ui.job_reader import JobFacts, JobReader
from stateflow_ui.reader_threads import ReaderThreads
from stateflow_ui.root import Root, no_root
from stateflow_ui.state_reader import ReadDifferences, ReadHistory, StateReader, whole_records
from stateflow_ui.storage import StorageFacts, read_storage

_log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds that a request waits for an answer that is unknown or old."""
WATCHED = 120.0
"""Seconds after the last request for which everything stays fresh."""
ROOTS_EVERY, NAMES_EVERY, JOBS_EVERY, OPEN_EVERY, SAVEPOINTS_EVERY, STORAGE_EVERY = (
    30.0,
    10.0,
    5.0,
    3.0,
    15.0,
    60.0,
)
"""Least seconds between two readings: connections, names of jobs, jobs, jobs whose page is open, and so on."""
SHARE = 0.2
"""The share of one thread's time that goes into reading the jobs of a root."""
WHOLE_JOBS, WHOLE_FOR = 8, 900.0
"""Jobs whose whole history stays in memory: so many, for so many seconds after somebody has looked."""
SLOW = 10.0
"""Seconds after which a root that has not answered is said not to answer."""
_OLD = 30.0
_OPEN_FOR = 60.0
_CHECKPOINTS, _RETAINED, _ANSWERS = 32, 4, 8
"""Per job: how many checkpoints, answers to "what would a clean-up free", and answers about state stay in memory."""
_CHECKPOINTS_AT_ONCE, _STORAGE_AT_ONCE, _ANSWERS_AT_ONCE = 4, 1, 2
"""Per job: so many may be read, or wait to be read, at a time. Viewers choose their numbers."""
_WAITING_RECORDS, _WAITING_STORAGE, _WAITING_STATE = 64, 8, 8
"""Per root: readings of these kinds that may wait for a thread."""
K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RootState:
    conn_id: str
    root: str
    error: str
    """Why it cannot be read, in one sentence; empty when it can."""
    read: bool
    """Whether its jobs are known."""
    team: str = ""
    """Whose connection it was when it was read."""


@dataclass(frozen=True, slots=True)
class JobState:
    conn_id: str
    name: str
    facts: CacheState[JobFacts]


class _JobEntry:
    def __init__(self, root: _RootEntry, name: str) -> None:
        self.root, self.name = root, name
        self.asked_at = float("-inf")
        self.whole = False
        self.reader = JobReader(
            root.source.conn_id,
            root.store,
            name,
            patience=root.source.heartbeat_timeout,
            clock=root.clock,
            fetchers=root.fetchers,
        )
        what = f"job {name!r} in {root.store.url}"
        self.facts: CachedValue[JobFacts] = CachedValue(
            what, lambda: self.reader.read(whole=self.whole), root.readers, root.monotonic
        )
        self.savepoints: CachedValue[list[tuple[str, ListedSavepoint]]] = CachedValue(
            f"the savepoints of {what}",
            lambda: list_savepoints(root.store, name),
            root.readers,
            root.monotonic,
        )
        self.storage: OrderedDict[tuple[int, timedelta, RetentionRule], CachedValue[StorageFacts]] = (
            OrderedDict()
        )
        self.answers: OrderedDict[tuple[object, ...], CachedValue[object]] = OrderedDict()
        """To questions about state."""
        self.replays: CachedValue[list[KeptReport]] = CachedValue(
            f"the replays of {what}",
            lambda: kept_reports(root.store, self.reader.layout),
            root.readers,
            root.monotonic,
        )
        self.checkpoints: OrderedDict[
            tuple[int, str, bool], CachedValue[tuple[Record, Outcome | None] | None]
        ] = OrderedDict()


class _RootEntry:
    """One connection's root, its threads and its jobs."""

    def __init__(self, source: Root, clock: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self.source, self.clock, self.monotonic = source, clock, monotonic
        self.readers = ReaderThreads(4, f"stateflow-ui {source.conn_id}")
        self.fetchers = ReaderThreads(8, f"stateflow-ui {source.conn_id} records")
        self.record_readers = ReaderThreads(2, f"stateflow-ui {source.conn_id} checkpoints", _WAITING_RECORDS)
        self.storage_readers = ReaderThreads(1, f"stateflow-ui {source.conn_id} storage", _WAITING_STORAGE)
        self.state_readers = ReaderThreads(1, f"stateflow-ui {source.conn_id} state", _WAITING_STATE)
        self.names: CachedValue[list[str]] = CachedValue(
            f"the root {source.shown}", self._names, self.readers, monotonic
        )
        self.jobs: dict[str, _JobEntry] = {}
        self._opened: Store | None = None

    @property
    def store(self) -> Store:
        if self._opened is None:
            self._opened = self.source.store()
        return self._opened

    def _names(self) -> list[str]:
        folder = self.store.local_root
        if folder is not None and not folder.is_dir():
            raise NotFoundError(
                f"the checkpoint root {folder} does not exist on the API server: mount it there too, or wait for the "
                "first run, which creates it"
            )
        return list_jobs(self.store)

    def state(self) -> RootState:
        known = self.names.known()
        error = self.source.problem or (str(known.error) if known.error is not None else "")
        if not error and known.waiting is not None and known.waiting > SLOW:
            error = f"the root {self.source.shown} has not answered for {known.waiting:.0f} seconds"
        source = self.source
        return RootState(source.conn_id, source.shown, error, known.value is not None, source.team)


class Catalog:
    """Safe from many threads; what is `async` waits without holding one."""

    def __init__(
        self,
        read_roots: Callable[[], list[Root]],
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        ticking: bool = True,
    ) -> None:
        self.clock, self._monotonic = clock, monotonic
        self._patience, self._ticking = patience, ticking
        self._readers = ReaderThreads(2, "stateflow-ui")
        self._sources: CachedValue[list[Root]] = CachedValue(
            "Airflow's connections of type stateflow", read_roots, self._readers, monotonic
        )
        self._roots: dict[str, _RootEntry] = {}
        self._lock = threading.RLock()
        self._looked_at = float("-inf")
        self._ticker: threading.Thread | None = None

    def teams(self) -> dict[str, str]:
        """By connection, whose the roots that are known were when they were read."""
        with self._lock:
            return {conn_id: root.source.team for conn_id, root in self._roots.items()}

    async def overview(self) -> tuple[list[RootState], list[JobState]]:
        """All roots and jobs, as far as they are known."""
        deadline = self._begin()
        await self._fresh([self._sources], ROOTS_EVERY, deadline)
        roots = self._synchronised()
        await self._fresh([r.names for r in roots if not r.source.problem], NAMES_EVERY, deadline)
        roots = self._synchronised()
        self._refresh_due()
        jobs = [job for root in roots if not root.state().error for job in list(root.jobs.values())]
        await self._fresh([job.facts for job in jobs], max(JOBS_EVERY, WATCHED), deadline)
        problem = self._sources.known().error
        if problem is not None and not roots:
            raise problem
        states = [
            JobState(root.source.conn_id, job.name, job.facts.known())
            for root in roots
            for job in sorted(root.jobs.values(), key=lambda job: job.name)
        ]
        # A job that was deleted is listed for a while.
        existing = [state for state in states if not isinstance(state.facts.error, NotFoundError)]
        return [root.state() for root in roots], existing

    async def job(self, conn_id: str, name: str) -> JobFacts:
        """One job with its history: what is known of it by now, perhaps not all of it yet."""
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        self._open(entry)
        pace = self._pace(entry, 0.0)
        patient = True
        while True:
            known = entry.facts.known()
            value, waiting = known.value, known.waiting or 0.0
            young = known.age is not None and known.age < max(_OLD, 2 * pace)
            if value is not None and value.whole and young:
                if entry.facts.due(pace):
                    entry.facts.refresh(urgent=True)
                return value
            remaining = deadline - self._monotonic()
            failed = known.error is not None and not entry.facts.due(OPEN_EVERY)
            if not patient or remaining <= 0 or failed or (value is not None and waiting >= self._patience):
                break
            patient = await _done([entry.facts.refresh(urgent=True)], remaining)
        if isinstance(known.error, NotFoundError):
            self._forget(conn_id, name)
            raise known.error
        return self._value(known, f"job {name!r}")

    def error_of(self, conn_id: str, name: str) -> str:
        """Why the last reading of a job failed, while an older one is shown; empty when it went well."""
        root = self._roots.get(conn_id)
        job = root.jobs.get(name) if root is not None else None
        error = job.facts.known().error if job is not None else None
        return str(error) if error is not None else ""

    async def savepoints(self, conn_id: str, name: str) -> list[tuple[str, ListedSavepoint]]:
        """Those in the default place of the root, each with its folder's path."""
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        await self._fresh([entry.savepoints], SAVEPOINTS_EVERY, deadline)
        return self._value(entry.savepoints.known(), f"the savepoints of job {name!r}")

    async def storage(
        self, conn_id: str, name: str, retained: int, age: timedelta | None = None
    ) -> StorageFacts:
        """What the job takes, and what a clean-up that keeps so many checkpoints would free.

        `age`: those that are younger stay as well; None: as the connection's options say.
        """
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        kept = cleanup_rules(entry.root.source.options, retained, age, None)
        cached = self._chosen(
            entry.storage,
            kept,
            lambda: CachedValue(
                f"the storage of job {name!r}",
                partial(read_storage, entry.reader.store, entry.reader.layout, *kept, clock=self.clock),
                entry.root.storage_readers,
                self._monotonic,
            ),
            at_once=_STORAGE_AT_ONCE,
            most=_RETAINED,
        )
        await self._fresh([cached], max(STORAGE_EVERY, cached.cost * 20), deadline, old=3600.0)
        return self._value(cached.known(), f"what job {name!r} stores")

    async def checkpoint(
        self, conn_id: str, name: str, slot: int
    ) -> tuple[JobFacts, tuple[Record, Outcome | None] | None]:
        """One record as it was written; None when only its line is left."""
        facts = await self.job(conn_id, name)
        deadline = self._begin()
        folder = facts.log.slots.get(slot)
        if folder is not None and folder.unreadable:
            raise CorruptError(f"{folder.unreadable[0]} cannot be read: run `stateflow verify {name}`")
        if folder is None or folder.record is None or slot not in facts.standing:
            return facts, None
        entry = await self._entry(conn_id, name, deadline)
        cached = self._chosen(
            entry.checkpoints,
            (slot, folder.record.writer, folder.complete),
            lambda: CachedValue(
                f"checkpoint {slot} of job {name!r}",
                partial(entry.reader.record, slot),
                entry.root.record_readers,
                self._monotonic,
            ),
            at_once=_CHECKPOINTS_AT_ONCE,
            most=_CHECKPOINTS,
        )
        known = cached.known()
        if known.age is None:
            await _done([cached.refresh(urgent=True)], max(0.0, deadline - self._monotonic()))
            known = cached.known()
        if known.age is None:
            self._value(known, f"checkpoint {slot} of job {name!r}")
        return facts, known.value

    async def key_history(self, conn_id: str, name: str, asked: KeyOfState, since: str) -> ReadHistory:
        """What a state held for a key after each kept checkpoint in which it changed."""

        def read(reader: StateReader, log: Log) -> ReadHistory:
            return reader.history(asked, since, log)

        return await self._of_state(conn_id, name, ("key", asked, since), read)

    async def differences(
        self, conn_id: str, name: str, before: str, after: str, operator: str, state: str
    ) -> ReadDifferences:
        """What changed between two checkpoints."""

        def read(reader: StateReader, log: Log) -> ReadDifferences:
            return reader.differences(before, after, operator, state, log)

        return await self._of_state(conn_id, name, ("differences", before, after, operator, state), read)

    async def replays(self, conn_id: str, name: str) -> list[KeptReport]:
        """Reports that were kept, newest first."""
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        await self._fresh([entry.replays], SAVEPOINTS_EVERY, deadline)
        return self._value(entry.replays.known(), f"the replays of job {name!r}")

    async def _of_state(
        self, conn_id: str, name: str, question: tuple[object, ...], read: Callable[[StateReader, Log], T]
    ) -> T:
        """An answer holds as long as the job has the same head: an erasure makes another one, too.

        The slots of a job that was deleted and begun again are as those of the one before, so the answer is of one uuid.
        """
        facts = await self.job(conn_id, name)
        what = f"what the state of job {name!r} holds"
        if not facts.whole:
            raise UnavailableError(
                f"{what} is not known yet: its checkpoints are being read, ask again in a moment"
            )
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        root, slots = entry.root, entry.reader
        handle = JobHandle(root.store, slots.layout, clock=self.clock)
        reader = StateReader(
            root.source,
            handle,
            lambda wanted: whole_records(list(slots.each(slots.whole_record, wanted)), wanted),
        )
        key = (*question, facts.status.uuid, facts.status.head, tuple(sorted(facts.status.tags.items())))
        cached = self._chosen(
            entry.answers,
            key,
            lambda: CachedValue(what, lambda: read(reader, facts.log), root.state_readers, self._monotonic),
            at_once=_ANSWERS_AT_ONCE,
            most=_ANSWERS,
        )
        known = cached.known()
        if known.age is None and (known.error is None or cached.due(_OLD)):
            await _done([cached.refresh(urgent=True)], max(0.0, deadline - self._monotonic()))
            known = cached.known()
        return cast("T", self._value(known, what))

    def _chosen(
        self,
        cache: OrderedDict[K, CachedValue[T]],
        key: K,
        make: Callable[[], CachedValue[T]],
        *,
        at_once: int,
        most: int,
    ) -> CachedValue[T]:
        """One of the values that a viewer chooses by a number. BusyError when so many others of the job are being read."""
        with self._lock:
            cached = cache.get(key)
            reading = sum(
                other.known().waiting is not None for other in cache.values() if other is not cached
            )
            if reading >= at_once and (cached is None or cached.known().age is None):
                raise BusyError(
                    "the pages are reading the same of this job with another number: ask again in a moment"
                )
            cached = cached or make()
            cache[key] = cached
            cache.move_to_end(key)
            # A value that is being read stays: without it nobody would count its reading.
            for old in [each for each, value in cache.items() if value.known().waiting is None][
                : max(0, len(cache) - most)
            ]:
                del cache[old]
            return cached

    def refresh_due(self) -> None:
        """Begins every reading whose time has come, while somebody looks; the ticker does it every second."""
        if self._monotonic() - self._looked_at < WATCHED:
            if self._sources.due(ROOTS_EVERY):
                self._sources.refresh()
            self._synchronised()
            self._refresh_due()

    def _begin(self) -> float:
        """Notes that somebody looks; until when the request may wait."""
        now = self._looked_at = self._monotonic()
        with self._lock:
            if self._ticking and self._ticker is None:
                ticker = threading.Thread(target=self._tick, name="stateflow-ui clock", daemon=True)
                # The machine may have no thread for it. The next request tries again then.
                ticker.start()
                self._ticker = ticker
        return now + self._patience

    def _tick(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(1.0)
            with self._lock:
                if self._monotonic() - self._looked_at >= WATCHED:
                    self._ticker = None
                    return
            try:
                self.refresh_due()
            except Exception:
                _log.exception("what is due was not read")  # and is due again in a second

    def _refresh_due(self) -> None:
        for root in list(self._roots.values()):
            if root.source.problem:
                continue
            if root.names.due(max(NAMES_EVERY, root.names.cost * 3)):
                root.names.refresh()
            known = root.names.known()
            if known.error is not None or known.value is None:
                continue  # a root that does not answer is asked one thing at a time
            jobs = list(root.jobs.values())
            together = sum(job.facts.cost for job in jobs) / SHARE
            for job in jobs:
                if job.facts.due(self._pace(job, together)):
                    self._close_if_forgotten(job)
                    job.facts.refresh()

    def _pace(self, job: _JobEntry, together: float) -> float:
        """Seconds between two readings of a job. `together`: of all jobs of its root, for reading each once."""
        if self._monotonic() - job.asked_at < _OPEN_FOR:
            return max(OPEN_EVERY, job.facts.cost * 10)
        return max(JOBS_EVERY, together)

    def _synchronised(self) -> list[_RootEntry]:
        """The roots by the connections that are known, with their jobs by the names that are known."""
        with self._lock:
            sources = self._sources.known().value
            if sources is not None:
                self._roots = {
                    source.conn_id: old
                    if (old := self._roots.get(source.conn_id)) is not None and old.source == source
                    else _RootEntry(source, self.clock, self._monotonic)
                    for source in sources
                }
            for root in self._roots.values():
                names = root.names.known().value
                if names is None:
                    continue
                open_names = {job.name for job in root.jobs.values() if self._is_open(job)}
                shown = [*names, *sorted(open_names - set(names))]
                root.jobs = {name: root.jobs.get(name) or _JobEntry(root, name) for name in shown}
            return list(self._roots.values())

    def _is_open(self, job: _JobEntry) -> bool:
        return self._monotonic() - job.asked_at < _OPEN_FOR

    async def _entry(self, conn_id: str, name: str, deadline: float) -> _JobEntry:
        JobLayout(name)  # refuses what is no name of a job before anything is done with it
        await self._fresh([self._sources], ROOTS_EVERY, deadline)
        self._synchronised()
        with self._lock:
            root = self._roots.get(conn_id)
            if root is None:
                known = self._sources.known()
                if known.value is None:
                    self._value(known, "Airflow's connections of type stateflow")
                raise NotFoundError(no_root(conn_id))
            if root.source.problem:
                raise UnavailableError(root.source.problem)
        if name not in root.jobs:
            # Names come from the root's listing only: whoever makes names up starts no reading of each.
            await self._listed(root, deadline)
        with self._lock:
            entry = root.jobs.get(name)
        if entry is None:
            names = root.names.known()
            if isinstance(names.error, NotFoundError):
                raise NotFoundError(f"there is no job {name!r}: {names.error}")
            if names.value is None:
                self._value(names, f"the root {root.source.shown}")
            raise NotFoundError(f"there is no job {name!r} in {root.source.shown} (any more)")
        return entry

    async def _listed(self, root: _RootEntry, deadline: float) -> None:
        """The names of the root's jobs, as young as the pace allows."""
        names = root.names
        remaining = deadline - self._monotonic()
        if remaining > 0 and (
            names.known().waiting is not None or names.due(max(NAMES_EVERY, names.cost * 3))
        ):
            await _done([names.refresh(urgent=True)], remaining)
        self._synchronised()

    def _open(self, entry: _JobEntry) -> None:
        """Notes that a page of the job is open; its whole history stays in memory from now on; another job may lose its own."""
        with self._lock:
            entry.asked_at, entry.whole = self._monotonic(), True
            whole = [job for root in self._roots.values() for job in root.jobs.values() if job.whole]
            for job in sorted(whole, key=lambda job: job.asked_at)[:-WHOLE_JOBS]:
                job.whole = False

    def _close_if_forgotten(self, job: _JobEntry) -> None:
        if job.whole and self._monotonic() - job.asked_at > WHOLE_FOR:
            job.whole = False

    def _forget(self, conn_id: str, name: str) -> None:
        """A job that is no more, or never was: whoever asks for many names must not fill the memory."""
        with self._lock:
            root = self._roots.get(conn_id)
            if root is not None:
                root.jobs.pop(name, None)

    async def _fresh(
        self, each: Iterable[CachedValue[T]], interval: float, deadline: float, old: float = _OLD
    ) -> None:
        """Begins readings that are due. Waits for answers that are unknown or too old to be shown."""
        waits = []
        for value in each:
            known = value.known()
            if known.waiting is None and not value.due(interval):
                continue
            future = value.refresh(urgent=True)
            new = known.age is None or known.age > max(old, 2 * interval)
            # A reading that somebody has waited for in vain keeps nobody else waiting.
            if new and (known.waiting or 0.0) < self._patience:
                waits.append(future)
        remaining = deadline - self._monotonic()
        if waits and remaining > 0:
            await _done(waits, remaining)

    def _value(self, known: CacheState[T], what: str) -> T:
        if known.value is not None:
            return known.value
        error: StateflowError = known.error or UnavailableError(
            f"{what} is being read and not known yet: ask again in a moment"
        )
        raise error


async def _done(futures: Iterable[Future[None]], seconds: float) -> bool:
    """Whether all have ended in time; those that have not go on."""
    _, remaining = await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=seconds)
    return not remaining

"""What is known of all roots and jobs: answers come from memory, and threads keep that fresh at a bounded pace.

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
from functools import partial
from typing import TypeVar

from stateflow.checkpoint.log import list_jobs
from stateflow.checkpoint.retention import checked_retained
from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Outcome, Record
from stateflow.savepoints.format import ListedSavepoint, list_savepoints
from stateflow.storage.store import Store
from stateflow_ui.kept import Kept, Known
from stateflow_ui.observe import JobFacts, JobReader
from stateflow_ui.place import Place
from stateflow_ui.readers import Readers
from stateflow_ui.storage import StorageFacts, read_storage

_log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds that a request waits for what is not known yet, or has not been looked at for long."""
WATCHED = 120.0
"""Seconds after the last request for which everything is kept fresh."""
PLACES_EVERY, NAMES_EVERY, JOBS_EVERY, OPEN_EVERY, SAVEPOINTS_EVERY, STORAGE_EVERY = (
    30.0,
    10.0,
    5.0,
    3.0,
    15.0,
    60.0,
)
"""Least seconds between two readings: connections, names of jobs, jobs, jobs whose page is open, and so on."""
SHARE = 0.2
"""Of one thread's time, for reading the jobs of a root."""
WHOLE_JOBS, WHOLE_FOR = 8, 900.0
"""Jobs whose whole history is held: so many, for so many seconds after somebody has looked."""
SLOW = 10.0
"""Seconds after which a root that has not answered is said not to answer."""
_OLD = 30.0
_OPEN_FOR = 60.0
_CHECKPOINTS, _RETAINED = 32, 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RootState:
    conn_id: str
    root: str
    error: str
    """Why it cannot be read, in one sentence; empty when it can."""
    read: bool
    """Whether its jobs are known."""


@dataclass(frozen=True, slots=True)
class JobState:
    conn_id: str
    name: str
    facts: Known[JobFacts]


class _Job:
    def __init__(self, root: _Root, name: str) -> None:
        self.root, self.name = root, name
        self.asked_at = float("-inf")
        self.whole = False
        self.reader = JobReader(
            root.place.conn_id,
            root.store,
            name,
            patience=root.place.heartbeat_timeout,
            clock=root.clock,
            fetchers=root.fetchers,
        )
        what = f"job {name!r} in {root.store.url}"
        self.facts: Kept[JobFacts] = Kept(
            what, lambda: self.reader.read(whole=self.whole), root.readers, root.monotonic
        )
        self.savepoints: Kept[list[tuple[str, ListedSavepoint]]] = Kept(
            f"the savepoints of {what}",
            lambda: list_savepoints(root.store, name),
            root.readers,
            root.monotonic,
        )
        self.storage: OrderedDict[int, Kept[StorageFacts]] = OrderedDict()
        self.checkpoints: OrderedDict[tuple[int, str, bool], Kept[tuple[Record, Outcome | None] | None]] = (
            OrderedDict()
        )


class _Root:
    """One connection's root, its threads and its jobs."""

    def __init__(self, place: Place, clock: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self.place, self.clock, self.monotonic = place, clock, monotonic
        self.readers = Readers(4, f"stateflow-ui {place.conn_id}")
        self.fetchers = Readers(8, f"stateflow-ui {place.conn_id} records")
        self.storage_readers = Readers(1, f"stateflow-ui {place.conn_id} storage")
        self.names: Kept[list[str]] = Kept(f"the root {place.root}", self._names, self.readers, monotonic)
        self.jobs: dict[str, _Job] = {}
        self._opened: Store | None = None

    @property
    def store(self) -> Store:
        if self._opened is None:
            self._opened = self.place.store()
        return self._opened

    def _names(self) -> list[str]:
        folder = self.store.local_root
        if folder is not None and not folder.is_dir():
            raise NotFoundError(
                f"the checkpoint root {folder} does not exist on the API server: mount it there too, or wait for the "
                "first run, which creates it"
            )
        return [name for name in list_jobs(self.store) if _is_name(name)]

    def state(self) -> RootState:
        known = self.names.known()
        error = self.place.problem or (str(known.error) if known.error is not None else "")
        if not error and known.waiting is not None and known.waiting > SLOW:
            error = f"the root {self.place.root} has not answered for {known.waiting:.0f} seconds"
        return RootState(self.place.conn_id, self.place.root, error, known.value is not None)


class Catalog:
    """Safe from many threads; what is `async` waits without holding one."""

    def __init__(
        self,
        read_places: Callable[[], list[Place]],
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        ticking: bool = True,
    ) -> None:
        self.clock, self._monotonic = clock, monotonic
        self._patience, self._ticking = patience, ticking
        self._readers = Readers(2, "stateflow-ui")
        self._places: Kept[list[Place]] = Kept(
            "Airflow's connections of type stateflow", read_places, self._readers, monotonic
        )
        self._roots: dict[str, _Root] = {}
        self._lock = threading.RLock()
        self._looked_at = float("-inf")
        self._ticker: threading.Thread | None = None

    async def overview(self) -> tuple[list[RootState], list[JobState]]:
        """All roots and jobs, as far as they are known."""
        deadline = self._begin()
        await self._fresh([self._places], PLACES_EVERY, deadline)
        roots = self._synchronised()
        await self._fresh([r.names for r in roots if not r.place.problem], NAMES_EVERY, deadline)
        roots = self._synchronised()
        self._refresh_due()
        jobs = [job for root in roots if not root.state().error for job in list(root.jobs.values())]
        await self._fresh([job.facts for job in jobs], max(JOBS_EVERY, WATCHED), deadline)
        problem = self._places.known().error
        if problem is not None and not roots:
            raise problem
        states = [
            JobState(root.place.conn_id, job.name, job.facts.known())
            for root in roots
            for job in sorted(root.jobs.values(), key=lambda job: job.name)
        ]
        # A job that was deleted is listed for a while.
        there = [state for state in states if not isinstance(state.facts.error, NotFoundError)]
        return [root.state() for root in roots], there

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
            left = deadline - self._monotonic()
            failed = known.error is not None and not entry.facts.due(OPEN_EVERY)
            if not patient or left <= 0 or failed or (value is not None and waiting >= self._patience):
                break
            patient = await _done([entry.facts.refresh(urgent=True)], left)
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

    async def storage(self, conn_id: str, name: str, retained: int) -> StorageFacts:
        """What the job takes, and what a clean-up that keeps so many checkpoints would free."""
        deadline = self._begin()
        entry = await self._entry(conn_id, name, deadline)
        with self._lock:
            kept = entry.storage.pop(checked_retained(retained), None) or Kept(
                f"the storage of job {name!r}",
                partial(read_storage, entry.reader.store, entry.reader.layout, retained),
                entry.root.storage_readers,
                self._monotonic,
            )
            entry.storage[retained] = kept
            while len(entry.storage) > _RETAINED:
                entry.storage.popitem(last=False)
        await self._fresh([kept], max(STORAGE_EVERY, kept.cost * 20), deadline, old=3600.0)
        return self._value(kept.known(), f"what job {name!r} stores")

    async def checkpoint(
        self, conn_id: str, name: str, slot: int
    ) -> tuple[JobFacts, tuple[Record, Outcome | None] | None]:
        """One record as it was written; None when only its line is left."""
        facts = await self.job(conn_id, name)
        deadline = self._begin()
        found = facts.log.slots.get(slot)
        if found is None or found.record is None or slot not in facts.kept:
            return facts, None
        entry = await self._entry(conn_id, name, deadline)
        key = (slot, found.record.writer, found.complete)
        with self._lock:
            kept = entry.checkpoints.pop(key, None) or Kept(
                f"checkpoint {slot} of job {name!r}",
                partial(entry.reader.record, slot),
                entry.root.readers,
                self._monotonic,
            )
            entry.checkpoints[key] = kept
            while len(entry.checkpoints) > _CHECKPOINTS:
                entry.checkpoints.popitem(last=False)
        known = kept.known()
        if known.age is None:
            await _done([kept.refresh(urgent=True)], max(0.0, deadline - self._monotonic()))
            known = kept.known()
        if known.age is None:
            self._value(known, f"checkpoint {slot} of job {name!r}")
        return facts, known.value

    def refresh_due(self) -> None:
        """Begins every reading whose time has come, while somebody looks; the ticker does it every second."""
        if self._monotonic() - self._looked_at < WATCHED:
            if self._places.due(PLACES_EVERY):
                self._places.refresh()
            self._synchronised()
            self._refresh_due()

    def _begin(self) -> float:
        """Notes that somebody looks; until when the request may wait."""
        now = self._looked_at = self._monotonic()
        with self._lock:
            if self._ticking and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, name="stateflow-ui clock", daemon=True)
                self._ticker.start()
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
            if root.place.problem:
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

    def _pace(self, job: _Job, together: float) -> float:
        """Seconds between two readings of a job. `together`: of all jobs of its root, for reading each once."""
        if self._monotonic() - job.asked_at < _OPEN_FOR:
            return max(OPEN_EVERY, job.facts.cost * 10)
        return max(JOBS_EVERY, together)

    def _synchronised(self) -> list[_Root]:
        """The roots by the connections that are known, with their jobs by the names that are known."""
        with self._lock:
            places = self._places.known().value
            if places is not None:
                self._roots = {
                    place.conn_id: old
                    if (old := self._roots.get(place.conn_id)) is not None and old.place == place
                    else _Root(place, self.clock, self._monotonic)
                    for place in places
                }
            for root in self._roots.values():
                names = root.names.known().value
                if names is None:
                    continue
                asked = {job.name for job in root.jobs.values() if self._is_open(job)}
                wanted = [*names, *sorted(asked - set(names))]
                root.jobs = {name: root.jobs.get(name) or _Job(root, name) for name in wanted}
            return list(self._roots.values())

    def _is_open(self, job: _Job) -> bool:
        return self._monotonic() - job.asked_at < _OPEN_FOR

    async def _entry(self, conn_id: str, name: str, deadline: float) -> _Job:
        JobLayout(name)  # refuses what is no name of a job before anything is done with it
        await self._fresh([self._places], PLACES_EVERY, deadline)
        self._synchronised()
        with self._lock:
            root = self._roots.get(conn_id)
            if root is None:
                known = self._places.known()
                if known.value is None:
                    self._value(known, "Airflow's connections of type stateflow")
                there = ", ".join(self._roots) or "none"
                raise NotFoundError(
                    f"there is no connection {conn_id!r} of type stateflow; those that these pages know are: {there}"
                )
            if root.place.problem:
                raise UnavailableError(root.place.problem)
            entry = root.jobs.get(name)
            if entry is None:
                entry = root.jobs[name] = _Job(root, name)
            return entry

    def _open(self, entry: _Job) -> None:
        """Notes that a page of the job is open; its whole history is held from now on, another's may have to go."""
        with self._lock:
            entry.asked_at, entry.whole = self._monotonic(), True
            whole = [job for root in self._roots.values() for job in root.jobs.values() if job.whole]
            for job in sorted(whole, key=lambda job: job.asked_at)[:-WHOLE_JOBS]:
                job.whole = False

    def _close_if_forgotten(self, job: _Job) -> None:
        if job.whole and self._monotonic() - job.asked_at > WHOLE_FOR:
            job.whole = False

    def _forget(self, conn_id: str, name: str) -> None:
        """A job that is no more, or never was: whoever asks for many names must not fill the memory."""
        with self._lock:
            root = self._roots.get(conn_id)
            if root is not None:
                root.jobs.pop(name, None)

    async def _fresh(
        self, each: Iterable[Kept[T]], interval: float, deadline: float, old: float = _OLD
    ) -> None:
        """Begins what is due, and waits for what is unknown or older than should be shown without another look."""
        waits = []
        for kept in each:
            known = kept.known()
            if known.waiting is None and not kept.due(interval):
                continue
            future = kept.refresh(urgent=True)
            new = known.age is None or known.age > max(old, 2 * interval)
            # Nobody waits again for what somebody has waited for in vain.
            if new and (known.waiting or 0.0) < self._patience:
                waits.append(future)
        left = deadline - self._monotonic()
        if waits and left > 0:
            await _done(waits, left)

    def _value(self, known: Known[T], what: str) -> T:
        if known.value is not None:
            return known.value
        error: StateflowError = known.error or UnavailableError(
            f"{what} is being read and not known yet: ask again in a moment"
        )
        raise error


def _is_name(name: str) -> bool:
    """Whether a folder with a job's file in it has a name that a job can have."""
    try:
        JobLayout(name)
    except UsageError:
        return False
    return True


async def _done(futures: Iterable[Future[None]], seconds: float) -> bool:
    """Whether all have ended in time; those that have not go on."""
    _, left = await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=seconds)
    return not left

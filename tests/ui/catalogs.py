"""A catalog of roots in memory, whose clock and stores a test holds in its hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from stateflow.errors import StateflowError
from stateflow_ui.cached_value import CachedValue
from stateflow_ui.catalog import Catalog, JobState, RootState
from stateflow_ui.job_reader import JobFacts
from stateflow_ui.root import Root
from tests.jobs.records import Made, make_job
from tests.memory_store import Call, MemoryStore, named_store

NOW = 1_800_000_000_000_000
MICROS = 1_000_000


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Gate:
    """A store's hook: readings stop here until it is opened."""

    def __init__(self, store: MemoryStore, at: str = "") -> None:
        """`at` is in the paths of the requests that stop here."""
        self.store, self.at, self.open, self.reached = store, at, threading.Event(), threading.Event()

    def __enter__(self) -> Gate:
        self.store.before = self._wait
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self.store.before = None

    def _wait(self, call: Call) -> None:
        if self.at not in call.path:
            return
        self.reached.set()
        assert self.open.wait(60)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    memory = named_store(f"ui-{request.node.name}")
    yield memory
    memory.before = None
    memory.restore({})


def root_at(store: MemoryStore, conn_id: str = "main") -> Root:
    return Root(conn_id, store.url, store.url)


def fill(store: MemoryStore, *jobs: Made, now: int = NOW) -> None:
    for job in jobs:
        make_job(store, job, now)


def catalog_of(roots: list[Root], clock: Clock, patience: float = 20.0) -> Catalog:
    return Catalog(lambda: roots, clock=lambda: NOW, monotonic=clock, patience=patience, ticking=False)


def look(catalog: Catalog) -> tuple[dict[str, RootState], dict[str, JobState]]:
    roots, jobs = asyncio.run(catalog.overview())
    return {root.conn_id: root for root in roots}, {job.name: job for job in jobs}


def open_job(catalog: Catalog, name: str = "orders", conn_id: str = "main") -> JobFacts:
    return asyncio.run(catalog.job(conn_id, name))


def heads(jobs: dict[str, JobState]) -> dict[str, int | None]:
    return {name: job.facts.value.status.head if job.facts.value else None for name, job in jobs.items()}


def settle(catalog: Catalog, *conn_ids: str) -> None:
    """Waits for every reading that is under way."""
    for value in under_way(catalog, conn_ids):
        try:
            value.refresh().result(60) if value.known().waiting is not None else None
        except StateflowError:
            continue


def under_way(catalog: Catalog, conn_ids: tuple[str, ...]) -> Iterator[CachedValue[object]]:
    yield catalog._sources  # type: ignore[misc]
    for conn_id, root in list(catalog._roots.items()):
        if not conn_ids or conn_id in conn_ids:
            yield root.names  # type: ignore[misc]
            for job in list(root.jobs.values()):
                yield job.facts  # type: ignore[misc]

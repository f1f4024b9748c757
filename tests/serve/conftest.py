"""A real server on a free port of loopback, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.format.records import Owner
from stateflow.serve.access import Access, single
from stateflow.serve.client import StateClient
from stateflow.serve.follow import FollowedJobs
from stateflow.serve.server import StateServer
from tests.jobs.queried import Counted, QueriedJob, entries_of, filled

TOKEN = "a-token-that-opens-everything"
Serve = Callable[..., "Served"]


@dataclass
class Served:
    server: StateServer
    jobs: FollowedJobs
    counted: Counted
    job: QueriedJob

    @property
    def url(self) -> str:
        return self.server.url

    def client(self, token: str = TOKEN) -> StateClient:
        return StateClient(self.url, token)


@contextmanager
def running(server: StateServer) -> Iterator[None]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield
    finally:
        server.stop()
        thread.join()


def until(holds: Callable[[], Any], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> QueriedJob:
    return QueriedJob(tmp_path / "root", retained=1)


@contextmanager
def served_over(
    job: QueriedJob, folder: Path, access: Access | None = None, *, open_with: Any = None, **options: Any
) -> Iterator[Served]:
    """A server over the root of a job. `interval` is long, so that nothing is polled by chance."""
    counted = Counted()
    owner = Owner(run="server", host="here", pid=1)
    jobs = FollowedJobs(job.place(folder, open_with or counted), owner=owner, ids=job.ids)
    server = StateServer(jobs, access or single(TOKEN), **{"interval": 3600.0, **options})
    with running(server):
        yield Served(server, jobs, counted, job)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """serve(job): as `served_over`, until the test ends."""
    with ExitStack() as stack:
        yield lambda job, *arguments, **options: stack.enter_context(
            served_over(job, tmp_path / "host", *arguments, **options)
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests of a file that only ask: users 0 to 39 of job `orders`, two rows each."""
    folder = tmp_path_factory.mktemp("served")
    job = QueriedJob(folder / "root", retained=1)
    job.checkpoint(entries_of(filled(*range(40))))
    with served_over(job, folder / "host") as made:
        yield made

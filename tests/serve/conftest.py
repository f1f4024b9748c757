"""A real server on a free port of loopback, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.records import Owner
from stateflow.serve.access import Access, single
from stateflow.serve.client import StateClient
from stateflow.serve.follow import FollowedJobs
from stateflow.serve.server import StateServer
from tests.serve.made import Counted, QueriedJob

TOKEN = "a-token-that-opens-everything"
Serve = Callable[..., "Served"]


@dataclass
class Served:
    server: StateServer
    jobs: FollowedJobs
    counted: Counted

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


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """serve(job): a server over the root of a job. `interval` is long, so that nothing is polled by chance."""
    ended = []

    def start(
        job: QueriedJob,
        access: Access | None = None,
        *,
        open_with: Any = None,
        **options: Any,
    ) -> Served:
        counted = Counted()
        place = job.place(tmp_path / "host", open_with or counted)
        owner = Owner(run="server", host="here", pid=1)
        jobs = FollowedJobs(place, owner=owner, ids=job.ids)
        server = StateServer(jobs, access or single(TOKEN), **{"interval": 3600.0, **options})
        context = running(server)
        context.__enter__()
        ended.append(context)
        return Served(server, jobs, counted)

    yield start
    for context in ended:
        context.__exit__(None, None, None)

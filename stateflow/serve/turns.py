"""A limit on the queries that run and wait at once. More are refused, so that nobody waits in a queue for minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stateflow.errors import BusyError
from stateflow.serve.problems import RETRY_AFTER, Refusal

T = TypeVar("T")

QUEUE = 8
"""Queries that may wait, for each query that may run."""


class Turns:
    """Runs work in threads, outside of the event loop. Belongs to one loop."""

    def __init__(self, running: int, waiting: int | None = None) -> None:
        self.running = running
        self.waiting = running * QUEUE if waiting is None else waiting
        self._pool = ThreadPoolExecutor(running, "stateflow-query")
        self._inside = 0

    async def take(self, work: Callable[[], T]) -> T:
        """The result of `work`; 503 when too many wait already."""
        if self._inside >= self.running + self.waiting:
            raise Refusal(
                503,
                BusyError(f"{self.running} queries run and {self.waiting} wait: try again in a moment"),
                RETRY_AFTER,
            )
        self._inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._inside -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

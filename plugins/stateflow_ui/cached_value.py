"""A value that is slow to read: read by one thread at a time, and what is known is there at once meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.errors import BusyError, StateflowError, UnavailableError
from stateflow_ui.reader_threads import ReaderThreads

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheState(Generic[T]):
    """What is known at one moment. A value stays known when a later reading fails."""

    value: T | None
    error: StateflowError | None
    """Of the last reading; None when it went well, or there was none."""
    age: float | None
    """Seconds since the value was read."""
    waiting: float | None
    """Seconds that a reading has been under way; None when there is none."""


class CachedValue(Generic[T]):
    def __init__(
        self,
        what: str,
        read: Callable[[], T],
        readers: ReaderThreads,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._read, self._readers, self._monotonic = what, read, readers, monotonic
        self._lock = threading.Lock()
        self._value: T | None = None
        self._error: StateflowError | None = None
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._under_way: Future[None] | None = None
        self._began = 0.0
        self.cost = 0.0
        """Seconds that the last reading took."""

    def known(self) -> CacheState[T]:
        now = self._monotonic()
        with self._lock:
            return CacheState(
                self._value,
                self._error,
                None if self._read_at is None else now - self._read_at,
                None if self._under_way is None else now - self._began,
            )

    def due(self, interval: float) -> bool:
        """Whether the last reading, well or not, ended longer ago than that, and none is under way."""
        with self._lock:
            if self._under_way is not None:
                return False
            return self._tried_at is None or self._monotonic() - self._tried_at >= interval

    def refresh(self, *, urgent: bool = False) -> Future[None]:
        """Begins a reading, or gives the one that is under way; done when it has ended, well or not."""
        with self._lock:
            if self._under_way is not None:
                return self._under_way
            future: Future[None] = Future()
            future.set_running_or_notify_cancel()  # a request that goes away cancels nothing for the others
            self._under_way, self._began = future, self._monotonic()
        try:
            self._readers.submit(self._look, urgent=urgent)
        except BusyError as error:
            self._end(None, error, 0.0)
        return future

    def _look(self) -> None:
        began = self._monotonic()
        value: T | None = None
        error: StateflowError | None = None
        try:
            value = self._read()
        except StateflowError as known:
            error = known
        except Exception:
            _log.exception("%s could not be read", self._what)
            error = UnavailableError(f"{self._what} could not be read: the API server's log says why")
        self._end(value, error, self._monotonic() - began)

    def _end(self, value: T | None, error: StateflowError | None, cost: float) -> None:
        now = self._monotonic()
        with self._lock:
            self._error, self._tried_at, self.cost = error, now, cost
            if error is None:
                self._value, self._read_at = value, now
            future, self._under_way = self._under_way, None
        if future is not None:
            future.set_result(None)

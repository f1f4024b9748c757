"""Threads that read stores, so that no request and no event loop ever waits for one.

They are daemons and end when there is nothing to do: a store that never answers must not keep the API server from ending.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from stateflow.errors import BusyError

_log = logging.getLogger(__name__)

IDLE = 30.0
"""Seconds after which a thread without work ends."""


class ReaderThreads:
    """At most `most` pieces of work at a time, in the order in which they came; what a page waits for comes first.

    BusyError when `waiting` pieces of work wait already, or when the machine has no thread for the first of them: whoever asks for more
    than the threads can do is told at once.
    """

    def __init__(self, most: int, name: str, waiting: int | None = None) -> None:
        self._most, self._name, self._waiting = most, name, waiting
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = self._free = 0

    def submit(self, work: Callable[[], None], *, urgent: bool = False) -> None:
        with self._changed:
            if self._waiting is not None and len(self._work) >= self._waiting:
                raise BusyError("the pages have more to read than they can read now: ask again in a moment")
            if urgent:
                self._work.appendleft(work)
            else:
                self._work.append(work)
            if self._free >= len(self._work) or self._threads >= self._most:
                self._changed.notify()
                return
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError as error:  # a limit on threads, or no memory for another
                if self._threads:
                    self._changed.notify()  # those that there are do the work one after the other
                    return
                self._work.remove(work)
                raise BusyError(
                    f"the API server could not start a thread to read with ({error}): ask again in a moment, and if it says so "
                    "again, give it more threads or memory"
                ) from error
            self._threads += 1

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                # Work tells its own failures; this is a mistake of ours, and the thread goes on.
                _log.exception("a reading failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._free += 1
            try:
                if not self._work:
                    self._changed.wait_for(lambda: bool(self._work), timeout=IDLE)
                if not self._work:
                    self._threads -= 1
                    return None
                return self._work.popleft()
            finally:
                self._free -= 1

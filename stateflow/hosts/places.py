"""The places of a host: how many runs it carries out at once, and who waits for one. First come, first served."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class Places:
    """Numbered from 1. A place that is given back goes to whoever has waited longest."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = deque(range(1, count + 1))
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()
        self.draining_since = 0.0
        """Since when nobody gets a place; 0 while they do."""

    @property
    def draining(self) -> bool:
        return self.draining_since > 0

    @property
    def taken(self) -> int:
        with self._changed:
            return self.count - len(self._free)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(
        self,
        wait: float,
        left: Callable[[], bool],
        waits: Callable[[], None],
        gives: Callable[[], bool] = lambda: True,
    ) -> int | None:
        """A place; None when there is none within `wait` seconds, when the host drains, or when `left` says that nobody wants it.

        Calls `waits` once if it has to wait. While `gives` says no, it waits although a place is free.
        """
        me, until, said = object(), time.monotonic() + wait, False
        with self._changed:
            self._waiting.append(me)
            try:
                while True:
                    if self.draining:
                        return None
                    if self._free and self._waiting[0] is me and gives():
                        return self._free.popleft()
                    rest = until - time.monotonic()
                    if rest <= 0 or left():
                        return None
                    if not said:
                        said = True
                        waits()
                    self._changed.wait(min(rest, 0.5))
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def give_back(self, place: int) -> None:
        with self._changed:
            # At the end: a place rests for a while, and what its last run has left ends meanwhile.
            self._free.append(place)
            self._changed.notify_all()

    def drain(self) -> None:
        """From here on nobody gets a place."""
        with self._changed:
            self.draining_since = self.draining_since or time.time()
            self._changed.notify_all()

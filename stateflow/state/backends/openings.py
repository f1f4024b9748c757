"""Shards kept open for reading by many threads, the least recently used closed first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from stateflow.errors import UsageError
from stateflow.state.backends.base import ReadShard


class Opening:
    """One open shard. `get` is safe from many threads at once; scans take turns by `scanning`."""

    __slots__ = ("backend", "error", "given_up", "ready", "scanning", "users")

    backend: ReadShard

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self.scanning = threading.Lock()
        """A backend may sort what it holds when it is scanned for the first time."""
        self.users = 0
        self.given_up = False
        """True once it is no longer kept: then its last user closes it."""


class OpenShards:
    """At most `limit` are kept. Those in use stay open all the same, so more may be open for a moment."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise UsageError(f"a limit of {limit} open shards leaves nothing to read: allow at least 1")
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Opening] = OrderedDict()

    @contextmanager
    def reading(self, key: Hashable, open_it: Callable[[], ReadShard]) -> Iterator[Opening]:
        """The shard under `key`. The first caller opens it, while the others wait."""
        with self._lock:
            opening = self._kept.get(key)
            mine = opening is None
            if opening is None:
                opening = self._kept[key] = Opening()
            self._kept.move_to_end(key)
            opening.users += 1
        try:
            if mine:
                self._open(key, opening, open_it)
            elif not opening.ready.is_set():
                opening.ready.wait()
            if opening.error is not None:
                raise opening.error
            yield opening
        finally:
            with self._lock:
                opening.users -= 1
                last = opening.given_up and opening.users == 0
            if last:
                _close([opening])

    def _open(self, key: Hashable, opening: Opening, open_it: Callable[[], ReadShard]) -> None:
        try:
            opening.backend = open_it()
        except BaseException as error:
            opening.error = error
            with self._lock:
                if self._kept.get(key) is opening:
                    del self._kept[key]  # the next caller tries again
        finally:
            opening.ready.set()
        with self._lock:
            surplus = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self.limit)]
            idle = _give_up(surplus)
        _close(idle)

    def kept(self) -> list[Hashable]:
        """The keys of the shards that are kept, the least recently used first."""
        with self._lock:
            return list(self._kept)

    def drop(self, which: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Closes shards; those in use, when they no longer are."""
        with self._lock:
            chosen = [key for key in self._kept if which(key)]
            idle = _give_up([self._kept.pop(key) for key in chosen])
        _close(idle)


def _give_up(openings: list[Opening]) -> list[Opening]:
    """The shards that nobody uses, to be closed now."""
    for opening in openings:
        opening.given_up = True
    return [opening for opening in openings if opening.users == 0]


def _close(openings: list[Opening]) -> None:
    for opening in openings:
        if opening.error is None:
            opening.backend.close()

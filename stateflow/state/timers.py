"""Bound timers: what all of them are, and those with one time per key; `many_timers` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, Self

from stateflow.errors import StateflowError, UsageError
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME, instant, micros_since_epoch
from stateflow.state.cursor import UNREAD, Change, Cursor
from stateflow.state.handles import Handle
from stateflow.state.keys.siblings import queued, siblings
from stateflow.state.namespaces import Namespaced


class TimerState(Handle, Namespaced):
    """The base of timers with one time per key and with many. Both have an entry per time in a queue ordered by time, and
    entries per key, which find those of the queue.

    Like a `StoredState` a timer holds what happens to a whole chunk of keys, and its changes follow when that is done.
    """

    __slots__ = ("_is_view", "_put_at", "_queue", "queue_id", "reads", "time")

    many = False

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int, time: str) -> None:
        super().__init__(cursor, operator, name, state_id + 1)
        self.queue_id = state_id
        self._queue = state_id.to_bytes(2, "big")
        self.time = time
        self._is_view = False
        self._put_at = -1
        """The number of the turn when user code last set or cleared it."""
        self.reads = 0
        """How many keys were read one by one: the engine decides by it whether to read all at once."""

    def under(self, namespace: Any) -> Self:
        """The same timer of the same key under a namespace; under None this one."""
        return self.view_of(namespace)

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        """A chunk of keys begins; `raws` are the entries per key, when one look-up read them all."""
        raise NotImplementedError

    def _begin(self) -> None:
        self._is_view, self._put_at = True, -1
        self.begin(1, None)

    def due(self, at: int) -> None:
        """Takes the time of the current key's timer from the queue."""
        raise NotImplementedError

    def is_set(self, at: int) -> bool:
        """Whether the current key's timer is set to this instant."""
        raise NotImplementedError

    def was_set(self, fired_at: int | None) -> tuple[list[int], bool]:
        """The times to which user code has set the current key's timer, and whether it has also taken away other times than the
        one that fires. Then what was read from the queue is outdated."""
        raise NotImplementedError

    def fired(self, at: int) -> None:
        """The handler is done: the time is gone unless the handler has set it again."""
        raise NotImplementedError

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        """The chunk is done, or a key of it comes again: appends the changes for the backend."""
        raise NotImplementedError

    def check_current(self) -> None:
        """`set` has checked it."""

    def was_changed(self) -> bool:
        """Whether user code has set or cleared it for the current key."""
        return self._put_at == self._cursor.serial

    def flush(self, changes: list[Change]) -> None:
        self._dirty = False
        self.collect(None, changes)

    def _put(self) -> None:
        self._put_at = self._cursor.serial
        if self._is_view:
            self._touch()

    def _instant(self, at: datetime | timedelta) -> int:
        if isinstance(at, timedelta):
            if self.time == "event":
                raise UsageError(
                    f"operator {self.operator!r}, timer {self.name!r}: an event-time timer is set to an instant, such as "
                    "row.ts + timedelta(hours=1), not to a duration"
                )
            micros = self._cursor.now + at // timedelta(microseconds=1)
            if not BEGIN_OF_TIME <= micros <= END_OF_TIME:
                raise UsageError(
                    f"operator {self.operator!r}, timer {self.name!r}, key {self._cursor.key!r}: {at!r} from now lies outside of the years "
                    "1 to 9999: set a shorter time, or leave a timer that is never to fire unset"
                )
            return micros
        try:
            return micros_since_epoch(at)
        except StateflowError as error:
            raise self._wrong(error) from error
        except (AttributeError, TypeError):
            raise UsageError(
                f"operator {self.operator!r}, timer {self.name!r}, key {self._cursor.key!r}: {at!r} is no instant: give a datetime with a "
                "time zone, such as row.ts + timedelta(hours=1), and take a timer away with clear()"
            ) from None


class BoundTimer(TimerState):
    """One time per key. The entry per key has the time, so that setting it again finds the old entry of the queue.

    Setting a timer reads nothing: when the chunk is done, one look-up finds the old times of all keys that were set.
    """

    __slots__ = ("_changed", "_stored", "_times")

    _one_entry = True
    _read_by = ".at"

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int, time: str) -> None:
        super().__init__(cursor, operator, name, state_id, time)
        self._stored: list[Any] = []
        """One time per key of the chunk as the backend has it, in microseconds; None, or `UNREAD`."""
        self._times: list[Any] = []
        """The same as user code sees it."""
        self._changed: list[int] = []
        """Keys whose timer was set or cleared, in the order of their turns."""

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        self._changed.clear()
        self._stored = [UNREAD] * keys if raws is None else list(map(stored_time, raws))
        self._times = self._stored.copy()

    def append(self) -> None:
        """The chunk gets one more key."""
        self._stored.append(UNREAD)
        self._times.append(UNREAD)

    def leave(self, nothing: Any) -> None:
        """There is no key from now on."""
        self._times = nothing

    @property
    def micros(self) -> int | None:
        i = self._cursor.i
        if self._times[i] is UNREAD:
            self.reads += 1
            self._stored[i] = self._times[i] = stored_time(
                self._cursor.backend.get(self._cursor.full(self._id))
            )
        time: int | None = self._times[i]
        return time

    @property
    def at(self) -> datetime | None:
        """When it will fire; None when it is not set."""
        micros = self.micros
        return None if micros is None else instant(micros)

    def set(self, at: datetime | timedelta) -> None:
        """At an instant, or after a time from now (processing-time timers)."""
        self._put_time(self._instant(at))

    def clear(self) -> None:
        self._put_time(None)

    def _put_time(self, micros: int | None) -> None:
        i = self._cursor.i
        self._times[i] = micros
        changed = self._changed
        if not changed or changed[-1] != i:
            changed.append(i)
        self._put()

    def _holds(self) -> bool:
        return self.micros is not None

    _clear = clear

    def due(self, at: int) -> None:
        i = self._cursor.i
        self._stored[i] = self._times[i] = at

    def is_set(self, at: int) -> bool:
        return self.micros == at

    def was_set(self, fired_at: int | None) -> tuple[list[int], bool]:
        at = self.micros
        return [] if at is None else [at], fired_at is None

    def fired(self, at: int) -> None:
        if self._put_at == self._cursor.serial:
            return
        if self._is_view:
            self.clear()
        else:
            # What `clear` does, without its calls: most timers of a batch end here.
            i = self._cursor.i
            self._times[i] = None
            self._changed.append(i)

    def discard(self) -> None:
        self._dirty = False
        self._put_at = -1
        i = self._cursor.i
        if self._changed and self._changed[-1] == i:
            self._changed.pop()
            self._times[i] = self._stored[i]

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        changed = self._changed
        if not changed:
            return
        self._changed = []
        stored, times, base = self._stored, self._times, self._cursor.base
        unread = [i for i in changed if stored[i] is UNREAD]
        if unread:
            full = siblings([base[i] for i in unread], self._id)
            for i, raw in zip(unread, self._cursor.backend.get_many(full), strict=True):
                stored[i] = stored_time(raw)
        moved = [i for i in changed if stored[i] != times[i]]
        gone = [i for i in moved if stored[i] is not None]
        there = [i for i in moved if times[i] is not None]
        former = queued([base[i] for i in gone], self._queue, [stored[i] for i in gone])
        changes.extend(zip(former, repeat(None)))
        if len(there) < len(moved):
            cleared = siblings([base[i] for i in moved if times[i] is None], self._id)
            changes.extend(zip(cleared, repeat(None)))
        bases, micros = [base[i] for i in there], [times[i] for i in there]
        changes.extend(zip(queued(bases, self._queue, micros), repeat(b"")))
        raws = [at.to_bytes(8, "big", signed=True) for at in micros]
        changes.extend(zip(siblings(bases, self._id), raws, strict=True))
        for i in moved:
            stored[i] = times[i]


def stored_time(raw: bytes | None) -> int | None:
    return None if raw is None else int.from_bytes(raw, "big", signed=True)

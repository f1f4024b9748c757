"""Bound timers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from stateflow.errors import StateflowError, UsageError
from stateflow.format.encoding import encode_timestamp
from stateflow.format.instants import instant, micros_since_epoch
from stateflow.state.cursor import BoundState, Change, Cursor

_UNREAD: Any = object()


class BoundTimer(BoundState):
    """Kept twice: in a queue ordered by time, and per key, so that setting it again finds the old entry.

    Like a `StoredState` it holds the times of a whole chunk of keys. Setting a timer reads nothing: when the chunk is
    done, one look-up finds the old times of all keys that were set.
    """

    __slots__ = ("_changed", "_queue", "_stored", "_times", "queue_id", "reads", "time")

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int, time: str) -> None:
        super().__init__(cursor, operator, name, state_id + 1)
        self.queue_id = state_id
        self._queue = state_id.to_bytes(2, "big")
        self.time = time
        self._stored: list[Any] = []
        """One time per key of the chunk as the backend has it, in microseconds; None, or `_UNREAD`."""
        self._times: list[Any] = []
        """The same as user code sees it."""
        self._changed: list[int] = []
        """Keys whose timer was set or cleared, in the order of their turns."""
        self.reads = 0
        """How many keys were read one by one: the engine decides by it whether to read all at once."""

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        """A chunk of keys begins; `raws` are their stored times, when one look-up read them all."""
        self._changed.clear()
        self._stored = [_UNREAD] * keys if raws is None else list(map(_time, raws))
        self._times = self._stored.copy()

    def append(self) -> None:
        """The chunk gets one more key."""
        self._stored.append(_UNREAD)
        self._times.append(_UNREAD)

    def leave(self, nothing: Any) -> None:
        """There is no key from now on."""
        self._times = nothing

    @property
    def micros(self) -> int | None:
        i = self._cursor.i
        if self._times[i] is _UNREAD:
            self.reads += 1
            self._stored[i] = self._times[i] = _time(self._cursor.backend.get(self._cursor.full(self._id)))
        time: int | None = self._times[i]
        return time

    @property
    def at(self) -> datetime | None:
        """When it will fire; None when it is not set."""
        micros = self.micros
        return None if micros is None else instant(micros)

    def set(self, at: datetime | timedelta) -> None:
        """At an instant, or after a time from now (processing-time timers)."""
        self._put(self._instant(at))

    def _instant(self, at: datetime | timedelta) -> int:
        if isinstance(at, timedelta):
            if self.time == "event":
                raise UsageError(
                    f"operator {self.operator!r}, timer {self.name!r}: an event-time timer is set to an instant, such as "
                    "row.ts + timedelta(hours=1), not to a duration"
                )
            return self._cursor.now + int(at / timedelta(microseconds=1))
        try:
            return micros_since_epoch(at)
        except StateflowError as error:
            raise self._wrong(error) from error

    def clear(self) -> None:
        self._put(None)

    def _put(self, micros: int | None) -> None:
        i = self._cursor.i
        self._times[i] = micros
        changed = self._changed
        if not changed or changed[-1] != i:
            changed.append(i)

    def due(self, i: int, at: int) -> None:
        """The queue has told when the timer of the chunk's i-th key fires."""
        self._stored[i] = self._times[i] = at

    def was_changed(self) -> bool:
        """Whether user code has set or cleared it for the current key."""
        return bool(self._changed) and self._changed[-1] == self._cursor.i

    def discard(self) -> None:
        i = self._cursor.i
        if self._changed and self._changed[-1] == i:
            self._changed.pop()
            self._times[i] = self._stored[i]

    def check_current(self) -> None:
        """`set` has checked it."""

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        """The chunk is done, or a key of it comes again: appends what the backend has to be told."""
        changed = self._changed
        if not changed:
            return
        self._changed = []
        stored, times, base, state_id = self._stored, self._times, self._cursor.base, self._id
        unread = [i for i in changed if stored[i] is _UNREAD]
        if unread:
            full = sorted((base[i][:2] + state_id + base[i][4:], i) for i in unread)
            found = self._cursor.backend.get_many([key for key, _ in full])
            for (_, i), raw in zip(full, found, strict=True):
                stored[i] = _time(raw)
        queue, append = self._queue, changes.append
        for i in changed:
            was, at = stored[i], times[i]
            if was == at:
                continue
            group, rest = base[i][:2], base[i][4:]
            if was is not None:
                append((group + queue + encode_timestamp(was) + rest, None))
            if at is None:
                append((group + state_id + rest, None))
            else:
                append((group + queue + encode_timestamp(at) + rest, b""))
                append((group + state_id + rest, at.to_bytes(8, "big", signed=True)))
            stored[i] = at


def _time(raw: bytes | None) -> int | None:
    return None if raw is None else int.from_bytes(raw, "big", signed=True)

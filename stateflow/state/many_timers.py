"""Bound timers with many times per key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from stateflow.format.encoding import after, encode_timestamp, read_timestamp
from stateflow.format.instants import instant
from stateflow.state.cursor import UNREAD, Change, Cursor
from stateflow.state.timers import TimerState, stored_time


class BoundTimers(TimerState):
    """Each time that is set fires once. There is an entry per key and time, so that setting and firing read nothing.

    A timer that had one time per key may have an entry in that form: the key's only one, whose value is the time.
    """

    __slots__ = ("_former", "_put_times", "_turns")

    many = True
    _read_by = ".all()"

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int, time: str) -> None:
        super().__init__(cursor, operator, name, state_id, time)
        self._former: list[Any] = []
        """Per key of the chunk the time of its entry in the form with one time; None, or `UNREAD`."""
        self._put_times: list[dict[int, bool] | None] = []
        """Per key of the chunk the times that were set, with True, or taken away, with False."""
        self._turns: list[int] = []
        """Keys with such times, in the order of their turns."""

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        self._turns.clear()
        self._former = [UNREAD] * keys if raws is None else list(map(stored_time, raws))
        self._put_times = [None] * keys

    def append(self) -> None:
        """The chunk gets one more key."""
        self._former.append(UNREAD)
        self._put_times.append(None)

    def leave(self, nothing: Any) -> None:
        """There is no key from now on."""
        self._put_times = nothing

    def set(self, at: datetime | timedelta) -> None:
        """At an instant, or after a time from now (processing-time timers). A time that is set already stays set."""
        self._put_time(self._instant(at), True)

    def clear(self, at: datetime | timedelta) -> None:
        """Takes one time away."""
        self._put_time(self._instant(at), False)

    def clear_all(self) -> None:
        for at in self._all():
            self._put_time(at, False)

    def all(self) -> list[datetime]:
        """When it will fire, ascending."""
        return list(map(instant, self._all()))

    def _all(self) -> list[int]:
        cursor = self._cursor
        put = self._put_times[cursor.i] or {}
        prefix = cursor.full(self._id)
        stored = set()
        for full, raw in cursor.backend.scan(prefix, after(prefix)):
            at = stored_time(raw) if len(full) == len(prefix) else read_timestamp(full, len(prefix))
            stored.add(at)
        return sorted(
            {at for at in stored if at is not None and put.get(at, True)}.union(at for at in put if put[at])
        )

    def _put_time(self, at: int, is_set: bool) -> None:
        i = self._cursor.i
        times = self._put_times[i]
        if times is None:
            times = self._put_times[i] = {}
            self._turns.append(i)
        times[at] = is_set
        self._put()

    def _holds(self) -> bool:
        return bool(self._all())

    _clear = clear_all

    def due(self, at: int) -> None:
        """The entries per key need not be known."""

    def is_set(self, at: int) -> bool:
        cursor = self._cursor
        put = self._put_times[cursor.i] or {}
        if at in put:
            return put[at]
        full = cursor.full(self._id)
        return (
            cursor.backend.get(full + encode_timestamp(at)) is not None or self._former_time(cursor.i) == at
        )

    def _former_time(self, i: int) -> int | None:
        if self._former[i] is UNREAD:
            self._former[i] = stored_time(self._cursor.backend.get(self._cursor.full(self._id)))
        time: int | None = self._former[i]
        return time

    def was_set(self, fired_at: int | None) -> tuple[list[int], bool]:
        put = self._put_times[self._cursor.i] or {}
        # A time that is set may be in the queue already.
        return [at for at, is_set in put.items() if is_set], any(at != fired_at for at in put)

    def fired(self, at: int) -> None:
        if not (self._put_times[self._cursor.i] or {}).get(at, False):
            self._put_time(at, False)

    def discard(self) -> None:
        self._dirty = False
        self._put_at = -1
        i = self._cursor.i
        if self._turns and self._turns[-1] == i:
            self._turns.pop()
            self._put_times[i] = None

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        turns = self._turns
        if not turns:
            return
        self._turns = []
        base, state_id, queue, append = self._cursor.base, self._id, self._queue, changes.append
        self._read_former([i for i in turns if not all((self._put_times[i] or {}).values())])
        for i in turns:
            group, rest = base[i][:2], base[i][4:]
            for at, is_set in (self._put_times[i] or {}).items():
                time, value = encode_timestamp(at), b"" if is_set else None
                append((group + queue + time + rest, value))
                append((group + state_id + rest + time, value))
                if not is_set and self._former[i] == at:
                    append((group + state_id + rest, None))
                    self._former[i] = None
            self._put_times[i] = None

    def _read_former(self, turns: list[int]) -> None:
        """Looks up, for all keys that lose times, the entries in the form with one time."""
        base, state_id = self._cursor.base, self._id
        unread = sorted((base[i][:2] + state_id + base[i][4:], i) for i in turns if self._former[i] is UNREAD)
        raws = self._cursor.backend.get_many([full for full, _ in unread]) if unread else ()
        for (_, i), raw in zip(unread, raws, strict=True):
            self._former[i] = stored_time(raw)

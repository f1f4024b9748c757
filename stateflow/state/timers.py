"""Bound timers."""

from __future__ import annotations

from datetime import datetime, timedelta

from stateflow.errors import StateflowError, UsageError
from stateflow.format.encoding import encode_timestamp
from stateflow.format.instants import instant, micros_since_epoch
from stateflow.state.cursor import BoundState, Change, Cursor


class BoundTimer(BoundState):
    """Kept twice: in a queue ordered by time, and per key, so that setting it again finds the old entry."""

    __slots__ = ("_queue", "_time", "_was", "queue_id", "time")

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int, time: str) -> None:
        super().__init__(cursor, operator, name, state_id + 1)
        self.queue_id = state_id
        self._queue = state_id.to_bytes(2, "big")
        self.time = time
        self._time: int | None = None
        self._was: int | None = None

    def _load(self) -> None:
        cursor = self._cursor
        raw = cursor.backend.get(cursor.full(self._id))
        self._was = self._time = None if raw is None else int.from_bytes(raw, "big", signed=True)
        self._at = cursor.serial

    @property
    def micros(self) -> int | None:
        if self._at != self._cursor.serial:
            self._load()
        return self._time

    @property
    def at(self) -> datetime | None:
        """When it will fire; None when it is not set."""
        micros = self.micros
        return None if micros is None else instant(micros)

    def set(self, at: datetime | timedelta) -> None:
        """At an instant, or after a time from now (processing-time timers)."""
        if isinstance(at, timedelta):
            if self.time == "event":
                raise UsageError(
                    f"operator {self.operator!r}, timer {self.name!r}: an event-time timer is set to an instant, such as "
                    "row.ts + timedelta(hours=1), not to a duration"
                )
            micros = self._cursor.now + int(at / timedelta(microseconds=1))
        else:
            try:
                micros = micros_since_epoch(at)
            except StateflowError as error:
                raise self._wrong(error) from error
        if self._at != self._cursor.serial:
            self._load()
        self._time = micros
        self._touch()

    def clear(self) -> None:
        if self._at != self._cursor.serial:
            self._load()
        self._time = None
        self._touch()

    def fired(self, at: int) -> None:
        """The handler is done: the timer is gone unless the handler set it again."""
        if self._at != self._cursor.serial:
            self._load()
        if self._time == at and not self._dirty:
            self._time = None
        self._touch()

    def _queued(self, at: int) -> bytes:
        base = self._cursor.base[self._cursor.i]
        return base[:2] + self._queue + encode_timestamp(at) + base[4:]

    def flush(self, changes: list[Change]) -> None:
        if self._was != self._time:
            if self._was is not None:
                changes.append((self._queued(self._was), None))
            if self._time is not None:
                changes.append((self._queued(self._time), b""))
                changes.append((self._cursor.full(self._id), self._time.to_bytes(8, "big", signed=True)))
            else:
                changes.append((self._cursor.full(self._id), None))
        self._dirty = False
        self._at = -1

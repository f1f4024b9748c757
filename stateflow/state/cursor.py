"""The key that user code runs for, and what all states bound to it share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateflow.errors import StateflowError, UsageError
from stateflow.state.backends.base import Backend
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.serializers import Serializer

NO_KEY = "keyed state was used where there is no key: use it in process or in a timer's handler"
ABSENT: Any = object()
"""Stands for a value that is not there: None may be one."""

Change = tuple[bytes, bytes | None]
"""A full key and its new value; None deletes it."""


class Cursor:
    """The key that user code runs for now, and the states that it has changed."""

    __slots__ = (
        "backend",
        "base",
        "changed",
        "dirty",
        "i",
        "key",
        "keys",
        "now",
        "position",
        "serial",
        "slot",
    )

    def __init__(self, slot: int, now: int) -> None:
        self.backend: Backend = _NO_BACKEND
        self.base: list[bytes] = []
        """Full keys of the chunk under state id 0, with the empty namespace."""
        self.i = 0
        self.serial = 0
        self.key: Any = None
        self.keys: Sequence[Any] = ()
        """The chunk's keys."""
        self.changed = False
        """Whether the attached shard was written to."""
        self.dirty: list[BoundState] = []
        self.now = now
        self.slot = slot
        self.position = 0
        """Running number of list entries in this shard and batch."""

    def full(self, state_id: bytes) -> bytes:
        """The current key under another state id."""
        base = self.base[self.i]
        return base[:2] + state_id + base[4:]

    def flush(self, changes: list[Change]) -> None:
        """The key is done: its changes follow those of earlier keys."""
        for state in self.dirty:
            state.flush(changes)
        self.dirty.clear()

    def write(self, changes: list[Change]) -> None:
        if changes:
            self.backend.write(changes)
            self.changed = True

    def discard(self) -> None:
        """The key failed: nothing it did to state has happened."""
        for state in self.dirty:
            state.discard()
        self.dirty.clear()
        self.serial += 1


class BoundState:
    """A state as user code holds it."""

    __slots__ = (
        "_at",
        "_cursor",
        "_dirty",
        "_id",
        "_namespace",
        "_views",
        "_views_at",
        "name",
        "operator",
        "state_id",
    )

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int) -> None:
        self._cursor = cursor
        self.state_id = state_id
        self._id = state_id.to_bytes(2, "big")
        self._at = -1
        self._dirty = False
        self.operator = operator
        self.name = name
        self._namespace: KeyCodec | None = None
        """How namespaces are written, if it has any: see `namespaces`."""
        self._views: dict[bytes, Any] = {}
        """The current key's, by encoded namespace."""
        self._views_at = -1

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._cursor.dirty.append(self)

    def flush(self, changes: list[Change]) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        self._dirty = False
        self._at = -1

    def _wrong(self, error: StateflowError) -> StateflowError:
        return type(error)(
            f"operator {self.operator!r}, state {self.name!r}, key {self._cursor.key!r}: {error}"
        )


class ValuesState(BoundState):
    """A state whose values are stored by a serializer, with an expiry when it has a ttl."""

    __slots__ = ("_dumps", "_ttl", "serializer")

    def __init__(
        self, cursor: Cursor, operator: str, name: str, state_id: int, serializer: Serializer, ttl: int | None
    ) -> None:
        super().__init__(cursor, operator, name, state_id)
        self.serializer, self._ttl = serializer, ttl
        self._dumps: Callable[[Any], bytes] = serializer.dumps
        """dumps(value) -> its bytes, with the expiry that it has from now on."""
        if ttl is not None:
            self._dumps = lambda value: serializer.dumps_with_expiry(value, cursor.now + ttl)

    def _live(self, raw: bytes | None) -> Any:
        """The value, or `ABSENT` when there is none or it has expired."""
        if raw is None:
            return ABSENT
        if self._ttl is not None:
            expiry = self.serializer.expiry(raw)
            if expiry is not None and expiry <= self._cursor.now:
                return ABSENT
        try:
            return self.serializer.loads(raw)
        except StateflowError as error:
            raise self._wrong(error) from error


class _NoBackend:
    """Stands in while no key is current: `open` and `close` may not touch keyed state."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(NO_KEY)


_NO_BACKEND: Any = _NoBackend()

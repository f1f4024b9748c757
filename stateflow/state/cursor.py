"""The key for which user code runs, and what all states bound to it share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stateflow.errors import StateflowError, UsageError
from stateflow.state.backends.base import Backend
from stateflow.state.expiry.index import Expiry
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.expiries import has_expired, stamped
from stateflow.state.values.serializers import Serializer

NO_KEY = "keyed state was used where there is no key: use it in process or in a timer's handler"
ABSENT: Any = object()
"""Stands for a value that is not there: None may be a value."""
UNREAD: Any = object()
"""Stands for a value that nobody has looked up yet."""

Change = tuple[bytes, bytes | None]
"""A full key and its new value; None deletes it."""


class Cursor:
    """The key for which user code runs now, and the states that it has changed."""

    __slots__ = (
        "backend",
        "base",
        "changed",
        "dirty",
        "expiring",
        "i",
        "key",
        "keys",
        "now",
        "position",
        "serial",
        "slot",
        "watermark",
    )

    def __init__(self, slot: int, now: int, watermark: int | None = None) -> None:
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
        self.expiring: Sequence[Expiry] = ()
        """Of the states that have an index of expiries."""
        self.now = now
        self.watermark = watermark
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
            for expiry in self.expiring:
                expiry.settle(self.backend, changes)
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

    __slots__ = ("_dumps", "_expiry", "serializer")

    def __init__(
        self,
        cursor: Cursor,
        operator: str,
        name: str,
        state_id: int,
        serializer: Serializer,
        expiry: Expiry | None,
    ) -> None:
        super().__init__(cursor, operator, name, state_id)
        self.serializer, self._expiry = serializer, expiry
        self._dumps: Callable[[Any], bytes] = serializer.dumps
        """dumps(value) -> its bytes, with the expiry that it has from now on."""
        if expiry is not None:
            dumps, at = serializer.dumps_with_expiry, expiry.at
            many = serializer.dumps_until
            self._dumps = (lambda value: dumps(value, at)) if many is None else many(at)

    def watch_reads(self, seen: Callable[[Any], Any]) -> None:
        """From now on user code gets `seen(value)` for each value that is read; for tests."""
        loads = self.serializer.loads
        self.serializer = replace(self.serializer, loads=lambda raw: seen(loads(raw)))

    def has_set(self, value: Any) -> bool:
        """Whether user code has set this value for the current key, or has set or deleted what it was read from."""
        raise NotImplementedError

    def is_live(self, raw: bytes) -> bool:
        """Whether a stored value has not expired."""
        return self._expiry is None or not has_expired(raw, self._expiry.clock)

    def _live(self, raw: bytes | None) -> Any:
        """The value, or `ABSENT` when there is none or it has expired."""
        if raw is None:
            return ABSENT
        if self._expiry is not None and has_expired(raw, self._expiry.clock):
            return ABSENT
        try:
            return self.serializer.loads(raw)
        except StateflowError as error:
            raise self._wrong(error) from error

    def _renew(self, entries: Mapping[bytes, Any], changes: list[Change]) -> None:
        """Stores entries that were read, by their full keys, with the expiry that they have from now on."""
        if entries and self._expiry is not None:
            raws = list(entries.values())
            changes.extend(zip(entries, stamped(raws, self._expiry.at), strict=True))
            self._expiry.wrote(key for key, raw in entries.items() if self._expiry.is_unnamed(raw))

    def _wrote(self, key: bytes, before: Any) -> None:
        """Tells the index about an entry that is written with an expiry; `before` is what is stored, if that is known."""
        if self._expiry is not None:
            if before is UNREAD:
                self._expiry.wrote_over((key,))
            elif self._expiry.is_unnamed(before):
                self._expiry.wrote((key,))


class _NoBackend:
    """Stands in while no key is current: `open` and `close` may not touch keyed state."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(NO_KEY)


_NO_BACKEND: Any = _NoBackend()

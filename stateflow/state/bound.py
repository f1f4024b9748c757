"""States bound to the current key of a task: a write-back cache that is flushed when the key ends.

One object per declared state and task. What is read stays valid while the cursor stands on its key (`serial`);
moving on costs nothing for a state that was not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, Generic, TypeVar

from stateflow.errors import StateflowError, UsageError
from stateflow.state.backend import Backend
from stateflow.state.encoding import after, encode_timestamp, list_position
from stateflow.state.instants import instant, micros_since_epoch
from stateflow.state.keycodec import KeyCodec
from stateflow.state.serializers import Serializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

Change = tuple[bytes, bytes | None]
_ABSENT: Any = object()


class Cursor:
    """Which key user code stands on, and what it changed."""

    __slots__ = ("backend", "base", "dirty", "i", "key", "now", "position", "serial", "slot")

    def __init__(self, slot: int, now: int) -> None:
        self.backend: Backend = _NO_BACKEND
        self.base: list[bytes] = []
        """Full keys of the chunk under state id 0, with the empty namespace."""
        self.i = 0
        self.serial = 0
        self.key: Any = None
        self.dirty: list[Bound] = []
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

    def discard(self) -> None:
        """The key failed: nothing it did to state has happened."""
        for state in self.dirty:
            state.discard()
        self.dirty.clear()
        self.serial += 1


class Bound:
    """What every bound state has."""

    __slots__ = ("_at", "_cursor", "_dirty", "_id", "name", "operator", "state_id")

    def __init__(self, cursor: Cursor, operator: str, name: str, state_id: int) -> None:
        self._cursor = cursor
        self.state_id = state_id
        self._id = state_id.to_bytes(2, "big")
        self._at = -1
        self._dirty = False
        self.operator = operator
        self.name = name

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


class StoredState(Bound, Generic[T]):
    """A state that is one entry per key. `prefetch` hands it what a batched look-up found for a whole chunk."""

    __slots__ = ("_found", "_keys", "_present", "_ttl", "_value", "reads", "serializer")

    def __init__(
        self, cursor: Cursor, operator: str, name: str, state_id: int, serializer: Serializer, ttl: int | None
    ) -> None:
        super().__init__(cursor, operator, name, state_id)
        self.serializer = serializer
        self._ttl = ttl
        self._keys: list[bytes] | None = None
        self._found: Any = None
        self._value: Any = None
        self._present = False
        self.reads = 0
        """How many keys were read; tells whether a batched look-up pays."""

    def prefetch(self, keys: list[bytes] | None, found: Any) -> None:
        self._keys, self._found = keys, found

    def _load(self, cursor: Cursor) -> None:
        self.reads += 1
        if self._found is not None:
            raw = self._found[cursor.i]
        else:
            raw = cursor.backend.get(cursor.full(self._id))
        self._at = cursor.serial
        if raw is None:
            self._present, self._value = False, None
            return
        if self._ttl is not None:
            expiry = self.serializer.expiry(raw)
            if expiry is not None and expiry <= cursor.now:
                self._present, self._value = False, None
                return
        self._present, self._value = True, self.serializer.loads(raw)

    def _set(self, value: Any) -> None:
        cursor = self._cursor
        self._at = cursor.serial
        self._value = value
        self._present = True
        if not self._dirty:
            self._dirty = True
            cursor.dirty.append(self)

    def exists(self) -> bool:
        """Whether the key has a value of its own."""
        if self._at != self._cursor.serial:
            self._load(self._cursor)
        return self._present

    def clear(self) -> None:
        self._at = self._cursor.serial
        self._present, self._value = False, None
        self._touch()

    def flush(self, changes: list[Change]) -> None:
        cursor = self._cursor
        key = self._keys[cursor.i] if self._keys is not None else cursor.full(self._id)
        if not self._present:
            changes.append((key, None))
        else:
            try:
                if self._ttl is None:
                    changes.append((key, self.serializer.dumps(self._value)))
                else:
                    changes.append(
                        (key, self.serializer.dumps_with_expiry(self._value, cursor.now + self._ttl))
                    )
            except StateflowError as error:
                raise self._wrong(error) from error
        self._dirty = False
        self._at = -1


class BoundValueState(StoredState[T]):
    """`value` is read and set; setting it to None clears it unless the type allows None."""

    __slots__ = ("_default", "_factory")

    def __init__(self, *arguments: Any, default: Any = None) -> None:
        super().__init__(*arguments)
        self._factory: Callable[[], Any] | None = default if callable(default) else None
        self._default = None if callable(default) else default

    @property
    def value(self) -> T:
        cursor = self._cursor
        if self._at != cursor.serial:
            self._load(cursor)
        if self._present:
            return self._value  # type: ignore[no-any-return]
        return self._default if self._factory is None else self._factory()  # type: ignore[return-value]

    @value.setter
    def value(self, value: T) -> None:
        cursor = self._cursor
        self._at = cursor.serial
        self._value = value
        self._present = True
        if not self._dirty:
            self._dirty = True
            cursor.dirty.append(self)


class BoundReducingState(StoredState[T]):
    __slots__ = ("_reduce",)

    def __init__(self, *arguments: Any, reduce: Callable[[T, T], T]) -> None:
        super().__init__(*arguments)
        self._reduce = reduce

    def add(self, value: T) -> None:
        if self._at != self._cursor.serial:
            self._load(self._cursor)
        self._set(self._reduce(self._value, value) if self._present else value)

    def get(self) -> T | None:
        """The value so far; None when nothing was added."""
        if self._at != self._cursor.serial:
            self._load(self._cursor)
        return self._value if self._present else None


class BoundAggregatingState(StoredState[Any], Generic[V, R]):
    __slots__ = ("_add", "_create", "_result")

    def __init__(
        self,
        *arguments: Any,
        create: Callable[[], Any],
        add: Callable[[Any, V], Any],
        result: Callable[[Any], R],
    ) -> None:
        super().__init__(*arguments)
        self._create, self._add, self._result = create, add, result

    def add(self, value: V) -> None:
        if self._at != self._cursor.serial:
            self._load(self._cursor)
        self._set(self._add(self._value if self._present else self._create(), value))

    def get(self) -> R | None:
        """The result so far; None when nothing was added."""
        if self._at != self._cursor.serial:
            self._load(self._cursor)
        return self._result(self._value) if self._present else None


class BoundListState(Bound, Generic[T]):
    """Entries of one key lie in the order they were added: by batch, then by position."""

    __slots__ = ("_added", "_cleared", "_ttl", "serializer")

    def __init__(
        self, cursor: Cursor, operator: str, name: str, state_id: int, serializer: Serializer, ttl: int | None
    ) -> None:
        super().__init__(cursor, operator, name, state_id)
        self.serializer, self._ttl = serializer, ttl
        self._added: list[Any] = []
        self._cleared = False

    def _here(self) -> None:
        if self._at != self._cursor.serial:
            self._at = self._cursor.serial
            self._added, self._cleared = [], False

    def add(self, value: T) -> None:
        self._here()
        self._added.append(value)
        self._touch()

    def add_all(self, values: Iterable[T]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Iterable[T]) -> None:
        """Replaces the whole list."""
        fresh = list(values)
        self.clear()
        self.add_all(fresh)

    def clear(self) -> None:
        self._here()
        self._added, self._cleared = [], True
        self._touch()

    def __iter__(self) -> Iterator[T]:
        self._here()
        cursor, added = self._cursor, list(self._added)
        if not self._cleared:
            begin = cursor.full(self._id)
            for _, raw in cursor.backend.scan(begin, after(begin)):
                expiry = self.serializer.expiry(raw) if self._ttl is not None else None
                if expiry is None or expiry > cursor.now:
                    yield self.serializer.loads(raw)
        yield from added

    def get(self) -> list[T]:
        return list(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def exists(self) -> bool:
        return next(iter(self), _ABSENT) is not _ABSENT

    def flush(self, changes: list[Change]) -> None:
        cursor = self._cursor
        prefix = cursor.full(self._id)
        if self._cleared:
            # A range of its own would order badly with the batched writes; the entries are few or cleared rarely.
            changes.extend((key, None) for key, _ in cursor.backend.scan(prefix, after(prefix)))
        try:
            for value in self._added:
                raw = (
                    self.serializer.dumps(value)
                    if self._ttl is None
                    else self.serializer.dumps_with_expiry(value, cursor.now + self._ttl)
                )
                changes.append((prefix + list_position(cursor.slot, cursor.position), raw))
                cursor.position += 1
        except StateflowError as error:
            raise self._wrong(error) from error
        self._dirty = False
        self._at = -1


class BoundMapState(Bound, MutableMapping[K, V]):
    """A mapping whose entries are stored one by one; iteration is in key order and may modify the map."""

    __slots__ = ("_cleared", "_entries", "_ttl", "_written", "codec", "serializer")

    def __init__(
        self,
        cursor: Cursor,
        operator: str,
        name: str,
        state_id: int,
        codec: KeyCodec,
        serializer: Serializer,
        ttl: int | None,
    ) -> None:
        super().__init__(cursor, operator, name, state_id)
        self.codec, self.serializer, self._ttl = codec, serializer, ttl
        self._entries: dict[bytes, Any] = {}
        """By encoded map key; `_ABSENT` for what is known not to be there."""
        self._written: set[bytes] = set()
        self._cleared = False

    def _here(self) -> None:
        if self._at != self._cursor.serial:
            self._at = self._cursor.serial
            self._entries, self._written, self._cleared = {}, set(), False

    def _loaded(self, raw: bytes | None) -> Any:
        if raw is None:
            return _ABSENT
        if self._ttl is not None:
            expiry = self.serializer.expiry(raw)
            if expiry is not None and expiry <= self._cursor.now:
                return _ABSENT
        return self.serializer.loads(raw)

    def _encoded(self, key: K) -> bytes:
        try:
            return self.codec.encode(key)
        except StateflowError as error:
            raise self._wrong(error) from error

    def _look(self, encoded: bytes) -> Any:
        self._here()
        value = self._entries.get(encoded)
        if value is None and encoded not in self._entries:
            cursor = self._cursor
            value = (
                _ABSENT
                if self._cleared
                else self._loaded(cursor.backend.get(cursor.full(self._id) + encoded))
            )
            self._entries[encoded] = value
        return value

    def __getitem__(self, key: K) -> V:
        value = self._look(self._encoded(key))
        if value is _ABSENT:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def get(self, key: K, default: Any = None) -> Any:
        value = self._look(self._encoded(key))
        return default if value is _ABSENT else value

    def __contains__(self, key: object) -> bool:
        return self._look(self._encoded(key)) is not _ABSENT  # type: ignore[arg-type]

    def __setitem__(self, key: K, value: V) -> None:
        self._here()
        encoded = self._encoded(key)
        self._entries[encoded] = value
        self._written.add(encoded)
        self._touch()

    def __delitem__(self, key: K) -> None:
        encoded = self._encoded(key)
        if self._look(encoded) is _ABSENT:
            raise KeyError(key)
        self._entries[encoded] = _ABSENT
        self._written.add(encoded)
        self._touch()

    def clear(self) -> None:
        self._here()
        self._entries, self._written, self._cleared = {}, set(), True
        self._touch()

    def _stored(self) -> Iterator[tuple[bytes, Any]]:
        if not self._cleared:
            begin = self._cursor.full(self._id)
            for key, raw in self._cursor.backend.scan(begin, after(begin)):
                yield key[len(begin) :], raw

    def _pairs(self) -> Iterator[tuple[bytes, Any]]:
        self._here()
        entries = {key: self._entries[key] for key in self._written}
        fresh = iter(sorted(entries.items()))
        stored = ((key, self._loaded(raw)) for key, raw in self._stored() if key not in entries)
        for key, value in merge(stored, fresh, key=lambda pair: pair[0]):
            if value is not _ABSENT:
                yield key, value

    def __iter__(self) -> Iterator[K]:
        for key, _ in self._pairs():
            yield self.codec.decode(key, 0)[0]

    def items(self) -> Any:
        return [(self.codec.decode(key, 0)[0], value) for key, value in self._pairs()]

    def values(self) -> Any:
        return [value for _, value in self._pairs()]

    def __len__(self) -> int:
        return sum(1 for _ in self._pairs())

    def is_empty(self) -> bool:
        return next(self._pairs(), None) is None

    def __bool__(self) -> bool:
        return not self.is_empty()

    def flush(self, changes: list[Change]) -> None:
        cursor = self._cursor
        prefix = cursor.full(self._id)
        if self._cleared:
            changes.extend((key, None) for key, _ in cursor.backend.scan(prefix, after(prefix)))
        try:
            for encoded in self._written:
                value = self._entries[encoded]
                if value is _ABSENT:
                    changes.append((prefix + encoded, None))
                elif self._ttl is None:
                    changes.append((prefix + encoded, self.serializer.dumps(value)))
                else:
                    changes.append(
                        (prefix + encoded, self.serializer.dumps_with_expiry(value, cursor.now + self._ttl))
                    )
        except StateflowError as error:
            raise self._wrong(error) from error
        self._dirty = False
        self._at = -1


class BoundTimer(Bound):
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
        """The handler has drained: the timer is gone unless the handler set it again."""
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


class BoundOperatorList(Generic[T]):
    """Elements of this subtask, read after `restore` and set in `snapshot`."""

    __slots__ = ("elements",)

    def __init__(self, elements: list[T]) -> None:
        self.elements = elements

    def get(self) -> list[T]:
        return list(self.elements)

    def add(self, value: T) -> None:
        self.elements.append(value)

    def update(self, values: Iterable[T]) -> None:
        self.elements = list(values)

    def clear(self) -> None:
        self.elements = []


class _NoBackend:
    """Stands in while no key is current: `open` and `close` may not touch keyed state."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            "keyed state was used where there is no key: use it in process or in a timer's handler"
        )


_NO_BACKEND: Any = _NoBackend()

__all__ = [
    "Bound",
    "BoundAggregatingState",
    "BoundListState",
    "BoundMapState",
    "BoundOperatorList",
    "BoundReducingState",
    "BoundTimer",
    "BoundValueState",
    "Cursor",
]

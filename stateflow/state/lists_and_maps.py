"""Lists and maps: states with many entries per key, each stored on its own. Changes wait until the key is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from heapq import merge
from typing import Any, Generic, Self, TypeVar

from stateflow.errors import StateflowError
from stateflow.format.encoding import after, list_position
from stateflow.state.cursor import ABSENT, UNREAD, Change, Cursor, ValuesState
from stateflow.state.expiry.index import Expiry
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.namespaces import Namespaced
from stateflow.state.values.serializers import Serializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class BoundListState(ValuesState, Namespaced, Generic[T]):
    """Entries of one key lie in the order they were added: by batch, then by position."""

    __slots__ = ("_added", "_cleared", "_read")

    def __init__(
        self,
        cursor: Cursor,
        operator: str,
        name: str,
        state_id: int,
        serializer: Serializer,
        expiry: Expiry | None,
    ) -> None:
        super().__init__(cursor, operator, name, state_id, serializer, expiry)
        self._added: list[Any] = []
        self._cleared = False
        self._read: dict[bytes, bytes] = {}
        """With a ttl that reading renews: stored entries that were read."""

    def at(self, namespace: Any) -> Self:
        """The same state of the same key under a namespace; under None this one."""
        return self.view_of(namespace)

    def _begin(self) -> None:
        # A view that nobody uses is written with its key, too: it must not clear what the state itself has cleared.
        self._here()

    def _here(self) -> None:
        if self._at != self._cursor.serial:
            self._at = self._cursor.serial
            self._added, self._cleared, self._read = [], False, {}

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
        self._added, self._cleared, self._read = [], True, {}
        self._touch()

    _clear = clear

    def __iter__(self) -> Iterator[T]:
        self._here()
        cursor, added = self._cursor, list(self._added)
        if not self._cleared:
            begin = cursor.full(self._id)
            plain = self._expiry is None and not self.serializer.evolved
            loads = self.serializer.loads if plain else self._live
            renewed = self._expiry is not None and self._expiry.on_read
            for key, raw in cursor.backend.scan(begin, after(begin)):
                value = loads(raw)
                if value is not ABSENT:
                    if renewed:
                        self._read[key] = raw
                        self._touch()
                    yield value
        yield from added

    def has_set(self, value: Any) -> bool:
        return self._cleared or any(added is value for added in self._added)

    def get(self) -> list[T]:
        # Not list(self), which would ask for the length first and scan twice.
        return list(iter(self))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def exists(self) -> bool:
        return next(iter(self), ABSENT) is not ABSENT

    _holds = exists

    def flush(self, changes: list[Change]) -> None:
        cursor = self._cursor
        prefix = cursor.full(self._id)
        if self._cleared:
            # One deletion per entry keeps its place among the batched writes. The entries are few, or rarely cleared.
            changes.extend((key, None) for key, _ in cursor.backend.scan(prefix, after(prefix)))
        self._renew(self._read, changes)
        try:
            for value in self._added:
                key = prefix + list_position(cursor.slot, cursor.position)
                changes.append((key, self._dumps(value)))
                self._wrote(key, None)
                cursor.position += 1
        except StateflowError as error:
            raise self._wrong(error) from error
        self._dirty = False
        self._at = -1


class BoundMapState(ValuesState, Namespaced, MutableMapping[K, V]):
    """A mapping whose entries are stored one by one; iteration is in key order and may modify the map."""

    __slots__ = ("_cleared", "_entries", "_raws", "_read", "_watched", "_written", "codec")

    def __init__(
        self,
        cursor: Cursor,
        operator: str,
        name: str,
        state_id: int,
        codec: KeyCodec,
        serializer: Serializer,
        expiry: Expiry | None,
    ) -> None:
        super().__init__(cursor, operator, name, state_id, serializer, expiry)
        self.codec = codec
        self._entries: dict[bytes, Any] = {}
        """By encoded map key; `ABSENT` for a key without an entry."""
        self._written: set[bytes] = set()
        self._cleared = False
        self._raws: dict[bytes, bytes | None] = {}
        """With a ttl: what is stored, as far as somebody has looked."""
        self._read: set[bytes] = set()
        """With a ttl that reading renews: entries that were read."""
        self._watched: list[tuple[bytes, Any]] | None = None
        """While reads are watched: which entry each value was read from. A value alone does not tell."""

    def at(self, namespace: Any) -> Self:
        """The same state of the same key under a namespace; under None this one."""
        return self.view_of(namespace)

    def watch_reads(self, seen: Callable[[Any], Any]) -> None:
        super().watch_reads(seen)
        self._watched = []

    def _begin(self) -> None:
        # As of lists: a view that nobody uses must not clear its namespace.
        self._here()

    def _here(self) -> None:
        if self._at != self._cursor.serial:
            self._at = self._cursor.serial
            self._entries, self._written, self._cleared = {}, set(), False
            if self._expiry is not None:
                self._raws, self._read = {}, set()
            if self._watched is not None:
                self._watched = []

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
            raw = None if self._cleared else cursor.backend.get(cursor.full(self._id) + encoded)
            value = self._entries[encoded] = self._live(raw)
            if self._watched is not None:
                self._watched.append((encoded, value))
            if self._expiry is not None and not self._cleared:
                self._looked(encoded, raw, value)
        return value

    def _looked(self, encoded: bytes, raw: bytes | None, value: Any) -> None:
        assert self._expiry is not None
        self._raws[encoded] = raw
        if self._expiry.on_read and value is not ABSENT:
            self._read.add(encoded)
            self._touch()

    def __getitem__(self, key: K) -> V:
        value = self._look(self._encoded(key))
        if value is ABSENT:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def get(self, key: K, default: Any = None) -> Any:
        value = self._look(self._encoded(key))
        return default if value is ABSENT else value

    def __contains__(self, key: object) -> bool:
        return self._look(self._encoded(key)) is not ABSENT  # type: ignore[arg-type]

    def __setitem__(self, key: K, value: V) -> None:
        self._here()
        encoded = self._encoded(key)
        self._entries[encoded] = value
        self._written.add(encoded)
        self._touch()

    def __delitem__(self, key: K) -> None:
        encoded = self._encoded(key)
        if self._look(encoded) is ABSENT:
            raise KeyError(key)
        self._entries[encoded] = ABSENT
        self._written.add(encoded)
        self._touch()

    def clear(self) -> None:
        self._here()
        self._entries, self._written, self._cleared, self._read = {}, set(), True, set()
        self._touch()

    _clear = clear

    def has_set(self, value: Any) -> bool:
        if any(self._entries[key] is value for key in self._written):
            return True
        # An entry that was deleted or got another value since is as user code wants it.
        read_from = (key for key, read in self._watched or () if read is value)
        return any(self._cleared or key in self._written for key in read_from)

    def _scanned(self) -> Iterator[tuple[bytes, Any]]:
        if not self._cleared:
            begin = self._cursor.full(self._id)
            for key, raw in self._cursor.backend.scan(begin, after(begin)):
                yield key[len(begin) :], raw

    def _pairs(self) -> Iterator[tuple[bytes, Any]]:
        self._here()
        entries = {key: self._entries[key] for key in self._written}
        fresh = iter(sorted(entries.items()))
        stored = ((key, self._seen(key, raw)) for key, raw in self._scanned() if key not in entries)
        for key, value in merge(stored, fresh, key=lambda pair: pair[0]):
            if value is not ABSENT:
                yield key, value

    def _seen(self, encoded: bytes, raw: bytes) -> Any:
        value = self._live(raw)
        if self._watched is not None:
            self._watched.append((encoded, value))
        if self._expiry is not None:
            self._looked(encoded, raw, value)
        return value

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

    _holds = __bool__

    def flush(self, changes: list[Change]) -> None:
        cursor = self._cursor
        prefix = cursor.full(self._id)
        if self._cleared:
            changes.extend((key, None) for key, _ in cursor.backend.scan(prefix, after(prefix)))
        if self._read:
            read = self._read - self._written
            self._renew({prefix + encoded: self._raws[encoded] for encoded in read}, changes)
        try:
            for encoded in self._written:
                value, key = self._entries[encoded], prefix + encoded
                if value is ABSENT:
                    changes.append((key, None))
                else:
                    changes.append((key, self._dumps(value)))
                    self._wrote(key, self._raws.get(encoded, UNREAD))
        except StateflowError as error:
            raise self._wrong(error) from error
        self._dirty = False
        self._at = -1

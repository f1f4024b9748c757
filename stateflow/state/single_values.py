"""Bound states that are one entry per key: value, reducing, aggregating."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from stateflow.errors import StateflowError
from stateflow.format.scalars import SCALARS
from stateflow.state.cursor import ABSENT, UNREAD, Change, Cursor, ValuesState
from stateflow.state.expiry.index import Expiry
from stateflow.state.handles import Handle
from stateflow.state.keys.siblings import siblings
from stateflow.state.namespaces import Namespaced
from stateflow.state.values.expiries import live
from stateflow.state.values.serializers import Serializer

T = TypeVar("T")
V = TypeVar("V")
R = TypeVar("R")

_IMMUTABLE = frozenset({"tuple", "optional", *(scalar.name for scalar in SCALARS)})
"""Values of types made of these alone cannot be changed in place, so they wait for the end of the chunk."""
_WORDS = re.compile(r"[^<>,.]+")


class StoredState(Handle, ValuesState, Namespaced, Generic[T]):
    """A state with one entry per key. It holds the values of a whole chunk of keys: those read for all keys at once, those
    read one by one, and those that user code has set."""

    __slots__ = (
        "_cleared",
        "_indexed",
        "_is_view",
        "_mutable",
        "_raws",
        "_read",
        "_read_at",
        "_set_at",
        "_values",
        "reads",
    )

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
        self._read = serializer.loads
        self._mutable = not _IMMUTABLE.issuperset(_WORDS.findall(serializer.schema))
        self._is_view = False
        self._values: list[Any] = []
        """One per key of the chunk; `UNREAD` and `ABSENT` where there is none."""
        self._cleared = False
        """Whether any key of the chunk was cleared."""
        self._set_at: list[int] = []
        """Keys that were set, ascending."""
        self._raws: list[Any] = []
        """With a ttl: what is stored, one per key of the chunk, `UNREAD` where nobody has looked."""
        self._indexed = True
        """Whether no key of the chunk can be new to an index of expiries."""
        self._read_at: list[int] = []
        """With a ttl that reading renews: keys that user code has read, ascending."""
        self.reads = 0
        """How many keys were read one by one: the engine decides by it whether to read all at once."""

    _one_entry = True

    def at(self, namespace: Any) -> Self:
        """The same state of the same key under a namespace; under None this one."""
        return self.view_of(namespace)

    def _begin(self) -> None:
        self._is_view, self._mutable = True, False
        self.begin(1, None)

    def watch_reads(self, seen: Callable[[Any], Any]) -> None:
        super().watch_reads(seen)
        self._read = self.serializer.loads

    def has_set(self, value: Any) -> bool:
        return bool(self._set_at) and self._set_at[-1] == self._cursor.i

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        """A chunk of keys begins; `raws` are their stored values, when one look-up read them all."""
        self._set_at.clear()
        self._cleared = False
        if self._expiry is not None:
            self._begin_expiring(keys, raws, self._expiry)
        elif raws is None:
            self._values = [UNREAD] * keys
        else:
            self._values = self._read_many(raws)

    def _begin_expiring(self, keys: int, raws: Sequence[bytes | None] | None, expiry: Expiry) -> None:
        self._read_at.clear()
        self._indexed = not expiry.indexed
        if raws is None:
            self._raws = [UNREAD] * keys
        else:
            self._raws = list(raws)
            if not expiry.on_read:
                unexpired, latest = live(raws, expiry.clock)
                self._indexed = latest is not None and latest <= expiry.at
                self._values = self._read_many(unexpired)
                return
        # Reads go through `_load`, which notes them.
        self._values = [UNREAD] * keys

    def _read_many(self, raws: Sequence[bytes | None]) -> list[Any]:
        read = self._read
        try:
            return [ABSENT if raw is None else read(raw) for raw in raws]
        except Exception:  # of a CustomSerializer, any
            return [self._readable(raw) for raw in raws]

    def _readable(self, raw: bytes | None) -> Any:
        """A value that cannot be read is read once more when its key asks for it, so that only this key fails and is named."""
        try:
            return self._live(raw)
        except Exception:  # as above
            return UNREAD

    def append(self) -> None:
        """The chunk gets one more key."""
        self._values.append(UNREAD)
        if self._expiry is not None:
            self._raws.append(UNREAD)
            self._indexed = not self._expiry.indexed

    def leave(self, nothing: Any) -> None:
        """There is no key from now on."""
        self._values = nothing

    def _load(self) -> Any:
        cursor = self._cursor
        if self._expiry is not None:
            return self._load_expiring(cursor, self._expiry)
        self.reads += 1
        value = self._values[cursor.i] = self._live(cursor.backend.get(cursor.full(self._id)))
        return value

    def _load_expiring(self, cursor: Cursor, expiry: Expiry) -> Any:
        i = cursor.i
        raw = self._raws[i]
        if raw is UNREAD:
            self.reads += 1
            raw = self._raws[i] = cursor.backend.get(cursor.full(self._id))
        value = self._values[i] = self._live(raw)
        if expiry.on_read and value is not ABSENT:
            self._read_at.append(i)
        return value

    def _get(self) -> Any:
        """The key's value, or `ABSENT`."""
        value = self._values[self._cursor.i]
        return self._load() if value is UNREAD else value

    def _set(self, value: Any) -> None:
        i = self._cursor.i
        self._values[i] = value
        changed = self._set_at
        if not changed or changed[-1] != i:
            changed.append(i)
        if self._mutable:
            self._touch()

    def exists(self) -> bool:
        """Whether the key has a value of its own."""
        return self._get() is not ABSENT

    _holds = exists

    def clear(self) -> None:
        self._set(ABSENT)
        self._cleared = True

    _clear = clear

    def flush(self, changes: list[Change]) -> None:
        """Writes a value that could be changed in place when its key is done, not with the chunk."""
        self._dirty = False
        if self._is_view:
            self.collect(None, changes)
            return
        cursor = self._cursor
        i = self._set_at.pop()
        if self._read_at and self._read_at[-1] == i:
            self._read_at.pop()
        value = self._values[i]
        if value is ABSENT:
            changes.append((cursor.full(self._id), None))
            return
        key = cursor.full(self._id)
        try:
            changes.append((key, self._dumps(value)))
        except StateflowError as error:
            raise self._wrong(error) from error
        if not self._indexed:
            self._wrote(key, self._raws[i])

    def discard(self) -> None:
        self._dirty = False
        for noted in (self._set_at, self._read_at):
            if noted and noted[-1] == self._cursor.i:
                self._values[noted.pop()] = UNREAD

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        """The chunk is done: its changes follow those of other states. `keys` are full keys, when they are known."""
        if self._read_at:
            written = set(self._set_at)
            read = [i for i in self._read_at if i not in written]
            renewed = zip(self._full_keys(read), [self._raws[i] for i in read], strict=True)
            self._renew(dict(renewed), changes)
            self._read_at.clear()
        changed = self._set_at
        if not changed:
            return
        values = [self._values[i] for i in changed]
        self._append(keys, values, changes)
        changed.clear()
        self._cleared = False

    def _append(self, keys: list[bytes] | None, values: list[Any], changes: list[Change]) -> None:
        changed = self._set_at
        if keys is None:
            keys = self._full_keys(changed)
        elif len(changed) != len(keys):
            keys = [keys[i] for i in changed]
        try:
            if self._expiry is not None:
                self._collect_expiring(keys, values, changes, self._expiry)
                return
            if not self._cleared:
                changes.extend(zip(keys, map(self._dumps, values), strict=True))
                return
            dumps = self._dumps
            for key, value in zip(keys, values, strict=True):
                changes.append((key, None if value is ABSENT else dumps(value)))
        except StateflowError:
            self._name_the_wrong(values)
            raise

    def _full_keys(self, places: Sequence[int]) -> list[bytes]:
        base = self._cursor.base
        return siblings([base[i] for i in places], self._id)

    def _collect_expiring(
        self, keys: list[bytes], values: list[Any], changes: list[Change], expiry: Expiry
    ) -> None:
        raws: list[Any] = []
        if not self._indexed:
            every = len(self._set_at) == len(self._raws)
            raws = self._raws if every else [self._raws[i] for i in self._set_at]
        if self._cleared:
            changes.extend((k, None) for k, value in zip(keys, values, strict=True) if value is ABSENT)
            kept = [at for at, value in enumerate(values) if value is not ABSENT]
            keys, values = [keys[at] for at in kept], [values[at] for at in kept]
            raws = [raws[at] for at in kept] if raws else []
        changes.extend(zip(keys, map(self._dumps, values), strict=True))
        if raws:
            expiry.wrote_each(keys, raws, UNREAD)

    def _name_the_wrong(self, values: list[Any]) -> None:
        for i, value in zip(self._set_at, values, strict=True):
            if value is not ABSENT:
                self._cursor.key = self._cursor.keys[i]
                self.check(value)

    def check(self, value: Any) -> None:
        """Raises an error that names operator, state and key when the value does not have the declared type."""
        try:
            self.serializer.check(value)
        except StateflowError as error:
            raise self._wrong(error) from error

    def check_current(self) -> None:
        """Like `check`, for the value that user code has set for the current key."""
        i = self._cursor.i
        if self._set_at and self._set_at[-1] == i and self._values[i] is not ABSENT:
            self.check(self._values[i])


class BoundValueState(StoredState[T]):
    """`value` is read and set."""

    _read_by = ".value"
    __slots__ = ("_default", "_factory")

    def __init__(self, *arguments: Any, default: Any = None) -> None:
        super().__init__(*arguments)
        self._factory: Callable[[], Any] | None = default if callable(default) else None
        self._default = None if callable(default) else default

    def watch_reads(self, seen: Callable[[Any], Any]) -> None:
        super().watch_reads(seen)
        if (make := self._factory) is not None:
            self._factory = lambda: seen(make())

    @property
    def value(self) -> T:
        value = self._values[self._cursor.i]
        if value is UNREAD:
            value = self._load()
        if value is ABSENT:
            return self._default if self._factory is None else self._factory()  # type: ignore[return-value]
        return value  # type: ignore[no-any-return]

    @value.setter
    def value(self, value: T) -> None:
        i = self._cursor.i
        self._values[i] = value
        changed = self._set_at
        if not changed or changed[-1] != i:
            changed.append(i)
        if self._mutable:
            self._touch()


class BoundReducingState(StoredState[T]):
    _read_by = ".get()"
    __slots__ = ("_reduce",)

    def __init__(self, *arguments: Any, reduce: Callable[[T, T], T]) -> None:
        super().__init__(*arguments)
        self._reduce = reduce

    def add(self, value: T) -> None:
        current = self._get()
        self._set(value if current is ABSENT else self._reduce(current, value))

    def get(self) -> T | None:
        """The value so far; None when nothing was added."""
        current = self._get()
        return None if current is ABSENT else current


class BoundAggregatingState(StoredState[Any], Generic[V, R]):
    _read_by = ".get()"
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
        current = self._get()
        self._set(self._add(self._create() if current is ABSENT else current, value))

    def get(self) -> R | None:
        """The result so far; None when nothing was added."""
        current = self._get()
        return None if current is ABSENT else self._result(current)

"""Bound states that are one entry per key: value, reducing, aggregating."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from stateflow.errors import StateflowError
from stateflow.format.scalars import SCALARS
from stateflow.state.cursor import ABSENT, Change, Cursor, ValuesState
from stateflow.state.namespaces import Namespaced
from stateflow.state.values.bulk import bulk
from stateflow.state.values.serializers import Serializer

T = TypeVar("T")
V = TypeVar("V")
R = TypeVar("R")

_UNREAD: Any = object()
_IMMUTABLE = frozenset({"tuple", "optional", *(scalar.name for scalar in SCALARS)})
"""Nobody can change values in place whose types are made of these alone, so they wait for the end of the chunk."""
_WORDS = re.compile(r"[^<>,.]+")


class StoredState(ValuesState, Namespaced, Generic[T]):
    """A state with one entry per key. It holds the values of a whole chunk of keys: those read for all keys at once, those
    read one by one, and those that user code has set."""

    __slots__ = (
        "_cleared",
        "_dumps_many",
        "_is_view",
        "_loads_many",
        "_mutable",
        "_set_at",
        "_values",
        "reads",
    )

    def __init__(
        self, cursor: Cursor, operator: str, name: str, state_id: int, serializer: Serializer, ttl: int | None
    ) -> None:
        super().__init__(cursor, operator, name, state_id, serializer, ttl)
        self._dumps_many, self._loads_many = bulk(serializer)
        self._mutable = not _IMMUTABLE.issuperset(_WORDS.findall(serializer.schema))
        self._is_view = False
        self._values: list[Any] = []
        """One per key of the chunk; `_UNREAD` and `ABSENT` where there is none."""
        self._cleared = False
        """Whether any key of the chunk was cleared."""
        self._set_at: list[int] = []
        """Keys that were set, ascending."""
        self.reads = 0
        """How many keys were read one by one: the engine decides by it whether to read all at once."""

    _one_entry = True

    def at(self, namespace: Any) -> Self:
        """The same state of the same key under a namespace; under None this one."""
        return self.view_of(namespace)

    def _begin(self) -> None:
        self._is_view, self._mutable = True, False
        self.begin(1, None)

    def _holds(self) -> bool:
        return self.exists()

    def _clear(self) -> None:
        self.clear()

    def begin(self, keys: int, raws: Sequence[bytes | None] | None) -> None:
        """A chunk of keys begins; `raws` are their stored values, when one look-up read them all."""
        self._set_at.clear()
        self._cleared = False
        if raws is None:
            self._values = [_UNREAD] * keys
        elif self._ttl is None and not self.serializer.evolved:
            self._values = self._loads_many(raws, ABSENT)
        else:
            self._values = [self._readable(raw) for raw in raws]

    def _readable(self, raw: bytes | None) -> Any:
        """What cannot be read is read once more when its key asks for it, so that only this key fails and is named."""
        try:
            return self._live(raw)
        except StateflowError:
            return _UNREAD

    def append(self) -> None:
        """The chunk gets one more key."""
        self._values.append(_UNREAD)

    def leave(self, nothing: Any) -> None:
        """There is no key from now on."""
        self._values = nothing

    def _load(self) -> Any:
        cursor = self._cursor
        self.reads += 1
        value = self._values[cursor.i] = self._live(cursor.backend.get(cursor.full(self._id)))
        return value

    def _get(self) -> Any:
        """The key's value, or `ABSENT`."""
        value = self._values[self._cursor.i]
        return self._load() if value is _UNREAD else value

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

    def clear(self) -> None:
        self._set(ABSENT)
        self._cleared = True

    def flush(self, changes: list[Change]) -> None:
        """Writes a value that could be changed in place when its key is done, not with the chunk."""
        self._dirty = False
        if self._is_view:
            self.collect(None, changes)
            return
        cursor = self._cursor
        i = self._set_at.pop()
        value = self._values[i]
        if value is ABSENT:
            changes.append((cursor.full(self._id), None))
            return
        try:
            changes.append((cursor.full(self._id), self._dumps(value)))
        except StateflowError as error:
            raise self._wrong(error) from error

    def discard(self) -> None:
        self._dirty = False
        if self._set_at and self._set_at[-1] == self._cursor.i:
            self._values[self._set_at.pop()] = _UNREAD

    def collect(self, keys: list[bytes] | None, changes: list[Change]) -> None:
        """The chunk is done: its changes follow those of other states. `keys` are full keys, when they are known."""
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
            base, state_id = self._cursor.base, self._id
            keys = [base[i][:2] + state_id + base[i][4:] for i in changed]
        elif len(changed) != len(keys):
            keys = [keys[i] for i in changed]
        try:
            if self._ttl is None and not self._cleared:
                changes.extend(zip(keys, self._dumps_many(values), strict=True))
                return
            dumps = self._dumps
            for key, value in zip(keys, values, strict=True):
                changes.append((key, None if value is ABSENT else dumps(value)))
        except StateflowError:
            self._name_the_wrong(values)
            raise

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

    __slots__ = ("_default", "_factory")

    def __init__(self, *arguments: Any, default: Any = None) -> None:
        super().__init__(*arguments)
        self._factory: Callable[[], Any] | None = default if callable(default) else None
        self._default = None if callable(default) else default

    @property
    def value(self) -> T:
        value = self._values[self._cursor.i]
        if value is _UNREAD:
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

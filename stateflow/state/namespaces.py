"""Namespaces: the same state of the same key, once more under each value of a declared type.

`state.at(namespace)` is a view: a bound state of its own over one full key, the current one's with the namespace in it.
A view lives as long as its key is the current one. A state that declares no namespaces pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Self

from stateflow.errors import StateflowError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, NAMESPACE, after
from stateflow.state.cursor import BoundState, Cursor
from stateflow.state.keys.codec import KeyCodec


class NamespaceCursor(Cursor):
    """Like the cursor of the task, with one key only. Everything else it takes from the task's cursor."""

    __slots__ = ("_root", "_serial")

    def __init__(self, root: Cursor, full: bytes) -> None:
        self._root = root
        self._serial = root.serial
        self.base = [full]
        self.keys = [root.key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._root, name)

    @property
    def serial(self) -> int:  # type: ignore[override]
        if self._root.serial != self._serial:
            raise UsageError(
                "a state that was taken from a namespace was used for another key: take it again for each key, such as "
                "self.total.at(namespace).value"
            )
        return self._serial

    @property
    def i(self) -> int:  # type: ignore[override]
        return self.serial - self._serial

    @property
    def position(self) -> int:
        return self._root.position

    @position.setter
    def position(self, position: int) -> None:
        self._root.position = position


class Namespaced(BoundState):
    """The base of states and timers with namespaces."""

    __slots__ = ()

    _one_entry = False
    """Whether a namespace has at most one entry."""

    @property
    def namespace(self) -> KeyCodec | None:
        """How its namespaces are written; None when it has none."""
        return self._namespace

    def declare_namespace(self, codec: KeyCodec | None) -> None:
        self._namespace = codec

    def full_base(self) -> bytes:
        """The current key under state id 0, with the namespace of this view."""
        cursor = self._cursor
        return cursor.base[cursor.i]

    def views(self) -> Iterator[Self]:
        """The views of the current key that user code has taken."""
        if self._views_at == self._cursor.serial:
            yield from self._views.values()

    def namespaces(self) -> list[Any]:
        """The current key's namespaces that hold something, in their order, without the empty namespace."""
        codec = self._codec()
        return [codec.decode(suffix, 1)[0] for suffix in self._suffixes() if self.view(suffix)._holds()]

    def clear_key(self) -> None:
        """Clears what the current key has here, in all namespaces."""
        if self._namespace is not None:
            for suffix in self._suffixes():
                self.view(suffix)._clear()
        self._clear()

    def view(self, suffix: bytes) -> Self:
        """The state under an encoded namespace; itself under the empty one."""
        if suffix == EMPTY_NAMESPACE:
            return self
        cursor = self._cursor
        if self._views_at != cursor.serial:
            self._views, self._views_at = {}, cursor.serial
        view: Self | None = self._views.get(suffix)
        if view is None:
            view = self._views[suffix] = self._under(cursor.base[cursor.i][:-1] + suffix)
        return view

    def view_of(self, namespace: Any) -> Self:
        """The state under a namespace; under None itself."""
        return self if namespace is None else self.view(self._encoded_namespace(namespace))

    def _encoded_namespace(self, namespace: Any) -> bytes:
        try:
            return NAMESPACE + self._codec().encode(namespace)
        except StateflowError as error:
            raise self._wrong(type(error)(f"as a namespace, {error}")) from error

    def _codec(self) -> KeyCodec:
        if self._namespace is None:
            raise UsageError(
                f"operator {self.operator!r}: {self.name!r} has no namespaces: declare it with the type of theirs, such as "
                "namespace=str"
            )
        return self._namespace

    def _suffixes(self) -> list[bytes]:
        """The encoded namespaces of the current key that have entries, or have been taken, in their order."""
        taken = set(self._views) if self._views_at == self._cursor.serial else set()
        return sorted(taken.union(self._stored_suffixes()))

    def _stored_suffixes(self) -> Iterator[bytes]:
        cursor, codec = self._cursor, self._codec()
        key = cursor.full(self._id)[:-1]
        first = len(key) + 1
        begin, end = key + NAMESPACE, after(key + NAMESPACE)
        if self._one_entry:
            for full, _ in cursor.backend.scan(begin, end):
                yield full[len(key) : codec.decode(full, first)[1]]
            return
        while (found := cursor.backend.first(begin, end)) is not None:
            suffix = found[len(key) : codec.decode(found, first)[1]]
            yield suffix
            begin = after(key + suffix)

    def _under(self, full: bytes) -> Self:
        view = object.__new__(type(self))
        cls: Any = type(self)
        for name in _slots(cls):
            value = getattr(self, name)
            # What holds keys or entries begins empty.
            setattr(view, name, type(value)() if type(value) in (list, dict, set) else value)
        view._cursor = NamespaceCursor(self._cursor, full)
        view._at = -1
        view._namespace = None
        view._begin()
        # Its changes, also those of reading, are written when the key is done.
        view._dirty = True
        self._cursor.dirty.append(view)
        return view

    def _begin(self) -> None:
        """A view begins."""

    def _holds(self) -> bool:
        raise NotImplementedError

    def _clear(self) -> None:
        raise NotImplementedError


@cache
def _slots(cls: Any) -> tuple[str, ...]:
    return tuple(name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ()))

"""Broadcast state as user code holds it: a map that anybody reads, and that `process_broadcast` alone writes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stateflow.errors import StateTypeError, UsageError
from stateflow.state.copied import UNCHANGEABLE
from stateflow.state.values.serializers import Serializer

K = TypeVar("K")
V = TypeVar("V")

_LIBRARY = f"{Path(__file__).parents[1]}/"


class BroadcastWriteError(UsageError):
    """A method that sees other rows in each subtask has changed what all subtasks share."""


def _guarded(name: str) -> Any:
    """The method of a dict, which writes."""
    write = getattr(dict, name)

    def guarded(self: BoundBroadcast[Any, Any], *arguments: Any, **values: Any) -> Any:
        self._refuse_unless_open()
        return write(self, *arguments, **values)

    return guarded


class BoundBroadcast(dict[K, V]):
    """Refuses each write outside of `process_broadcast`: only one subtask would get it, and the copies would differ. Reading
    costs as much as with a dict. A value that was changed in place is found when the map is recorded.
    """

    __slots__ = ("_is_open", "_name", "_sealed", "_serializer", "_uid")

    def __init__(self, uid: str, name: str, serializer: Serializer) -> None:
        super().__init__()
        self._uid, self._name, self._serializer = uid, name, serializer
        self._is_open = False
        self._sealed: bytes | None = None

    def load(self, values: Mapping[K, V]) -> None:
        """Gives the state what the record has, when the task begins."""
        super().clear()
        super().update(values)
        self._seal()

    def recorded(self) -> list[dict[K, V]]:
        """What the record keeps: one map."""
        if self._sealed is not None and self._encoded() != self._sealed:
            raise BroadcastWriteError(
                f"operator {self._uid!r}: a value of broadcast state {self._name!r} was changed in place outside of process_broadcast: "
                f"{_RULE}"
            )
        return [dict(self)]

    def begin_writing(self) -> None:
        self._is_open = True

    def end_writing(self) -> None:
        self._is_open = False
        self._seal()

    def _seal(self) -> None:
        """Remembers values that could be changed in place."""
        could_change = any(type(value) not in UNCHANGEABLE for value in self.values())
        self._sealed = self._encoded() if could_change else None

    def _encoded(self) -> bytes | None:
        try:
            return self._serializer.dumps(dict(self))
        except StateTypeError:
            # Whoever records it says so, with the names.
            return None

    def _refuse_unless_open(self) -> None:
        if not self._is_open:
            raise BroadcastWriteError(
                f"operator {self._uid!r}: {_method()} writes broadcast state {self._name!r}: {_RULE}"
            )

    __setitem__, __delitem__, __ior__ = map(_guarded, ("__setitem__", "__delitem__", "__ior__"))
    clear, pop, popitem, setdefault, update = map(
        _guarded, ("clear", "pop", "popitem", "setdefault", "update")
    )

    def __reduce__(self) -> Any:
        # A copy is a dict of its own, which may be changed.
        return dict, (dict(self),)


_RULE = (
    "only process_broadcast may, which sees the same rows in every subtask; keep what other methods find out in a state of the key or in "
    "an OperatorListState"
)


@contextmanager
def writing(states: Iterable[Any]) -> Iterator[None]:
    """While `process_broadcast` runs."""
    maps = [state for state in states if isinstance(state, BoundBroadcast)]
    for each in maps:
        each.begin_writing()
    try:
        yield
    finally:
        for each in maps:
            each.end_writing()


def _method() -> str:
    """The user's method that the engine has called, and that is still running."""
    frame, method = inspect.currentframe(), ""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            method = frame.f_code.co_qualname.removesuffix(".<locals>.<genexpr>").rpartition(".")[2]
        elif method:
            return method
        frame = frame.f_back
    return "code outside of a batch"

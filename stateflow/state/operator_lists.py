"""Lists of an operator's subtask as user code holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from stateflow.errors import StateTypeError
from stateflow.state.copied import snapshot

T = TypeVar("T")
ListMark = tuple[tuple[list[Any], int], ...]
"""The lists of a state, and how long each was."""


class BoundOperatorList(Generic[T]):
    """Elements of this subtask, read after `restore` and set in `snapshot`. What is read is a value: changed in place, it changes nothing
    here, so that a call that becomes a dead letter takes nothing with it."""

    __slots__ = ("_dumps", "_elements", "_read")

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._elements = list(elements)
        self._dumps: Callable[[T], bytes] | None = None
        self._read: list[tuple[T, bytes]] = []
        """For a test harness: what was read since the elements were set, and its bytes."""

    def watch_reads(self, dumps: Callable[[T], bytes]) -> None:
        """For a test harness: a run does not pay for it."""
        self._dumps = dumps

    def changed_in_place(self) -> list[T]:
        """What was read, and changed since, if the elements were not set afterwards: the change is lost."""
        return [value for value, before in self._read if not self._is(value, before)]

    def get(self) -> list[T]:
        given = list(map(snapshot, self._elements))
        if self._dumps is not None:
            changeable = (new for new, old in zip(given, self._elements, strict=True) if new is not old)
            self._read += [(value, self._dumps(value)) for value in changeable]
        return given

    def _is(self, value: T, before: bytes) -> bool:
        try:
            return self._dumps is None or self._dumps(value) == before
        except StateTypeError:
            return False

    def add(self, value: T) -> None:
        self._elements.append(value)

    def update(self, values: Iterable[T]) -> None:
        self._elements = list(values)
        self._read = []

    def clear(self) -> None:
        self.update(())

    def load(self, own: Sequence[T], others: Sequence[T] = ()) -> None:
        """Gives the state its elements when the task begins. Only a union takes those of other subtasks."""
        self._elements = [*others, *own]
        self._read = []

    def recorded(self) -> list[T]:
        """What the record keeps for this subtask."""
        return list(self._elements)

    def mark(self) -> ListMark:
        return ((self._elements, len(self._elements)),)

    def undo(self, mark: ListMark) -> None:
        """Back to a mark: a list that is there grows only at its end, or another one takes its place."""
        ((self._elements, length),) = mark
        del self._elements[length:]
        self._read = []


class BoundUnionList(BoundOperatorList[T]):
    """Shows the elements of all subtasks until user code replaces them, and records this subtask's own.

    If every subtask recorded what it was shown, the list would grow with the number of subtasks at every start of a run.
    """

    __slots__ = ("_own",)

    def __init__(self) -> None:
        super().__init__()
        self._own: list[T] = []

    def add(self, value: T) -> None:
        super().add(value)
        self._own.append(value)

    def update(self, values: Iterable[T]) -> None:
        super().update(values)
        self._own = list(self._elements)

    def load(self, own: Sequence[T], others: Sequence[T] = ()) -> None:
        super().load(own, others)
        self._own = list(own)

    def recorded(self) -> list[T]:
        return list(self._own)

    def mark(self) -> ListMark:
        return (*super().mark(), (self._own, len(self._own)))

    def undo(self, mark: ListMark) -> None:
        shown, (self._own, length) = mark
        del self._own[length:]
        super().undo((shown,))

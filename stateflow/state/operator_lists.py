"""Lists of an operator's subtask as user code holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
ListMark = tuple[tuple[list[Any], int], ...]
"""The lists of a state, and how long each was."""


class BoundOperatorList(Generic[T]):
    """Elements of this subtask, read after `restore` and set in `snapshot`."""

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._elements = list(elements)

    def get(self) -> list[T]:
        return list(self._elements)

    def add(self, value: T) -> None:
        self._elements.append(value)

    def update(self, values: Iterable[T]) -> None:
        self._elements = list(values)

    def clear(self) -> None:
        self.update(())

    def load(self, own: Sequence[T], others: Sequence[T] = ()) -> None:
        """Gives the state its elements when the task begins. Only a union takes those of other subtasks."""
        self._elements = [*others, *own]

    def recorded(self) -> list[T]:
        """What the record keeps for this subtask."""
        return list(self._elements)

    def mark(self) -> ListMark:
        return ((self._elements, len(self._elements)),)

    def undo(self, mark: ListMark) -> None:
        """Back to a mark: a list that is there grows only at its end, or another one takes its place."""
        ((self._elements, length),) = mark
        del self._elements[length:]


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

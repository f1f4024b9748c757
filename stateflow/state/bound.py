"""States as user code holds them, each bound to the key that its task processes.

A task makes one object per declared state. What user code has read stays valid until the next key. A state that a key
does not touch costs that key nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from stateflow.state.cursor import BoundState, Change, Cursor
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.many_timers import BoundTimers
from stateflow.state.single_values import (
    BoundAggregatingState,
    BoundReducingState,
    BoundValueState,
    StoredState,
)
from stateflow.state.timers import BoundTimer

T = TypeVar("T")


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


__all__ = [
    "BoundAggregatingState",
    "BoundListState",
    "BoundMapState",
    "BoundOperatorList",
    "BoundReducingState",
    "BoundState",
    "BoundTimer",
    "BoundTimers",
    "BoundValueState",
    "Change",
    "Cursor",
    "StoredState",
]

"""Copies of values, because a process may go on changing an object that it has put out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import pyarrow as pa


class Taker(Protocol):
    """Takes the rows of one output as user code puts them out."""

    values: Callable[[Any], Any]
    """Takes one row as it is now, whatever user code does with the object later."""

    def taken(self, rows: Iterable[Any]) -> list[Any]:
        """Many rows at once."""

    def check(self, taken: Sequence[Any]) -> None:
        """Raises what writing them would."""

    def explained(self, error: Exception) -> Exception:
        """The error of `values`, in words for the user; every other error as it is."""


class Copies:
    """Rows as objects of their own, as tests of user code want to see them."""

    values: Callable[[Any], Any] = staticmethod(deepcopy)

    def __init__(self, taker: Taker | None = None) -> None:
        """`taker` is the one that a run uses instead."""
        self._taker = taker

    def taken(self, rows: Iterable[Any]) -> list[Any]:
        return list(map(self.values, rows))

    def check(self, taken: Sequence[Any]) -> None:
        if self._taker is not None:
            self._taker.check(self._taker.taken(taken))

    def explained(self, error: Exception) -> Exception:
        return error


def changeable(kind: pa.DataType) -> bool:
    """Whether values of a column of the type can be changed in place."""
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

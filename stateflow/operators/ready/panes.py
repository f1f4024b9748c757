"""Panes: the pieces of time that windows which overlap have in common. A pane, like a window, is named by its end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stateflow.pipelines.windows import Cumulative, Sliding, Window


class Panes(Protocol):
    def end_of(self, times: Any) -> Any:
        """The pane of each time."""
        ...

    def first_window(self, panes: Any, closed: int) -> Any:
        """The first window of each pane that ends after `closed`."""
        ...

    def next_window(self, end: int) -> int | None:
        """The window after one, if it can share panes with it."""
        ...

    def of_window(self, end: int) -> range:
        """The panes of a window."""
        ...

    def has(self, end: int, pane: int) -> bool:
        """Whether a window has a pane."""
        ...

    def done(self, closed: int) -> int:
        """Panes up to this one are in no window that ends after `closed`."""
        ...


@dataclass(frozen=True)
class SlidingPanes:
    size: int
    every: int
    offset: int

    @property
    def length(self) -> int:
        return math.gcd(self.size, self.every)

    def end_of(self, times: Any) -> Any:
        return times - (times - self.offset) % self.length + self.length

    def first_window(self, panes: Any, closed: int) -> Any:
        return _upward(np.maximum(panes, closed + 1), self.every, self.offset + self.size)

    def next_window(self, end: int) -> int | None:
        return end + self.every

    def of_window(self, end: int) -> range:
        return range(end - self.size + self.length, end + 1, self.length)

    def has(self, end: int, pane: int) -> bool:
        return end - self.size < pane <= end

    def done(self, closed: int) -> int:
        return closed + self.length - self.size


@dataclass(frozen=True)
class CumulativePanes:
    size: int
    every: int
    offset: int

    def end_of(self, times: Any) -> Any:
        return times - (times - self.offset) % self.every + self.every

    def first_window(self, panes: Any, closed: int) -> Any:
        return _upward(np.maximum(panes, closed + 1), self.every, self.offset)

    def next_window(self, end: int) -> int | None:
        """None at the end of the longest: the windows begin anew."""
        return None if (end - self.offset) % self.size == 0 else end + self.every

    def of_window(self, end: int) -> range:
        start = (end - 1 - self.offset) // self.size * self.size + self.offset
        return range(start + self.every, end + 1, self.every)

    def has(self, end: int, pane: int) -> bool:
        return pane in self.of_window(end)

    def done(self, closed: int) -> int:
        return closed - (closed - self.offset) % self.size


def panes_of(window: Window) -> Panes:
    match window:
        case Sliding(size, every, offset):
            return SlidingPanes(size, every, offset)
        case Cumulative(size, every, offset):
            return CumulativePanes(size, every, offset)
    raise NotImplementedError(f"{window} has no panes")


def _upward(times: Any, step: int, offset: int) -> Any:
    """The first multiple of `step`, plus `offset`, at or after each time."""
    return times + (offset - times) % step

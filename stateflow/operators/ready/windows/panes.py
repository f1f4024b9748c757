"""Panes: the pieces of time that windows which overlap have in common. A pane, like a window, is named by its end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stateflow.pipelines.ready.windows import Cumulative, Sliding, Window

_FAR = 1 << 61


@dataclass(frozen=True)
class Panes:
    """Those of sliding windows."""

    size: int
    every: int
    offset: int

    @property
    def length(self) -> int:
        return math.gcd(self.size, self.every)

    def end_of(self, times: Any) -> Any:
        """The pane of each time."""
        return times - (times - self.offset) % self.length + self.length

    def first_window(self, panes: Any, closed: int) -> Any:
        """The first window of each pane that ends after `closed`."""
        return _upward(np.maximum(panes, max(closed, -_FAR) + 1), self.every, self.offset + self.size)

    def next_window(self, ends: Any) -> Any:
        """The window after each."""
        return ends + self.every

    def has(self, ends: Any, panes: Any) -> Any:
        """Whether a window has a pane, for windows that end no earlier."""
        return ends - self.size < panes

    def done(self, closed: int) -> int:
        """Panes up to this one are in no window that ends after `closed`."""
        return closed + self.length - self.size


class CumulativePanes(Panes):
    """Their windows begin together, and `size` is a multiple of `every`."""

    def has(self, ends: Any, panes: Any) -> Any:
        # The last window that has the pane ends at the next multiple of the size.
        return ends <= _upward(panes, self.size, self.offset)

    def done(self, closed: int) -> int:
        return closed - (closed - self.offset) % self.size


def panes_of(window: Window) -> Panes:
    match window:
        case Sliding(size, every, offset):
            return Panes(size, every, offset)
        case Cumulative(size, every, offset):
            return CumulativePanes(size, every, offset)
    raise NotImplementedError(f"{window} has no panes")


def _upward(times: Any, step: int, offset: int) -> Any:
    """The first multiple of `step`, plus `offset`, at or after each time."""
    return times + (offset - times) % step

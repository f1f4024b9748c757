"""Which rows of two sides are partners: sorted by key and time, the partners of a row are one span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST = 500_000
"""Pairs that are put out at once, unless one row alone has more partners."""
_LARGEST_CODE = 1 << 62


@dataclass(frozen=True)
class Times:
    """Rows by the number of their key, and their times."""

    owners: Any
    at: Any


class Sorted:
    """Rows in the order of key and time, to be searched."""

    def __init__(self, rows: Times) -> None:
        self._low = int(rows.at.min()) if len(rows.at) else 0
        high = int(rows.at.max()) if len(rows.at) else 0
        most = int(rows.owners.max()) + 1 if len(rows.owners) else 1
        self._ranks = None
        self._step = high - self._low + 3
        if self._step * most > _LARGEST_CODE:
            self._ranks = np.unique(rows.at)
            self._step = len(self._ranks) + 2
        self._most = most
        codes = rows.owners * self._step + self._numbers(rows.at)
        self.order = np.argsort(codes, kind="stable")
        """The rows in that order."""
        self._codes = codes[self.order]

    def before(self, owners: Any, at: Any) -> Any:
        """How many rows of the order come before these keys and times."""
        return self._search(owners, at, "left")

    def up_to(self, owners: Any, at: Any) -> Any:
        """The same with the rows of the very times."""
        return self._search(owners, at, "right")

    def _search(self, owners: Any, at: Any, side: Any) -> Any:
        if self._ranks is not None:
            numbers = np.searchsorted(self._ranks, at, side) + 1
            return np.searchsorted(self._codes, np.minimum(owners, self._most) * self._step + numbers, "left")
        numbers = np.clip(at - self._low + 1, 0, self._step - 1)
        return np.searchsorted(self._codes, np.minimum(owners, self._most) * self._step + numbers, side)

    def _numbers(self, at: Any) -> Any:
        """From one on, so that there is room before and after."""
        return at - self._low + 1 if self._ranks is None else np.searchsorted(self._ranks, at) + 1


def pairs(left: Times, right: Times, least: int, most: int) -> Iterator[tuple[Any, Any]]:
    """The partners, as indices of left and of right rows: the right row is `least` to `most` later than the left one."""
    if not len(left.at) or not len(right.at):
        return
    ordered = Sorted(right)
    begins = ordered.before(left.owners, left.at + least)
    counts = ordered.up_to(left.owners, left.at + most) - begins
    there = np.flatnonzero(counts > 0)
    for rows in pieces(there, counts[there]):
        mine = counts[rows]
        places = np.repeat(begins[rows] - (np.cumsum(mine) - mine), mine) + np.arange(int(mine.sum()))
        yield np.repeat(rows, mine), ordered.order[places]


def pieces(rows: Any, counts: Any) -> Iterator[Any]:
    """The rows in spans. A span makes at most `MOST` pairs, or is one row."""
    sums = np.cumsum(counts)
    begin = 0
    while begin < len(rows):
        done = int(sums[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, done + MOST, "right")))
        yield rows[begin:end]
        begin = end

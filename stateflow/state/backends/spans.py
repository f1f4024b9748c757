"""Spans of a file's bytes: those that are here, those that are missing. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Span = tuple[int, int]
"""Where bytes begin and end."""


class Held:
    """The spans of a file that are here."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def missing(self, begin: int, end: int) -> list[Span]:
        """What of this span is not here."""
        left = []
        at = bisect_right(self._ends, begin)
        while begin < end:
            if at == len(self._begins) or self._begins[at] >= end:
                left.append((begin, end))
                break
            if self._begins[at] > begin:
                left.append((begin, self._begins[at]))
            begin = self._ends[at]
            at += 1
        return left

    @property
    def size(self) -> int:
        return sum(self._ends) - sum(self._begins)


def coalesced(spans: Iterable[Span], gap: int) -> list[Span]:
    """The spans in order, those with at most `gap` bytes between them as one."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def pieces(span: Span, size: int) -> list[Span]:
    """The span, cut into spans of at most `size` bytes."""
    begin, end = span
    return [(at, min(at + size, end)) for at in range(begin, end, size)]

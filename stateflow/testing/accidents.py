"""Accidents at every line of some code: a test calls it again and again, and each call gets one line further."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

Line = tuple[str, int]


class DeathError(BaseException):
    """The process dies here: nothing that catches errors sees it."""


class Accidents:
    """While it is entered, `act` is called at the first line that has had no accident yet. After it, the next one is at a later line:
    when the code comes by again, in the same call if it tries again by itself, or in the next one.

    Blocks that clean up are left out, for a process that dies does not clean up. `every` third line alone has an accident, say.
    """

    def __init__(self, code: Iterable[str], act: Callable[[], None], every: int = 1) -> None:
        self.at = ""
        """Where it was since this was last entered; empty if there was none."""
        self._code = tuple(code)
        self._act = act
        self._every = every
        self._past: set[Line] = set()
        self._left_out: dict[str, frozenset[int]] = {}
        """By file."""
        self._waits_for: Line | None = None

    def __enter__(self) -> Accidents:
        self.at, self._waits_for = "", None
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, given: Any) -> Any:
        return self._within if frame.f_code.co_filename.startswith(self._code) else None

    def _within(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "line":
            self._line((frame.f_code.co_filename, frame.f_lineno))
        return self._within

    def _line(self, line: Line) -> None:
        if self._waits_for == line:
            self._waits_for = None
        if self._waits_for or line in self._past or line[1] in self._cleaning_up(line[0]):
            return
        self._past.add(line)
        if len(self._past) % self._every:
            return
        self.at, self._waits_for = f"{Path(line[0]).name}:{line[1]}", line
        self._act()

    def _cleaning_up(self, file: str) -> frozenset[int]:
        if file not in self._left_out:
            self._left_out[file] = _lines_cleaning_up(file)
        return self._left_out[file]


def _lines_cleaning_up(file: str) -> frozenset[int]:
    """The lines of the `finally` and `except` blocks of a file, and of each `try:`, which Python 3.11 takes for outside of the `with`
    around it."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Try):
            blocks: tuple[ast.stmt | ast.ExceptHandler, ...] = (*node.finalbody, *node.handlers)
            found.add(node.lineno)
            for each in blocks:
                found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return frozenset(found)

"""A call of user code that a dead letter may take back: everything that the call did counts, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateflow.operators.context import OperatorContext
from stateflow.operators.snapshots import Taker
from stateflow.pipelines.processes.operator_spec import MAIN

Mark = tuple[int, int, dict[str, int]]


class Attempt:
    """What one operator puts out and changes in a call. With `on_error="dead_letter"` a call is checked before it counts."""

    def __init__(
        self,
        out: list[Any],
        context: OperatorContext,
        states: Sequence[Any],
        takers: Mapping[str, Taker],
        *,
        checked: bool,
    ) -> None:
        self._out, self._context, self._states = out, context, states
        self._takers, self._checked = takers, checked

    def mark(self, changes: list[Any]) -> Mark:
        sides = {name: len(rows) for name, rows in self._context.sides.items()}
        return len(self._out), len(changes), sides

    def check(self, mark: Mark) -> None:
        """Raises for values and rows that do not fit their types: later, nobody would know whose they are."""
        if not self._checked:
            return
        for state in self._states:
            state.check_current()
        for name, taker in self._takers.items():
            rows, begin = (self._out, mark[0]) if name == MAIN else (self._context.sides[name], mark[2][name])
            if len(rows) > begin:
                taker.check(rows[begin:])

    def undo(self, mark: Mark, changes: list[Any]) -> None:
        del self._out[mark[0] :], changes[mark[1] :]
        for name, length in mark[2].items():
            del self._context.sides[name][length:]
        for state in self._states:
            state.discard()

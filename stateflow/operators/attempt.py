"""A call of user code that a dead letter may take back: everything that the call did counts, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stateflow.operators.binding import Binding
from stateflow.operators.context import OperatorContext
from stateflow.operators.snapshots import Taker
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.state.cursor import Cursor

Mark = tuple[int, int, dict[str, int]]


class Attempt:
    """What one operator puts out and changes in a call. With `on_error="dead_letter"` a call is checked before it counts."""

    def __init__(
        self,
        out: list[Any],
        context: OperatorContext,
        binding: Binding,
        cursor: Cursor,
        takers: Mapping[str, Taker],
        values: Callable[[Any], Any],
        failed: Callable[[Exception, Any], None],
        *,
        checked: bool,
    ) -> None:
        """`values` takes a row as it is put out; `failed` raises, or makes the key a dead letter."""
        self.out, self.context, self.cursor, self.chunked = out, context, cursor, binding.chunked
        self.values, self.failed = values, failed
        self._takers, self._checked = takers, checked

    def mark(self, changes: list[Any]) -> Mark:
        sides = {name: len(rows) for name, rows in self.context.sides.items()}
        return len(self.out), len(changes), sides

    def check(self, mark: Mark) -> None:
        """Raises for values and rows that do not fit their types: later, nobody would know whose they are."""
        if not self._checked:
            return
        for state in self.chunked:
            state.check_current()
        for name, taker in self._takers.items():
            rows, begin = (self.out, mark[0]) if name == MAIN else (self.context.sides[name], mark[2][name])
            if len(rows) > begin:
                taker.check(rows[begin:])

    def undo(self, mark: Mark, changes: list[Any]) -> None:
        del self.out[mark[0] :], changes[mark[1] :]
        for name, length in mark[2].items():
            del self.context.sides[name][length:]
        for state in self.chunked:
            state.discard()

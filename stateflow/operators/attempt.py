"""A call of user code that a dead letter may take back: everything that the call did counts, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stateflow.operators.binding import Binding
from stateflow.operators.context import OperatorContext
from stateflow.operators.snapshots import Taker
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.state.cursor import Cursor
from stateflow.state.operator_lists import BoundOperatorList, ListMark


@dataclass(slots=True)
class Mark:
    """How far everything had come when the call began."""

    out: int
    changes: int
    sides: dict[str, int]
    lists: list[ListMark]
    counters: dict[str, int]


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
        self._takers, self.checked = takers, checked
        states = binding.operator.values() if checked else ()
        self._lists = [state for state in states if isinstance(state, BoundOperatorList)]

    def mark(self, changes: list[Any]) -> Mark:
        sides = {name: len(rows) for name, rows in self.context.sides.items()}
        lists = [state.mark() for state in self._lists]
        counters = self.context.metrics.counters if self.checked else {}
        values = {name: counter.value for name, counter in counters.items()}
        return Mark(len(self.out), len(changes), sides, lists, values)

    def check(self, mark: Mark) -> None:
        """Raises for values and rows that do not fit their types: later, nobody would know whose they are."""
        if not self.checked:
            return
        for state in self.chunked:
            state.check_current()
        for name, taker in self._takers.items():
            is_main = name == MAIN
            rows, begin = (self.out, mark.out) if is_main else (self.context.sides[name], mark.sides[name])
            if len(rows) > begin:
                taker.check(rows[begin:])

    def undo(self, mark: Mark, changes: list[Any]) -> None:
        del self.out[mark.out :], changes[mark.changes :]
        for name, length in mark.sides.items():
            del self.context.sides[name][length:]
        for elements, then in zip(self._lists, mark.lists, strict=True):
            elements.undo(then)
        if self.checked:
            for name, counter in self.context.metrics.counters.items():
                counter.value = mark.counters.get(name, 0)
        for state in self.chunked:
            state.discard()

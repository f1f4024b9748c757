"""Finds values that user code changed in place and did not set: in a run such a change is lost.

For the test harness only; a run does not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from stateflow.errors import StateflowError, UsageError
from stateflow.format.scalars import CODED
from stateflow.operators.attempt import Mark
from stateflow.operators.keyed import KeyedEngine
from stateflow.operators.output import returned
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.single_values import StoredState

_IMMUTABLE = (*(scalar.type for scalar in CODED), type(None))


class Watch:
    """Remembers the values that the current key has read, and compares them when its handler is done."""

    def __init__(self, engine: KeyedEngine) -> None:
        self._engine = engine
        self._read: list[tuple[Any, Any, bytes]] = []
        """State, value, and its bytes when it was read."""
        self._violation: UsageError | None = None
        for name in engine.spec.state_ids:
            state = vars(engine.process).get(name)
            if isinstance(state, (StoredState, BoundListState, BoundMapState)):
                state.watch_reads(partial(self._remembered, state))
        undo = engine._attempt.undo

        def undone(mark: Mark, changes: list[Any]) -> None:
            # What a failed call has read goes with what it has written: the next key is not to blame for it.
            self._read = []
            undo(mark, changes)

        engine._attempt.undo = undone  # type: ignore[method-assign]
        engine._handlers = tuple(map(self._checked, engine._handlers))
        # One key at a time, so that what is read belongs to the key whose function has just run.
        engine.visiting.at_once = 1
        engine.visiting.asked = [
            replace(visit, function=self._checked(visit.function)) for visit in engine.visiting.asked
        ]
        for name, handler in engine.binding.handlers.items():
            engine.binding.handlers[name] = self._checked(handler)

    def _remembered(self, state: Any, value: Any) -> Any:
        if not isinstance(value, _IMMUTABLE):
            self._read.append((state, value, state.serializer.dumps(value)))
        return value

    def _checked(self, handler: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def watched(*arguments: Any) -> Iterator[Any]:
            produced = handler(*arguments)
            if produced is not None:
                yield from returned(self._engine.spec.uid, produced)
            read, self._read = self._read, []
            for state, value, before in read:
                if _bytes(state, value) != before and not _was_set(state, value):
                    key = self._engine.cursor.key
                    self._violation = UsageError(
                        f"operator {self._engine.spec.uid!r}, state {state.name!r}, key {key!r}: a value that was read "
                        f"was changed in place to {value!r} and not set, so the change is lost: {_advice(state)}"
                    )
                    raise self._violation

        return watched

    def raise_violation(self) -> None:
        """Raises even where failing keys are diverted: the change is a mistake in the code under test."""
        if self._violation is not None:
            raise self._violation


def _bytes(state: Any, value: Any) -> bytes | None:
    try:
        return state.serializer.dumps(value)  # type: ignore[no-any-return]
    except StateflowError:
        return None


def _was_set(state: Any, value: Any) -> bool:
    return any(each.has_set(value) for each in (state, *state.views()))


def _advice(state: Any) -> str:
    if isinstance(state, BoundMapState):
        return f"write self.{state.name}[key] = value"
    if isinstance(state, BoundListState):
        return f"write self.{state.name}.update(values)"
    return f"write self.{state.name}.value = value"

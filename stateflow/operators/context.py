"""The context that user code is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.instants import instant, nearest_instant
from stateflow.names import CONTEXT, Named
from stateflow.operators.snapshots import Taker
from stateflow.pipelines.processes.process import Output
from stateflow.state.cursor import Cursor
from stateflow.state.many_timers import BoundTimers
from stateflow.state.namespaces import Namespaced
from stateflow.state.timers import BoundTimer


@dataclass(frozen=True)
class Moment:
    """The values that are fixed for a whole batch, and recorded with it."""

    slot: int
    now: int
    seed: int
    watermark: int | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    shift: int = 0
    """Added to the slot where stored entries are ordered by it: see `Record.shift`."""
    watermark_before: int | None = None
    """The watermark of the batch before."""


@dataclass(frozen=True)
class Visit:
    """A function, to be called for every key that has something in a state."""

    state: Any
    function: Callable[[Any, Any], Any]


class TaskCounter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, by: int = 1) -> None:
        self.value += by


class TaskMetrics:
    def __init__(self) -> None:
        self.counters: dict[str, TaskCounter] = {}

    def counter(self, name: str) -> TaskCounter:
        return self.counters.setdefault(name, TaskCounter())


class OperatorContext(Named):
    """One per task."""

    _called, _elsewhere = "the context", CONTEXT

    def __init__(
        self, cursor: Cursor, moment: Moment, subtask: int, outputs: Mapping[str, Taker], parallelism: int = 1
    ) -> None:
        self._cursor = cursor
        self._moment = moment
        self._random: Random | None = None
        self._random_at = -1
        self.subtask = subtask
        self.parallelism = parallelism
        self.late = False
        self.namespace: Any = None
        self.keyed: Sequence[Namespaced] = ()
        self.visits: list[Visit] | None = None
        """The visits that `for_each_key` has asked for; None where it is not allowed."""
        self.metrics = TaskMetrics()
        self.parameters = moment.parameters
        self.checkpoint_id = moment.slot
        self.now: datetime = instant(moment.now)
        self.watermark: datetime | None = (
            None if moment.watermark is None else nearest_instant(moment.watermark)
        )
        self.sides: dict[str, list[Any]] = {name: [] for name in outputs}
        self._outputs = outputs

    @property
    def key(self) -> Any:
        return self._cursor.key

    @property
    def random(self) -> Random:
        cursor = self._cursor
        if self._random is None or self._random_at != cursor.serial:
            # Without a key (in open, in columnar code) chance belongs to the subtask.
            where = cursor.base[cursor.i].hex() if cursor.base else f"subtask {self.subtask}"
            self._random = Random(f"{self._moment.seed}:{where}")
            self._random_at = cursor.serial
        return self._random

    def clear_key(self) -> None:
        for state in self.keyed:
            state.clear_key()

    def for_each_key(self, state: Any, function: Callable[[Any, Any], Any]) -> None:
        if self.visits is None:
            raise UsageError(
                "ctx.for_each_key is of no use here: a process visits its keys in process_broadcast, where it has none"
            )
        own = any(state is each for each in self.keyed) and not isinstance(state, BoundTimer | BoundTimers)
        if not own or not callable(function):
            raise UsageError(
                "ctx.for_each_key takes a keyed state of the process, such as self.total, and a function of (key, ctx), such as "
                "self.reprice"
            )
        self.visits.append(Visit(state, function))

    def emit(self, output: Output[Any], row: Any) -> None:
        try:
            rows, taker = self.sides[output.name], self._outputs[output.name]
        except AttributeError:
            raise UsageError(
                f"ctx.emit takes an output and a row, such as ctx.emit(LATE, row) with LATE = sf.output('late', Order), not {output!r}"
            ) from None
        except KeyError:
            raise UsageError(
                f"side output {output.name!r} is not known to this operator: list it in outputs=[...] of .process()"
            ) from None
        try:
            rows.append(taker.values(row))
        except AttributeError as error:
            raise taker.explained(error) from error

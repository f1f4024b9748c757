"""What every harness does: it keeps what was put out and counted, and its clock stands still until a test moves it."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stateflow.errors import UsageError
from stateflow.format.instants import instant, micros_since_epoch, nearest_instant
from stateflow.format.keygroups import DEFAULT_MAX_PARALLELISM
from stateflow.format.records import OperatorState, Shard
from stateflow.operators.context import Moment, TaskCounter
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS
from stateflow.pipelines.processes.process import Output
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.watched import WatchedBackend
from stateflow.state.values.serializers import Serializer
from stateflow.testing.recorded import RecordedState, expected, refuse_unknown

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""Where the clock stands of a harness that begins with nothing and is told no time."""
END = b"\xff" * 8
"""Behind every entry of a backend."""


class Harness:
    def __init__(self, now: datetime) -> None:
        self.output: list[Any] = []
        self.sides: dict[str, list[Any]] = {}
        self.metrics: dict[str, int] = {}
        self.now = now

    def side(self, output: Output[Any] | str) -> list[Any]:
        return self.sides.get(output if isinstance(output, str) else output.name, [])

    @property
    def dead_letters(self) -> list[Any]:
        """The dead letters of the operator, each with the reason."""
        return self.sides.get(DEAD_LETTERS, [])

    def _put_out(self, rows: list[Any], sides: Mapping[str, list[Any]]) -> list[Any]:
        for name, emitted in sides.items():
            self.sides.setdefault(name, []).extend(emitted)
        self.output.extend(rows)
        return rows

    def _count(self, counters: Mapping[str, TaskCounter]) -> None:
        for name, counter in counters.items():
            self.metrics[name] = self.metrics.get(name, 0) + counter.value


class KeyedStateHarness(Harness, ABC):
    """A harness with a memory backend for the state of all keys, and with time that wakes timers."""

    def __init__(self, now: datetime | None, max_parallelism: int | None) -> None:
        super().__init__(now or NOW)
        self.watermark: datetime | None = None
        self._given = now, max_parallelism
        self._max = max_parallelism or DEFAULT_MAX_PARALLELISM
        self._slot = 0
        self._seed_ahead = 0
        self._node: KeyedNode | None = None
        """The operator in its pipeline."""
        self._stands = False
        """Whether batches have the watermark of a job, and not the operator's own."""
        self._watermark_before: datetime | None = None
        self._subtask = (0, 1)
        self._elements: Mapping[str, tuple[tuple[bytes, ...], ...]] = {}
        self._before: RecordedState | None = None
        """What there was before the last batch."""
        self._folder = tempfile.TemporaryDirectory(prefix="stateflow-harness-")
        self._backend = self._backend_with(())
        self._watched = WatchedBackend(self._backend, ())

    def advance(
        self, watermark: datetime | None = None, *, now: datetime | timedelta | None = None
    ) -> list[Any]:
        """Moves event time, processing time or both, and fires the timers that are due; gives what they put out."""
        if watermark is not None:
            if self.watermark is not None and watermark < self.watermark:
                raise UsageError(
                    f"the watermark stands at {self.watermark} and cannot go back to {watermark}"
                )
            self.watermark = watermark
        if now is not None:
            self.now = self.now + now if isinstance(now, timedelta) else now
        return self._batch_without_rows()

    def stand_at(
        self,
        *,
        slot: int,
        now: datetime,
        seed: int,
        watermark: datetime | None = None,
        watermark_before: datetime | None = None,
        subtask: tuple[int, int] = (0, 1),
    ) -> None:
        """Lets the next batch be that of a checkpoint: with its number, time, chance and watermark, and the watermark of the batch
        before; `subtask` is the number of a subtask and how many there are. An operator of a pipeline is then as far behind the watermark as the operators before it make it."""
        self._slot, self.now, self.watermark = slot - 1, now, watermark
        self._seed_ahead = seed - slot
        self._stands, self._watermark_before = True, watermark_before
        self._subtask = subtask

    def shown(self, key: Any) -> dict[str, Any]:
        """Every state and timer of a key, as `stateflow query` shows it; what is not there is left out."""
        return self.recorded().of_key(self._uid, self._as_key(key)).values()

    def expect(self, condition: str, *, of: str, key: Any, namespace: Any = None) -> None:
        """Asserts a condition on the value that state `of` has for a key, or for a namespace of it: SQL over `value` and `previous`,
        the value before the last batch, as `stateflow bisect` takes it."""
        after = self.recorded()
        refuse_unknown(self._uid, of, after.operator.states)
        key = self._as_key(key)
        before = self._before or replace(after, entries=())
        now, then = (each.of_key(self._uid, key) for each in (after, before))
        expected(condition, of, now, then, namespace)

    def changes(self, of: str) -> list[dict[str, Any]]:
        """The rows that the feed of state `of` has of the last batch, as `flow.state_changes(...)` puts them out. A run puts out more
        where its table lacks some: when the feed begins, behind a restore, and for values of a type that has changed."""
        from stateflow.state.change_rows import (  # most tests ask for no feed
            ChangeRows,
            changed,
            todays_values,
        )

        recorded = self.recorded()
        refuse_unknown(self._uid, of, recorded.operator.states)
        schema = recorded.operator.states[of]
        if schema.kind == "timer":
            raise UsageError(f"{of!r} of {self._uid} is a timer, which has no feed")
        todays, same = todays_values(schema, self._serializer(of))
        entries = changed(self._watched.written(schema.id), todays, same)
        rows = ChangeRows(recorded.operator.key, of, schema)
        found: list[dict[str, Any]] = rows.rows(entries, self._slot, micros_since_epoch(self.now)).to_pylist()
        return found

    def _watch(self) -> WatchedBackend:
        """The backend, as a batch is to see it."""
        states = self._operator_state().states.values()
        self._watched = WatchedBackend(self._backend, [each.id for each in states if each.kind != "timer"])
        return self._watched

    def recorded(self) -> RecordedState:
        """The state as it is now, such as a record has it."""
        return RecordedState(
            operator=self._operator_state(),
            entries=tuple(self._backend.scan(b"", END)),
            elements=dict(self._elements),
            slot=self._slot,
            now=micros_since_epoch(self.now),
            watermark=None if self.watermark is None else micros_since_epoch(self.watermark),
        )

    def _take_key_groups(self, state: RecordedState) -> None:
        """Its keys are found under the number of key groups that they were written with."""
        theirs = state.operator.max_parallelism
        if self._given[1] not in (None, theirs):
            raise UsageError(
                f"the state of after= has max_parallelism={theirs}, and a job keeps its own for ever: leave max_parallelism={self._given[1]} out"
            )
        self._max = theirs

    def _begin_with(self, state: RecordedState) -> None:
        self._slot, self.now = state.slot, self._given[0] or instant(state.now)
        self.watermark = None if state.watermark is None else nearest_instant(state.watermark)
        self._backend.write(state.entries)
        self._elements = dict(state.elements)

    def _moment(self, parameters: Mapping[str, Any]) -> Moment:
        marks = (
            None if each is None else micros_since_epoch(each)
            for each in (self.watermark, self._watermark_before)
        )
        watermark, before = marks
        return Moment(
            self._slot, micros_since_epoch(self.now), self._slot + self._seed_ahead, watermark, parameters,
            watermark_before=before,
        )  # fmt: skip

    def _lag(self) -> dict[str, Any]:
        """What a spec says of watermarks."""
        if not self._stands or self._node is None:
            return {}
        return {"waited": comes_when_reached(self._node), "held_back": self._node.held_back}

    @property
    @abstractmethod
    def _uid(self) -> str: ...

    @abstractmethod
    def _as_key(self, key: Any) -> Any: ...

    @abstractmethod
    def _operator_state(self) -> OperatorState: ...

    @abstractmethod
    def _serializer(self, of: str) -> Serializer | None:
        """Of the values of a state; None where they are columns. UsageError for a state that has no feed."""

    @abstractmethod
    def _batch_without_rows(self) -> list[Any]: ...

    def _backend_with(self, entries: Iterable[tuple[bytes, bytes]]) -> Backend:
        shard = Shard(first=0, last=self._max - 1, backend="memory")
        backend = memory_backend()(shard, Path(self._folder.name), lambda ref: Path(ref.path))
        backend.write(entries)
        return backend

"""What every harness does: it keeps what was put out and counted, and its clock stands still until a test moves it."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.records import Shard
from stateflow.operators.context import TaskCounter
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS
from stateflow.pipelines.processes.process import Output
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend

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

    def __init__(self, now: datetime, max_parallelism: int) -> None:
        super().__init__(now)
        self.watermark: datetime | None = None
        self._max = max_parallelism
        self._slot = 0
        self._folder = tempfile.TemporaryDirectory(prefix="stateflow-harness-")
        self._backend = self._backend_with(())

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

    @abstractmethod
    def _batch_without_rows(self) -> list[Any]: ...

    def _backend_with(self, entries: Iterable[tuple[bytes, bytes]]) -> Backend:
        shard = Shard(first=0, last=self._max - 1, backend="memory")
        backend = memory_backend()(shard, Path(self._folder.name), lambda ref: Path(ref.path))
        backend.write(entries)
        return backend

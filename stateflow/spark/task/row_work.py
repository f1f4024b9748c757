"""The work of a subtask whose user code gets rows: per key, or all rows of the subtask at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stateflow.format.records import Shard
from stateflow.operators.elements import gathered, hand_out
from stateflow.operators.engine import OUTPUT_ROWS, ProcessEngine
from stateflow.operators.keyed import Chunk, KeyedEngine, StreamError
from stateflow.operators.output import RowWriter, writers
from stateflow.operators.partition import PartitionEngine
from stateflow.operators.python_values import values_of
from stateflow.pipelines.processes.operator_spec import DEAD_LETTER, MAIN, OperatorSpec
from stateflow.spark.task.blocks import Blocks, Shape
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.columns import RowReader
from stateflow.spark.task.hot_keys import KeySample
from stateflow.spark.task.shards import Timers
from stateflow.spark.task.subtask import Outputs, Task, Work
from stateflow.state.backends.base import Backend
from stateflow.state.values.serializers import Serializer


@dataclass(frozen=True, kw_only=True)
class RowTask(Task):
    """The task of an operator whose user code gets rows."""

    spec: OperatorSpec
    outputs: Mapping[str, pa.Schema]
    """The main output and those to the side."""
    elements: Mapping[str, tuple[tuple[bytes, ...], ...]] = field(default_factory=dict)
    """Operator state of every subtask."""
    begins: bool = True
    """True for the first batch of a run: then union state shows the elements of all subtasks."""
    broadcast: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    carry: Carried | None = None
    """The columns that the exchange sends; None: all."""

    def work(self, subtask: int, shards: tuple[Shard, ...], batches: Iterator[Any]) -> Work:
        if self.spec.key_columns:
            return KeyedWork(self, subtask, shards, batches)
        return PartitionWork(self, subtask, batches)


class RowOutputs(Outputs):
    """Turns the engine's rows into Arrow batches, for the sink or for staged files."""

    def __init__(self, task: RowTask) -> None:
        super().__init__(task, task.outputs)
        self.writers: dict[str, RowWriter] = writers(task.spec, task.outputs)

    def take(self, engine: ProcessEngine, *, all_of_it: bool = False) -> Iterator[Any]:
        """Takes the rows that the engine has gathered, once they are enough for a batch."""
        out = engine.out
        if len(out) >= OUTPUT_ROWS or (all_of_it and out):
            self.rows += len(out)
            if self.direct:
                for begin in range(0, len(out), OUTPUT_ROWS):
                    yield self.writers[MAIN].write(out[begin : begin + OUTPUT_ROWS])
            elif MAIN in self.files:
                self.files[MAIN].write(self.writers[MAIN].write(out))
            out.clear()
        for name, rows in engine.context.sides.items():
            if rows and (all_of_it or len(rows) >= OUTPUT_ROWS):
                if name in self.files:
                    self.files[name].write(self.writers[name].write(rows))
                rows.clear()


class RowWork(Work):
    """What operators with keys and without have in common: the life cycle of a process."""

    outputs: RowOutputs

    def __init__(self, task: RowTask, engine: ProcessEngine, outputs: RowOutputs) -> None:
        self._task = task
        self._process = engine
        self._elements: dict[str, tuple[bytes, ...]] = {}
        self.outputs = outputs
        self.context = engine.context

    def begin(self) -> None:
        task, engine = self._task, self._process
        hand_out(engine.process, task.elements, self.context.subtask, whole=task.begins)
        engine.open()
        engine.restore()
        for name, rows in task.broadcast.items():
            engine.broadcast(name, rows)

    def end(self) -> Iterator[Any]:
        self._process.snapshot()
        yield from self.outputs.take(self._process, all_of_it=True)
        self._elements = gathered(self._task.spec.uid, self._process.process)

    def close(self) -> None:
        self._process.close()

    def figures(self) -> dict[str, Any]:
        return {"elements": self._elements}


class KeyedWork(RowWork):
    """User code gets the rows of one key after another."""

    def __init__(
        self, task: RowTask, subtask: int, shards: tuple[Shard, ...], batches: Iterator[Any]
    ) -> None:
        spec, outputs = task.spec, RowOutputs(task)
        self._engine = KeyedEngine(spec, task.moment, subtask, len(task.shards), outputs.writers)
        super().__init__(task, self._engine, outputs)
        shape = Shape(spec.uid, self._engine.codec, spec.key_columns, spec.rows, task.carry)
        self._sample = KeySample(shape.keys.indices)
        self.source = Blocks(
            self._sample.of(batches),
            shape,
            spec.dead_letter_limit if spec.on_error == DEAD_LETTER else 0,
            task.storage.folder,
        )
        self.pieces = self.source.chunks(self.context, [shard.first for shard in shards])

    @property
    def visits(self) -> bool:
        return bool(self._engine.visiting.asked)

    def attach(self, backend: Backend, shard: Shard, *, empty: bool) -> KeyedEngine:
        self._engine.attach(backend, shard.expiring)
        return self._engine

    def visit(self, groups: range) -> Iterator[Any]:
        for _ in self._engine.visit(groups):
            yield from self.outputs.take(self._engine)

    def take(self, piece: Chunk) -> Iterator[Any]:
        self._engine.run(piece)
        return self.outputs.take(self._engine)

    def fire(self, groups: range) -> Iterator[Any]:
        if self._engine.binding.timers:
            for _ in self._engine.fire(groups):
                yield from self.outputs.take(self._engine)

    def next_timers(self, groups: range) -> Timers:
        return self._engine.next_timers(groups)

    def serializer(self, state: str) -> Serializer:
        return vars(self._engine.process)[state].serializer  # type: ignore[no-any-return]

    def figures(self) -> dict[str, Any]:
        engine = self._engine
        return {
            **super().figures(),
            "keys": engine.keys,
            "dead_letters": engine.dead_letters,
            "timers": engine.timers_fired,
            "expired": engine.expiry.expired,
            **self._sample.figures(),
        }


class PartitionWork(RowWork):
    """User code gets all rows of the subtask at once."""

    def __init__(self, task: RowTask, subtask: int, batches: Iterator[Any]) -> None:
        outputs = RowOutputs(task)
        self._engine = PartitionEngine(task.spec, task.moment, subtask, len(task.shards), outputs.writers)
        super().__init__(task, self._engine, outputs)
        self.source = PulledRows(batches, self._engine)
        self.pieces = iter([(None, self.source)])

    def take(self, piece: PulledRows) -> Iterator[Any]:
        for _ in self._engine.run(piece):
            yield from self.outputs.take(self._engine)
        piece.drain()


class PulledRows:
    """The subtask's rows as user code pulls them; `ctx.late` is that of the row pulled last."""

    def __init__(self, batches: Iterator[Any], engine: PartitionEngine) -> None:
        (rows,) = engine.spec.rows
        self._reader = RowReader(rows, range(1, 1 + len(rows.fields)))
        self._batches = batches
        self._context = engine.context
        self._ahead: Iterator[tuple[bool, Any]] = iter(())
        self.rows_in = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            for late, row in self._ahead:
                self._context.late = late
                return row
            batch = self._pulled()
            try:
                self._ahead = zip(values_of(batch.column(0)), self._reader.read(batch), strict=True)
            except Exception as error:
                raise StreamError(error) from error
            self.rows_in += batch.num_rows

    def _pulled(self) -> Any:
        try:
            batch = next(self._batches, None)
        except Exception as error:
            # User code is pulling rows: it must not take what Spark raises for an error of its own.
            raise StreamError(error) from error
        if batch is None:
            raise StopIteration
        return batch

    def drain(self) -> None:
        """Takes the rows that user code left, so that all are counted."""
        for _ in self:
            pass

    def close(self) -> None:
        """Nothing of the rows lies on disk."""

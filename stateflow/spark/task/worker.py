"""The task of a keyed operator. It runs in a Python worker, between Spark's shuffle and the sink's writer."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from stateflow.errors import ERROR_MARK, CorruptError, StateflowError, user_frames
from stateflow.format.records import FileRef, Shard
from stateflow.operators.context import Moment
from stateflow.operators.elements import gathered, hand_out
from stateflow.operators.engine import ProcessEngine
from stateflow.operators.keyed import KeyedEngine, StreamError
from stateflow.operators.output import writers
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.spark.session.shipping import packed, unpacked
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.blocks import Blocks, Shape
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.widths import WIDEST, Widest
from stateflow.state.backends.base import Backend, OpenShard

OUTPUT_ROWS = 20_000
EXPIRY_TURNS = 8
"""A shard that gets no rows is opened with every eighth batch at most, to let expired entries go."""
_GC_THRESHOLD = (200_000, 20, 100)


@dataclass(frozen=True)
class KeyedTask:
    """What the subtasks of an operator need, with keys or without. One value serves all of them."""

    spec: OperatorSpec
    moment: Moment
    storage: TaskStorage
    shards: tuple[tuple[Shard, ...], ...]
    open_shard: Callable[[str], OpenShard]
    main: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    stage: Callable[[str, pa.Schema], Any] | None = None
    """Makes the writer of one output's staged file; None when the main output goes straight to its sink."""
    read_outputs: frozenset[str] = frozenset()
    """The outputs that have a reader. Only these are staged."""
    elements: Mapping[str, tuple[tuple[bytes, ...], ...]] = field(default_factory=dict)
    """Operator state of every subtask."""
    begins: bool = True
    """Whether this is the first batch of a run: then union state shows the elements of all subtasks."""
    broadcast: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    user_paths: tuple[str, ...] = ()
    carry: Carried | None = None
    """Which columns the exchange sends; None: all."""


def keyed_worker(task: KeyedTask, acks: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`."""
    code, user_paths = packed(task), task.user_paths

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from _Subtask(unpacked(code, user_paths)).run(batches, acks)
        except StreamError as error:
            raise for_driver(error.cause) from error.cause
        except StateflowError as error:
            raise marked(error) from error

    return run


def for_driver(cause: Exception) -> Exception:
    """Why the rows could not be read, as the driver finds it."""
    return marked(cause) if isinstance(cause, StateflowError) else cause


def marked(error: StateflowError) -> RuntimeError:
    """Carries a user-facing error through Spark, which keeps only the text of a worker's exception."""
    body = {"type": type(error).__name__, "message": str(error), "frames": user_frames(error)}
    return RuntimeError(f"{ERROR_MARK}{json.dumps(body)}")


def spare_the_collector() -> None:
    """Makes Python's garbage collector run less often.

    By default it looks for cycles after every 700 new objects. With a million rows alive, that takes as long as the
    rest of the task.
    """
    if gc.get_threshold() != _GC_THRESHOLD:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)


class Outputs:
    """Turns the engine's rows into Arrow batches, for the sink or for staged files."""

    def __init__(self, task: KeyedTask) -> None:
        schemas = {MAIN: task.main, **task.sides}
        self._staging = task.stage is not None
        self.writers = writers(task.spec, schemas)
        self._files: dict[str, Any] = {}
        if task.stage is not None:
            self._files = {name: task.stage(name, schemas[name]) for name in sorted(task.read_outputs)}
        self.rows = 0

    def take(self, engine: ProcessEngine, *, all_of_it: bool = False) -> Iterator[Any]:
        """Takes the rows that the engine has gathered, once they are enough for a batch."""
        out = engine.out
        if len(out) >= OUTPUT_ROWS or (all_of_it and out):
            self.rows += len(out)
            if not self._staging:
                for begin in range(0, len(out), OUTPUT_ROWS):
                    yield self.writers[MAIN].write(out[begin : begin + OUTPUT_ROWS])
            elif MAIN in self._files:
                self._files[MAIN].write(self.writers[MAIN].write(out))
            out.clear()
        for name, rows in engine.context.sides.items():
            if rows and (all_of_it or len(rows) >= OUTPUT_ROWS):
                if name in self._files:
                    self._files[name].write(self.writers[name].write(rows))
                rows.clear()

    def close(self) -> dict[str, FileRef | None]:
        return {name: writer.close() for name, writer in self._files.items()}


def begin_task(engine: ProcessEngine, task: KeyedTask, subtask: int) -> None:
    """The work before a subtask's rows: its operator state, the hooks of the process, and broadcast rows."""
    hand_out(engine.process, task.elements, subtask, whole=task.begins)
    engine.open()
    engine.restore()
    for name, rows in task.broadcast.items():
        engine.broadcast(name, rows)


class _Subtask:
    def __init__(self, task: KeyedTask) -> None:
        spare_the_collector()
        context = TaskContext.get()
        self.task = task
        self.index = context.partitionId() if context is not None else 0
        self.attempt = context.taskAttemptId() if context is not None else 0
        self.shards = TaskShards(
            task.shards[self.index], task.storage, task.open_shard, task.storage.join_limit
        )
        self.inputs = self.shards.inputs

    def run(self, batches: Iterator[Any], acks: Any) -> Iterator[Any]:
        task = self.task
        outputs, widest = Outputs(task), Widest()
        engine = KeyedEngine(task.spec, task.moment, self.index, len(task.shards), outputs.writers)
        blocks = Blocks(
            widest.of(batches),
            Shape(task.spec.uid, engine.codec, task.spec.key_columns, task.spec.rows, task.carry),
            task.spec.dead_letter_limit if task.spec.on_error == "dead_letter" else 0,
            task.storage.folder,
        )
        try:
            begin_task(engine, task, self.index)
            yield from widest.of(self._shards(engine, blocks, outputs))
            engine.snapshot()
            yield from widest.of(outputs.take(engine, all_of_it=True))
            elements = gathered(task.spec.uid, engine.process)
            staged = outputs.close()
            handles = self.shards.handles()
        except BaseException as error:
            if isinstance(error, CorruptError):
                self.shards.distrust()
            # The user must see the first failure, not a later one from `close`.
            with suppress(Exception):
                engine.close()
            raise
        else:
            engine.close()
        finally:
            blocks.close()
            self.shards.close()
        ack = Ack(
            operator=task.spec.uid,
            subtask=self.index,
            attempt=self.attempt,
            shards=handles,
            staged=staged,
            elements=elements,
            rows_in=blocks.rows_in,
            rows_out=outputs.rows,
            keys=engine.keys,
            dead_letters=engine.dead_letters,
            timers=engine.timers_fired,
            expired=engine.expiry.expired,
            counters={name: c.value for name, c in engine.context.metrics.counters.items()},
            metrics={**self.shards.figures(), WIDEST: widest.bytes},
            host=socket.gethostname(),
        )
        acks.add([msgspec.msgpack.encode(ack)])

    def _shards(self, engine: KeyedEngine, blocks: Blocks, outputs: Outputs) -> Iterator[Any]:
        """Runs the rows shard by shard, then the shards without rows whose timers are due."""
        cuts = [shard.first for shard in self.inputs] or [0]
        current: tuple[int, Backend] | None = None
        with_rows: set[int] = set()
        for index, chunk in blocks.chunks(engine.context, cuts):
            if current is None or current[0] != index:
                if current is not None:
                    yield from self._finish(engine, *current, outputs)
                current = (index, self.shards.open(index))
                with_rows.add(index)
                yield from self._attach(engine, *current, outputs)
            engine.run(chunk)
            yield from outputs.take(engine)
        if current is not None:
            yield from self._finish(engine, *current, outputs)
        for index, shard in enumerate(self.inputs):
            if index not in with_rows and (
                self._due(shard) or expires_now(shard, self.task.moment) or self._visited(engine, index)
            ):
                backend = self.shards.open(index)
                yield from self._attach(engine, index, backend, outputs, without_rows=True)
                yield from self._finish(engine, index, backend, outputs)

    def _due(self, shard: Shard) -> bool:
        moment = self.task.moment
        return is_due((shard.next_event_timer, shard.next_processing_timer), moment.watermark, moment.now)

    def _visited(self, engine: KeyedEngine, index: int) -> bool:
        """True if broadcast code visits the keys of a shard; the shard must have some."""
        return bool(engine.visiting.asked) and (bool(self.inputs[index].files) or self.shards.changes(index))

    def _attach(
        self,
        engine: KeyedEngine,
        index: int,
        backend: Backend,
        outputs: Outputs,
        *,
        without_rows: bool = False,
    ) -> Iterator[Any]:
        """The work before a shard's rows: expired entries go, and broadcast code visits keys."""
        shard = self.inputs[index]
        groups = range(shard.first, shard.last + 1)
        engine.attach(backend, shard.expiring)
        if engine.binding.expiring:
            due = shard.next_event_expiry, shard.next_processing_expiry
            engine.expire(groups, due, shard.entries, without_rows=without_rows)
        for _ in engine.visit(groups):
            yield from outputs.take(engine)

    def _finish(self, engine: KeyedEngine, index: int, backend: Backend, outputs: Outputs) -> Iterator[Any]:
        shard = self.inputs[index]
        groups = range(shard.first, shard.last + 1)
        if engine.binding.timers:
            for _ in engine.fire(groups):
                yield from outputs.take(engine)
        expiries = engine.next_expiries()
        # Where nothing came of a timer that was due, the record says too early when the next one is.
        if engine.changed or self.shards.changes(index) or self._due(shard):
            self.shards.finish(index, backend, engine.next_timers(groups), expiries, engine.expiry.shares)
        else:
            self.shards.keep(index, backend)


def expires_now(shard: Shard, moment: Moment) -> bool:
    """Whether a shard without rows is opened to let expired entries go: with some batches, as it is written anew then."""
    return (moment.slot + shard.first) % EXPIRY_TURNS == 0 and is_due(
        (shard.next_event_expiry, shard.next_processing_expiry), moment.watermark, moment.now
    )


def is_due(first: tuple[int | None, int | None], watermark: int | None, now: int) -> bool:
    """Whether the first in event time or the first in processing time is due."""
    event, processing = first
    return (event is not None and watermark is not None and event <= watermark) or (
        processing is not None and processing <= now
    )

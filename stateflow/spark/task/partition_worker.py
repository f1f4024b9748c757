"""The task of an operator without keys. It runs in a Python worker, between Spark's shuffle and the sink's writer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from pyspark import TaskContext

from stateflow.errors import StateflowError
from stateflow.operators.elements import gathered
from stateflow.operators.keyed import StreamError
from stateflow.operators.partition import PartitionEngine
from stateflow.operators.python_values import values_of
from stateflow.spark.session.shipping import packed, unpacked
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.columns import RowReader
from stateflow.spark.task.worker import (
    KeyedTask,
    Outputs,
    begin_task,
    for_driver,
    marked,
    spare_the_collector,
)


def partition_worker(task: KeyedTask, acks: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`."""
    code, user_paths = packed(task), task.user_paths

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from _subtask(unpacked(code, user_paths), batches, acks)
        except StreamError as error:
            raise for_driver(error.cause) from error.cause
        except StateflowError as error:
            raise marked(error) from error

    return run


def _subtask(task: KeyedTask, batches: Iterator[Any], acks: Any) -> Iterator[Any]:
    spare_the_collector()
    context = TaskContext.get()
    assert context is not None
    subtask = context.partitionId()
    outputs = Outputs(task)
    engine = PartitionEngine(task.spec, task.moment, subtask, len(task.shards), outputs.writers)
    rows = _Rows(batches, engine)
    try:
        begin_task(engine, task, subtask)
        for _ in engine.run(rows):
            yield from outputs.take(engine)
        rows.drain()
        engine.snapshot()
        yield from outputs.take(engine, all_of_it=True)
        elements = gathered(task.spec.uid, engine.process)
        staged = outputs.close()
    except BaseException:
        # The user must see the first failure, not a later one from `close`.
        with suppress(Exception):
            engine.close()
        raise
    else:
        engine.close()
    ack = Ack(
        operator=task.spec.uid,
        subtask=subtask,
        attempt=context.taskAttemptId(),
        shards=(),
        staged=staged,
        elements=elements,
        rows_in=rows.count,
        rows_out=outputs.rows,
        counters={name: c.value for name, c in engine.context.metrics.counters.items()},
        host=socket.gethostname(),
    )
    acks.add([msgspec.msgpack.encode(ack)])


class _Rows:
    """The subtask's rows as user code pulls them; `ctx.late` is that of the row pulled last."""

    def __init__(self, batches: Iterator[Any], engine: PartitionEngine) -> None:
        (rows,) = engine.spec.rows
        self._reader = RowReader(rows, range(1, 1 + len(rows.fields)))
        self._batches = batches
        self._context = engine.context
        self._ahead: Iterator[tuple[bool, Any]] = iter(())
        self.count = 0

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
            self.count += batch.num_rows

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

"""One attempt at a subtask of an operator. It runs in a Python worker, between Spark's shuffle and the sink's writer.

`Subtask.run` has the steps. What a step is for one kind of operator, its `Work` says: user code gets rows (`row_work.py`) or
tables (`table_work.py`).
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from stateflow.errors import CorruptError, StateflowError
from stateflow.format.records import FileRef, Shard
from stateflow.operators.columnar import ColumnarSpec
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.expiry import OperatorExpiry
from stateflow.operators.keyed import StreamError
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.spark.session.sent_modules import NO_MODULES, SentModules
from stateflow.spark.session.shipping import parcel
from stateflow.spark.task.acks import WIDEST, Ack
from stateflow.spark.task.failures import task_error
from stateflow.spark.task.shards import TaskShards, Timers
from stateflow.spark.task.state_feeds import StateFeeds, TaskFeed
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.values.serializers import Serializer

EXPIRY_TURNS = 8
"""A shard that gets no rows is opened with every eighth batch at most, to let expired entries go."""
_GC_THRESHOLD = (200_000, 20, 100)
_TASKS = count()
_TASKS_THAT_IMPORT = 2


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What every subtask of an operator gets. One value serves all of them."""

    spec: OperatorSpec | ColumnarSpec
    moment: Moment
    storage: TaskStorage
    shards: tuple[tuple[Shard, ...], ...]
    """The shards of each subtask; an operator without keys has none."""
    open_shard: Callable[[str], OpenShard]
    stage: Callable[[str, pa.Schema], Any] | None = None
    """Makes the writer of one output's staged file."""
    staged: frozenset[str] = frozenset()
    """The outputs that go to staged files: those that have a reader."""
    direct: bool = True
    """Whether the main output goes straight to its sink."""
    feeds: tuple[TaskFeed, ...] = ()
    """The states whose changes are put out."""
    sent_modules: SentModules = NO_MODULES

    @abstractmethod
    def work(self, subtask: int, shards: tuple[Shard, ...], batches: Iterator[Any]) -> Work:
        """What a subtask does with its rows."""


class ShardEngine(Protocol):
    """What `Subtask` uses of an engine that is attached to a shard."""

    expiry: OperatorExpiry

    @property
    def changed(self) -> bool: ...


class RowSource(Protocol):
    """Where an operator's rows come from."""

    @property
    def rows_in(self) -> int: ...

    def close(self) -> None:
        """Removes what lies on disk, also after an error."""


class Work:
    """What the steps of a subtask are for one kind of operator. A kind that has no such step leaves the method out."""

    source: RowSource
    outputs: Outputs
    context: OperatorContext
    pieces: Iterator[tuple[int | None, Any]]
    """The rows in pieces, each of one shard, with its index; None if the operator has no shards."""

    @property
    def visits(self) -> bool:
        """True if broadcast code visits the keys of all shards."""
        return False

    def begin(self) -> None:
        """The work before the first row."""

    def attach(self, backend: Backend, shard: Shard, *, empty: bool) -> ShardEngine:
        """Turns to a shard, which has no entries if it is `empty`."""
        raise NotImplementedError

    def visit(self, groups: range) -> Iterator[Any]:
        """Broadcast code visits the keys of the shard. Gives the Arrow batches to put out, as the next four methods do."""
        yield from ()

    def take(self, piece: Any) -> Iterator[Any]:
        """The operator takes a piece of the rows."""
        raise NotImplementedError

    def fire(self, groups: range) -> Iterator[Any]:
        """Timers of the shard fire if they are due."""
        yield from ()

    def next_timers(self, groups: range) -> Timers:
        """When the shard's first timers are due, after `fire`."""
        raise NotImplementedError

    def end(self) -> Iterator[Any]:
        """The work behind the last row."""
        yield from ()

    def close(self) -> None:
        """User code frees what it has opened."""

    def serializer(self, state: str) -> Serializer | None:
        """How user code reads and writes a state's values; None where they are columns."""
        return None

    def figures(self) -> dict[str, Any]:
        """What only this kind of operator puts into its ack."""
        raise NotImplementedError


class Outputs:
    """Where an operator's rows go: the main output to its sink or a staged file, any other output that has a reader to a staged file."""

    def __init__(self, task: Task, schemas: Mapping[str, pa.Schema]) -> None:
        stage, self.direct = task.stage, task.direct
        self.files: dict[str, Any] = {}
        if stage is not None:
            every = {**schemas, **{feed.output: feed.columns for feed in task.feeds}}
            self.files = {name: stage(name, every[name]) for name in sorted(task.staged)}
        self.rows = 0
        """Rows of the main output."""

    def close(self) -> dict[str, FileRef | None]:
        return {name: writer.close() for name, writer in self.files.items()}


@dataclass
class Widest:
    """Measures how wide rows are, as they pass. The next batch's Arrow batches are made accordingly."""

    bytes: float = 0.0
    """Bytes of a row, on average over a batch; the highest average of all batches."""

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                self.bytes = max(self.bytes, batch.nbytes / batch.num_rows)
            yield batch


def worker(task: Task, acks: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`."""
    open_parcel = parcel(task)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from Subtask(open_parcel(), batches).run(acks)
        except StreamError as error:
            cause = error.cause
            raise (task_error(cause) if isinstance(cause, StateflowError) else cause) from cause
        except StateflowError as error:
            raise task_error(error) from error

    return run


class Subtask:
    """One attempt at it."""

    def __init__(self, task: Task, batches: Iterator[Any]) -> None:
        spare_the_collector()
        context = TaskContext.get()
        self._task = task
        # Without Spark there is one subtask.
        self._index = context.partitionId() if context is not None else 0
        self._attempt = context.taskAttemptId() if context is not None else 0
        self._shards = TaskShards(
            task.shards[self._index],
            task.storage,
            task.open_shard,
            task.storage.join_limit,
            # Whatever has failed the first attempt, the next one checks whole files.
            in_parts=context is None or context.attemptNumber() == 0,
        )
        self._widest = Widest()
        self._work = task.work(self._index, self._shards.inputs, self._widest.of(batches))
        self._feeds = StateFeeds(task.feeds, task.moment, self._work.serializer) if task.feeds else None

    def run(self, acks: Any) -> Iterator[Any]:
        """Gives the Arrow batches that the operator puts out.

        1. The operator begins: user code opens, and gets its operator state and broadcast rows.
        2. It takes the rows, shard by shard. Shards without rows follow if something in them is due.
        3. It ends: user code hands over its operator state, and the last rows are put out.
        4. Files of outputs and of shards are complete.
        5. User code closes. Whether or not the attempt has failed, what it has opened is freed.
        6. The ack tells the driver what came of the attempt.
        """
        work, shards, widest = self._work, self._shards, self._widest
        try:
            # 1. The operator begins.
            work.begin()
            # 2. It takes the rows, shard by shard.
            yield from widest.of(self._rows())
            # 3. It ends.
            yield from widest.of(work.end())
            # 4. Files are complete.
            staged = work.outputs.close()
            handles = shards.handles()
        except BaseException as error:
            if isinstance(error, CorruptError):
                shards.distrust()
            # The user must see the first failure, not a later one from `close`.
            with suppress(Exception):
                work.close()
            raise
        else:
            # 5. User code closes.
            work.close()
        finally:
            work.source.close()
            shards.close()
        # 6. The driver hears of it.
        ack = Ack(
            subtask=self._index,
            attempt=self._attempt,
            shards=handles,
            staged=staged,
            rows_in=work.source.rows_in,
            rows_out=work.outputs.rows,
            counters={name: counter.value for name, counter in work.context.metrics.counters.items()},
            metrics={**shards.figures(), WIDEST: widest.bytes} if shards.inputs else {},
            **work.figures(),
        )
        acks.add([msgspec.msgpack.encode(ack)])

    def _rows(self) -> Iterator[Any]:
        """Runs the shards that have rows, then those without rows in which something is due."""
        work, shards, moment = self._work, self._shards, self._task.moment
        with_rows = set()
        for index, pieces in groupby(work.pieces, itemgetter(0)):
            with_rows.add(index)
            if index is not None:
                yield from self._shard(index, pieces)
                continue
            for _, piece in pieces:
                yield from work.take(piece)
        for index, shard in enumerate(shards.inputs):
            if index not in with_rows and (
                fires_now(shard, moment)
                or expires_now(shard, moment)
                or (work.visits and not shards.is_empty(index))
            ):
                yield from self._shard(index)

    def _shard(self, index: int, pieces: Iterable[tuple[int | None, Any]] | None = None) -> Iterator[Any]:
        """Runs one shard.

        1. Its files are opened.
        2. Expired entries go, and broadcast code visits keys.
        3. The operator takes the rows; None: there are none.
        4. Timers fire.
        5. Feeds of its states are put out.
        6. If the shard has changed, its new files are uploaded while the next shard runs.
        """
        work, shards, shard = self._work, self._shards, self._shards.inputs[index]
        groups = range(shard.first, shard.last + 1)
        # 1. Its files are opened.
        backend = shards.open(index)
        watched = self._feeds.watch(backend) if self._feeds is not None else None
        engine = work.attach(watched or backend, shard, empty=shards.is_empty(index))
        # 2. Expired entries go, and broadcast code visits keys.
        if engine.expiry.states:
            due = shard.next_event_expiry, shard.next_processing_expiry
            with watched.expiry() if watched is not None else nullcontext():
                engine.expiry.expire(groups, due, shard.entries, without_rows=pieces is None)
        yield from work.visit(groups)
        # 3. The operator takes the rows.
        for _, piece in pieces or ():
            yield from work.take(piece)
        # 4. Timers fire.
        yield from work.fire(groups)
        expiries = engine.expiry.finish()
        # 5. Feeds are put out.
        if self._feeds is not None and watched is not None:
            self._feeds.put_out(watched, work.outputs.files)
        # 6. What has changed is uploaded.
        # Where nothing came of a timer that was due, the record says too early when the next one is.
        if engine.changed or shards.changes(index) or fires_now(shard, self._task.moment):
            shards.finish(index, backend, work.next_timers(groups), expiries, engine.expiry.shares)
        else:
            shards.keep(index, backend)


def fires_now(shard: Shard, moment: Moment) -> bool:
    """True if a timer of the shard is due, as far as its record knows."""
    return _is_due((shard.next_event_timer, shard.next_processing_timer), moment)


def expires_now(shard: Shard, moment: Moment) -> bool:
    """True if a shard without rows is opened to let expired entries go: with some batches, as it is written anew then."""
    return (moment.slot + shard.first) % EXPIRY_TURNS == 0 and _is_due(
        (shard.next_event_expiry, shard.next_processing_expiry), moment
    )


def _is_due(first: Timers, moment: Moment) -> bool:
    """True if the first in event time or the first in processing time is due."""
    event, processing = first
    return (event is not None and moment.watermark is not None and event <= moment.watermark) or (
        processing is not None and processing <= moment.now
    )


def spare_the_collector() -> None:
    """Makes Python's garbage collector run less often, and look at less.

    By default it looks for cycles after every 700 new objects. With a million rows alive, that takes as long as the
    rest of the task. Behind each task Spark's worker looks at everything once more: what a worker has from its start, and the
    modules that its first task imported, are left out.
    """
    if next(_TASKS) < _TASKS_THAT_IMPORT:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)

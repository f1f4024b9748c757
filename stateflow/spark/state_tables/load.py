"""Loads tables back into state: tasks encode the rows, bring them together by key group, and write fresh shards.

It restores canonical savepoints, also with another backend, parallelism or max parallelism, and makes state from any
DataFrame. It decides no record: if no record names the shards later, the collector deletes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from operator import eq

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.rescale import redistributed
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.errors import StateflowError, UsageError
from stateflow.format.encoding import list_position, split, split_timer, state_range
from stateflow.format.keygroups import checked_max_parallelism, default_assignment
from stateflow.format.records import OperatorState, Savepoint, Shard, StateSchema
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.shuffle.exchange import GROUP, subtask_of
from stateflow.spark.shuffle.numbered_tasks import to_tasks
from stateflow.spark.state_tables.failures import failed
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.snapshots import savepoint_snapshot
from stateflow.spark.task.failures import task_error, through_spark
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.spark.task.subtask import spare_the_collector
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.choice import open_backend
from stateflow.state.expiry.index import Expiry, next_due
from stateflow.state.keys.arrow_bytes import taken_apart
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import TIMERS, StateTable, TimerTable, tables_of

_POSITION_WIDTH = 12


def load_state(
    frames: Mapping[str, DataFrame],
    operator: OperatorState,
    *,
    storage: TaskStorage,
    backend: str,
    parallelism: int,
    max_parallelism: int,
    open_shard: Callable[[str], OpenShard],
    uid: str = "",
) -> OperatorState:
    """The operator with the state of `frames`, by state name (timers: `_timers`); states without a frame are empty.

    A frame has the columns of the state's table. It may lack `stored`, `expires_at` (then nothing expires), a list's
    `slot`, and `key_group`, which is computed again in any case. A list keeps its order. Its positions are renumbered, so
    that what the job appends later comes after them, whatever slot it has. Files go under the epoch and slot of
    `storage`: the process that claimed that epoch must name them in a record.
    """
    checked_max_parallelism(max_parallelism)
    target = msgspec.structs.replace(
        operator,
        max_parallelism=max_parallelism,
        assignment=default_assignment(parallelism, max_parallelism),
        shards=(),
        operator_states={},
        hosts=(),
    )
    tables = tables_of(target)
    unknown = sorted(set(frames) - set(tables))
    if unknown:
        names = ", ".join(sorted(tables)) or "none"
        raise UsageError(f"operator {uid!r} has no state {unknown[0]!r} to load: its states are {names}")
    task = _LoadTask(uid, target, backend, storage, open_shard)
    encoded = [
        fitting(frame, tables[name], uid).mapInArrow(
            _EncodeTask(uid, name, target), f"{GROUP} int, key binary, value binary"
        )
        for name, frame in frames.items()
    ]
    shards = _load_shards(encoded, task) if encoded else ()
    by_subtask = dict(shards)
    return msgspec.structs.replace(
        target,
        # Without rows Spark may skip the tasks.
        shards=tuple(
            by_subtask.get(subtask)
            or ((Shard(first=first, last=last, backend=backend),) if operator.key else ())
            for subtask, (first, last) in enumerate(target.assignment)
        ),
        operator_states={
            name: redistributed(state, parallelism) for name, state in operator.operator_states.items()
        },
    )


def load_canonical(
    spark: SparkSession,
    savepoint: Savepoint,
    url: str,
    operators: Mapping[str, OperatorState],
    *,
    job: JobHandle,
    writer: Writer,
    options: Options,
    parallelism: int,
    max_parallelism: int,
) -> dict[str, OperatorState]:
    """The operators of a canonical savepoint with fresh shards. 0 leaves parallelism or max parallelism as it was."""
    frames = canonical_frames(spark, savepoint, url, options)
    storage = task_storage(options, job.root, job.name, writer.epoch, writer.next_slot)
    return {
        uid: load_state(
            frames.get(uid, {}),
            operator,
            storage=storage,
            backend=options.backend,
            parallelism=operator.parallelism
            or parallelism
            or min(len(operator.assignment), max_parallelism or operator.max_parallelism),
            max_parallelism=max_parallelism or operator.max_parallelism,
            open_shard=open_backend(options),
            uid=uid,
        )
        for uid, operator in operators.items()
    }


def canonical_frames(
    spark: SparkSession, savepoint: Savepoint, url: str, options: Options
) -> dict[str, dict[str, DataFrame]]:
    """The tables of a canonical savepoint, by operator uid and state name. Operator state stays in its record."""
    snapshot = savepoint_snapshot(savepoint, url, options)
    return {
        uid: {state: table_frame(spark, snapshot, uid, state) for state in states}
        for uid, states in savepoint.tables.items()
    }


def fitting(frame: DataFrame, table: StateTable | TimerTable, uid: str) -> DataFrame:
    """`frame`, if its columns fit the table. A list without slots is ordered by position alone."""
    slot = table.names.get("slot")
    if slot is not None and slot not in frame.columns:
        frame = frame.withColumn(slot, F.lit(0).cast("long"))
    try:
        table.check(arrow_schema(frame.schema))
    except StateflowError as error:
        raise type(error)(f"operator {uid!r}, {error}") from None
    except (ValueError, PySparkTypeError) as error:
        raise UsageError(f"operator {uid!r}, {table.where}: the frame cannot be read: {error}") from None
    return frame


def _load_shards(encoded: list[DataFrame], task: _LoadTask) -> Iterator[tuple[int, tuple[Shard, ...]]]:
    operator = task.operator
    frame = reduce(DataFrame.unionAll, encoded)
    subtask = subtask_of(operator.assignment, operator.max_parallelism)
    frame = to_tasks(frame, len(operator.assignment), subtask).drop(GROUP)
    try:
        # Collected rows come from exactly one attempt of each partition.
        rows = frame.sortWithinPartitions("key").mapInArrow(task, "loaded binary").collect()
    except Exception as error:
        raise failed(f"the tables of operator {task.uid!r} could not be loaded", error) from error
    for row in rows:
        loaded = msgspec.msgpack.decode(row["loaded"], type=_LoadedShards)
        yield loaded.subtask, loaded.shards


@dataclass(frozen=True)
class _EncodeTask:
    """The task that turns the rows of one state into entries."""

    uid: str
    state: str
    operator: OperatorState

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        table = tables_of(self.operator)[self.state]
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                keys, values = table.encode(batch)
            except StateflowError as error:
                raise task_error(type(error)(f"operator {self.uid!r}, {error}")) from error
            column = pa.array(keys, pa.binary())
            yield pa.record_batch(
                [groups_of(column), column, pa.array(values, pa.binary())], names=[GROUP, "key", "value"]
            )


def groups_of(keys: pa.Array) -> pa.Array:
    """The key group of every full key: its first two bytes."""
    bounds, raw = taken_apart(keys.cast(pa.large_binary()))
    starts = bounds[:-1]
    return pa.array(raw[starts].astype("i4") << 8 | raw[starts + 1], pa.int32())


class _LoadedShards(msgspec.Struct, frozen=True):
    """A task's result."""

    subtask: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class _LoadTask:
    """The task that writes a subtask's shard. The entries come in order."""

    uid: str
    operator: OperatorState
    backend: str
    storage: TaskStorage
    open_shard: Callable[[str], OpenShard]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        task = TaskContext.get()
        assert task is not None
        subtask = task.partitionId()
        first, last = self.operator.assignment[subtask]
        shards = TaskShards(
            (Shard(first=first, last=last, backend=self.backend),), self.storage, self.open_shard
        )
        entries = SortedEntries(self.uid, self.operator)
        expiries = [loaded_index(s) for s in self.operator.states.values() if s.expiry_index]
        with closing(shards), through_spark():
            backend = shards.open(0)
            for batch in batches:
                keys, values = entries.checked(batch.column(0).to_pylist()), batch.column(1).to_pylist()
                backend.write(zip(keys, values, strict=True))
                for state_id, expiry in expiries:
                    own = [at for at, key in enumerate(keys) if key[2:4] == state_id]
                    expiry.index([keys[at] for at in own], [values[at] for at in own])
                    backend.write(expiry.blocks())
                    expiry.measure(backend)
            indexed = [expiry for _, expiry in expiries]
            expiring = tuple(share for expiry in indexed for share in expiry.shares)
            shards.finish(0, backend, entries.next_timers, next_due(indexed), expiring)
            handles = shards.handles()
        body = msgspec.msgpack.encode(_LoadedShards(subtask, handles))
        yield pa.record_batch([pa.array([body], pa.binary())], names=["loaded"])


def loaded_index(schema: StateSchema) -> tuple[bytes, Expiry]:
    """The id of a state in keys, and the index for the expiries of its loaded entries."""
    event_time = schema.ttl_time == "event"
    expiry = Expiry(
        None, schema.id, now=0, watermark=None, slot=0, index_id=schema.expiry_index, event_time=event_time
    )
    return schema.id.to_bytes(2, "big"), expiry


class SortedEntries:
    """Checks the full keys of one shard, which come in order: none may come twice. Notes the earliest timers."""

    def __init__(self, uid: str, operator: OperatorState) -> None:
        self._uid = uid
        self._operator = operator
        self._lists = {s.id.to_bytes(2, "big") for s in operator.states.values() if s.kind == "list"}
        self._timers = [s for s in operator.states.values() if s.kind == "timer" or s.timed]
        self._last = b""
        self._list = b""
        self._position = 0
        self._earliest: dict[str, int] = {}

    @property
    def next_timers(self) -> tuple[int | None, int | None]:
        """For event time and for processing time."""
        return self._earliest.get("event"), self._earliest.get("processing")

    def checked(self, keys: list[bytes]) -> list[bytes]:
        """The keys to write."""
        if not keys:
            return keys
        if keys[0] == self._last or any(map(eq, keys, keys[1:])):
            duplicate = next(b for a, b in zip([self._last, *keys], keys, strict=False) if a == b)
            raise self._duplicate(duplicate)
        self._last = keys[-1]
        for timer in self._timers:
            self._note(timer, "event" if timer.timed else timer.value, keys)
        return self._renumbered(keys) if self._lists else keys

    def _note(self, timer: StateSchema, time: str, keys: list[bytes]) -> None:
        for group in range(split(keys[0]).group, split(keys[-1]).group + 1):
            begin, end = state_range(group, timer.id)
            at = bisect_left(keys, begin)
            if at < len(keys) and keys[at] < end:
                due = split_timer(split(keys[at]).body)[0]
                self._earliest[time] = min(due, self._earliest.get(time, due))

    def _renumbered(self, keys: list[bytes]) -> list[bytes]:
        """Gives elements of lists slot 0 and their index in the list."""
        lists, keys_out = self._lists, []
        for key in keys:
            if key[2:4] in lists:
                list_prefix = key[:-_POSITION_WIDTH]
                self._position = self._position + 1 if list_prefix == self._list else 0
                self._list = list_prefix
                key = list_prefix + list_position(0, self._position)
            keys_out.append(key)
        return keys_out

    def _duplicate(self, full_key: bytes) -> UsageError:
        operator = self._operator
        _, state_id, body = split(full_key)
        name, timer = next(
            (
                (name, schema.kind == "timer")
                for name, schema in operator.states.items()
                if state_id in (schema.id, schema.id + (schema.kind == "timer"))
            ),
            ("?", False),
        )
        schema = operator.states.get(name)
        if schema is not None and (schema.timed or (timer and state_id == schema.id)):
            body = split_timer(body)[1]
        key = KeyCodec([kind for _, kind in operator.key]).decode(body, 0)[0]
        table = f"{TIMERS!r} (timer {name!r})" if timer else repr(name)
        return UsageError(
            f"operator {self._uid!r}, state {table}: key {key!r} has two rows that would be one entry: leave one of them out"
        )

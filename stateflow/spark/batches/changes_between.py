"""Rows of a feed for what changed between two batches: a restore has put another state in place, or the state has another type.

The first batch behind it writes them, beside its own rows. So the rows up to a slot are the state at that slot, also then.

    restore   in the slot of the restore: the entries that the state of the last rows and the restored one differ in; `delete` if the
              restored one lacks them. Of the files only those are read that the two do not share
    evolve    in the slot of the batch: the entries whose value, as the columns of today show it, is another as today's type. All
              entries are read for it, once. Those that the batch writes have rows already
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.feeds import behind, told_until
from stateflow.errors import IncompatibleError
from stateflow.format.encoding import GROUP_WIDTH, PREFIX_WIDTH, state_range
from stateflow.format.records import OperatorState, Record, StateSchema
from stateflow.operators.binding import type_of
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode
from stateflow.pipelines.processes.process import Process
from stateflow.reading.diff import ComparedSnapshot, Differences
from stateflow.reading.opened_shard import opened_shard
from stateflow.reading.snapshots import ReaderContext
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.session.shipping import packed, unpacked
from stateflow.spark.task.state_feeds import ROWS, TaskFeed, todays_values
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import OpenShard
from stateflow.state.change_rows import ChangedEntries, ChangeRows, Kind
from stateflow.state.values.evolution.declared_types import evolved_serializer
from stateflow.state.values.evolution.versions import todays_form
from stateflow.state.values.expiries import plain
from stateflow.state.values.serializers import Serializer

Raws = Sequence[bytes | None]
Change = tuple[bytes, Any, Any]
"""Key, bytes before, bytes after."""
_BEFORE, _AFTER = -4, -3
"""The columns among those of a feed."""


@dataclass(frozen=True)
class ChangesBetween:
    """What a task needs in order to make the rows."""

    feed: TaskFeed
    uid: str
    told: Record
    """What the feed's rows show."""
    parent: Record
    """What the batch continues."""
    restored: bool
    """Whether a restore or a rescale stands between the two."""
    slot: int
    now: int
    storage: TaskStorage
    open_shard: Callable[[str], OpenShard]
    process: type[Process[Any]] | None
    """Whose declaration reads stored values as those of today's type; None where they are columns."""
    user_paths: Sequence[str]

    @property
    def evolved(self) -> bool:
        return self._holds_state and self._then.value != self.feed.schema.value

    @property
    def _holds_state(self) -> bool:
        """False if the restored state is from before this one was declared, or before the operator's first batch."""
        operator = self.parent.operators.get(self.uid)
        return operator is not None and self.feed.state in operator.states

    @property
    def _then(self) -> StateSchema:
        return self.told.operators[self.uid].states[self.feed.state]

    def rows(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The feed's rows of the batch, `frame`, and those of what was between."""
        if self.restored:
            frame = frame.unionByName(self._frame(spark, frame, "restore"))
        if self.evolved:
            # One row per entry and slot: the batch's own says the value as today's type, and so does that of a restore.
            entry = self._now_rows.entry_columns
            told = frame.select(*(frame[name].alias(f"_told_{name}") for name in entry))
            more = self._frame(spark, frame, "evolve")
            same = (more[name].eqNullSafe(told[f"_told_{name}"]) for name in entry)
            more = more.join(told, reduce(lambda one, other: one & other, same), "left_anti")
            frame = frame.unionByName(more)
        return frame

    def _frame(self, spark: SparkSession, like: DataFrame, kind: Kind) -> DataFrame:
        operator = self.parent.operators.get(self.uid) or self.told.operators[self.uid]
        shares = sum(map(len, operator.shards))
        code, paths = packed(self), self.user_paths

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            task: ChangesBetween = unpacked(code, paths)
            make = task.restored_rows if kind == "restore" else task.evolved_rows
            for batch in batches:
                for share in batch.column(0).to_pylist():
                    yield from make(share, shares)

        return spark.range(0, shares, 1, shares).mapInArrow(run, like.schema)

    def restored_rows(self, share: int, shares: int) -> Iterator[pa.RecordBatch]:
        """Of every so many-th pair of shards."""
        context, state = self._context(), self.feed.state
        if self._holds_state:
            asked = Differences(
                ComparedSnapshot("", self.told, context),
                ComparedSnapshot("", self.parent, context),
                look_up=True,
                share=(share, shares),
            )
            found = ((each.key, each.before, each.after) for each in asked.stored(self.uid, state))
        else:
            entries = _stored_entries(context, self.told.operators[self.uid], self._then.id, (share, shares))
            found = ((key, raw, None) for key, raw in entries)
        yield from self._made("restore", self.parent.cut, found)

    def evolved_rows(self, share: int, shares: int) -> Iterator[pa.RecordBatch]:
        """Of every so many-th shard."""
        operator = self.parent.operators[self.uid]
        number = operator.states[self.feed.state].id
        entries = _stored_entries(self._context(), operator, number, (share, shares))
        yield from self._made("evolve", self.slot, ((key, raw, raw) for key, raw in entries))

    def _made(self, kind: Kind, slot: int, found: Iterator[Change]) -> Iterator[pa.RecordBatch]:
        """`found` has the bytes as they are stored at both points."""
        todays = todays_values(self.feed.schema, self._serializer())[0]
        now, then = self._now_rows, ChangeRows(self.feed.key, self.feed.state, self._then)
        thens = partial(_thens_values, self._then)
        while part := list(islice(found, ROWS)):
            there = [change for change in part if change[2] is not None]
            if there:
                keys = [_numbered(key, now.state_id) for key, _, _ in there]
                after = todays([raw for _, _, raw in there])
                rows = now.rows(_entries(kind, keys, [None] * len(keys), after), slot, self.now)
                yield self._cast(_differing(rows, then, thens([raw for _, raw, _ in there]), keys))
            gone = [change for change in part if change[2] is None and change[1] is not None]
            if gone:
                keys, before = [key for key, _, _ in gone], thens([raw for _, raw, _ in gone])
                yield self._cast(
                    then.rows(_entries("delete", keys, before, [None] * len(keys)), slot, self.now)
                )

    def _serializer(self) -> Serializer | None:
        if self.process is None:
            return None
        schema, state = self.feed.schema, self.feed.state
        return evolved_serializer(type_of(self.process, self.uid, state), schema)

    def _cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self.feed.columns
        shown = [_shown(column, field.type) for column, field in zip(rows.columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(shown, schema=columns)

    @property
    def _now_rows(self) -> ChangeRows:
        return ChangeRows(self.feed.key, self.feed.state, self.feed.schema)

    def _context(self) -> ReaderContext:
        return ReaderContext(
            root=self.storage.root,
            cache=self.storage.cache(),
            scratch=Path(self.storage.scratch_dir),
            open_shard=self.open_shard,
            clock=lambda: self.now,
            storage_options=self.storage.storage_options,
        )


def changes_between(
    attempt: BatchAttempt, node: KeyedNode, output: str, feed: TaskFeed
) -> tuple[ChangesBetween | None, str]:
    """What the feed lacks, if it lacks something; and a sentence if it goes on lacking it."""
    parent, settings = attempt.parent, attempt.settings
    if parent is None:
        return None, ""
    sinks, operators = _reached(settings.flow, node, output)
    told_by_sink = told_until(parent, attempt.last_commits, (sink.uid for sink in sinks))
    if not told_by_sink:
        return None, ""  # a feed begins empty
    told = min(told_by_sink.values())
    late = behind(told_by_sink, parent)
    restored = bool(late)
    tables = ", ".join(late or told_by_sink)
    if parent.kind == "erase" and told < parent.slot:
        return None, (
            f"the feed of state {feed.state!r} of operator {node.uid!r} has no rows for erasure {parent.slot}: its tables ({tables}) still have "
            "those of the erased key, which have to be deleted there"
        )
    base = attempt.record_at(told) if restored else parent
    lacking = _lacking(base, parent, node.uid, feed.state)
    if restored and len(set(told_by_sink.values())) > 1:
        # All of them get the same rows, which would undo it a second time where the table has gone back.
        lacking = "others of its tables are up to date with another slot"
    changes = None
    if base is not None and not lacking:
        changes = ChangesBetween(
            feed,
            node.uid,
            _only(base, node.uid),
            _only(parent, node.uid),
            restored,
            attempt.moment.slot,
            attempt.moment.now,
            attempt.storage,
            settings.open_shard,
            node.process_type if node.columnar is None else None,
            settings.user_paths,
        )
        if not changes.restored and not changes.evolved:
            return None, ""
        if operators:
            # Their own state has gone back with the job: they would undo it a second time.
            lacking = f"operator {operators[0].uid!r} reads it, whose state is of the same checkpoint"
    elif not restored:
        return None, ""
    if not lacking:
        return changes, ""
    what = f"restore or rescale {parent.cut}" if restored else "the changed type"
    return None, (
        f"the feed of state {feed.state!r} of operator {node.uid!r} has no rows for {what}, since {lacking}: its tables "
        f"({tables}) show the state as of slot {told} for every entry that no batch changes again; "
        "`stateflow state export` has the state as it is"
    )


def _lacking(base: Record | None, parent: Record, uid: str, state: str) -> str:
    """Why the two points cannot be compared; empty if they can."""
    if base is None:
        return "the checkpoint before it is gone (an erasure deletes it; then the rows of the erased key have to be deleted there)"
    if uid not in base.operators or state not in base.operators[uid].states:
        return "the checkpoint before it does not have the state"
    one, other = base.operators[uid], parent.operators.get(uid, base.operators[uid])
    if (one.key, one.max_parallelism) != (other.key, other.max_parallelism):
        return "the operator has another key or other key groups now"
    return ""


def _reached(flow: Flow, node: Node, output: str) -> tuple[list[SinkNode], list[KeyedNode]]:
    """The sinks and the operators that rows of an output reach without an operator in between."""
    sinks, operators = [], []
    ahead = [reader for reader, rows in flow.consumers(node) if rows.output == output]
    while ahead:
        at = ahead.pop()
        if isinstance(at, SinkNode):
            sinks.append(at)
        elif isinstance(at, KeyedNode):
            operators.append(at)
        else:
            ahead += [reader for reader, _ in flow.consumers(at)]
    return sinks, operators


def _only(record: Record, uid: str) -> Record:
    """The record with one operator: tasks get no more than they need."""
    return msgspec.structs.replace(
        record,
        operators={own: state for own, state in record.operators.items() if own == uid},
        sources={},
        sinks={},
        statistics={},
        parameters={},
    )


def _stored_entries(
    context: ReaderContext, operator: OperatorState, number: int, share: tuple[int, int]
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a state, in every so many-th shard."""
    first, shares = share
    for shard in islice((shard for subtask in operator.shards for shard in subtask), first, None, shares):
        if shard.files:
            with opened_shard(context, shard) as backend:
                for group in range(shard.first, shard.last + 1):
                    yield from backend.scan(*state_range(group, number))


def _entries(kind: Kind, keys: Sequence[bytes], before: Raws, after: Raws) -> ChangedEntries:
    return ChangedEntries([kind] * len(keys), keys, before, after)


def _numbered(key: bytes, state_id: int) -> bytes:
    return key[:GROUP_WIDTH] + state_id.to_bytes(PREFIX_WIDTH - GROUP_WIDTH, "big") + key[PREFIX_WIDTH:]


def _thens_values(schema: StateSchema, raws: Raws) -> Raws:
    """Stored values as those of a former type. None where only code of then makes one of it."""
    today = todays_form(schema)
    if today is None:
        return plain(raws)

    def read(raw: bytes | None) -> bytes | None:
        try:
            return None if raw is None else today(raw)
        except IncompatibleError:
            return None

    return plain(list(map(read, raws)))


def _differing(rows: pa.RecordBatch, then: ChangeRows, before: Raws, keys: Sequence[bytes]) -> pa.RecordBatch:
    """The rows with the values before, without those whose values are the same."""
    if not then.valued or len(rows.columns) != len(then.schema):
        return rows.filter(pa.array([raw is None for raw in before]))
    column = _shown(then.values(before, keys), rows.column(_BEFORE).type)
    columns = rows.columns
    columns[_BEFORE] = column
    pairs = zip(before, column.to_pylist(), rows.column(_AFTER).to_pylist(), strict=True)
    # What is no number is not even equal to itself.
    differ = [raw is None or (one != other and (one == one or other == other)) for raw, one, other in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema).filter(pa.array(differ, pa.bool_()))


def _shown(column: Any, kind: pa.DataType) -> Any:
    """A column as a table shows it whose columns have other types: fields by their names, null for what does not fit."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        own = {field.name: number for number, field in enumerate(column.type)}
        parts = [
            _shown(column.field(own[field.name]), field.type)
            if field.name in own
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), kind)

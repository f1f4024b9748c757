"""Rows of a feed for what its table lacks before a batch, and for values that are others as today's type.

The batch writes them beside its own rows. So the rows up to a slot are the state at that slot, whatever came before.

    restore   in the slot of the record that the batch continues: the entries in which the state that the table shows and that of the
              record differ, if a restore stands between the two; `delete` if the record lacks them. Of the files only those are read
              that the two do not share
    snapshot  the same where no restore does: the feed was out of the pipeline for a while, or begins now, when all entries are read
    evolve    in the slot of the batch: entries whose value changes when it is read as today's type. It reads all entries,
              once. Those that the batch writes have rows already
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.feeds import Lag, lag, operator_reader, slots_of_state
from stateflow.compatibility.states import recorded_names
from stateflow.errors import IncompatibleError
from stateflow.format.encoding import renumbered, state_range
from stateflow.format.records import Record, ShownState, StateSchema
from stateflow.operators.binding import type_of
from stateflow.pipelines.feed_readers import fed_by, readers_of
from stateflow.pipelines.graph import KeyedNode, SinkNode
from stateflow.pipelines.processes.process import Process
from stateflow.reading.diff import ComparedSnapshot, Differences, names_of_states
from stateflow.reading.opened_shard import opened_shard
from stateflow.reading.snapshots import ReaderContext
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.session.sent_modules import SentModules
from stateflow.spark.session.shipping import parcel
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.state_feeds import ROWS, TaskFeed
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import OpenShard
from stateflow.state.change_rows import ChangedEntries, ChangeRows, Kind, todays_values
from stateflow.state.values.arrow.digits import cast_by_digits
from stateflow.state.values.evolution.decision import RefusedError
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
    shown: Record | None
    """Whose state the feed's tables show; None: they show nothing yet."""
    then: StateSchema | None
    """The state's schema there, which may have another name and number."""
    parent: Record
    """What the batch continues."""
    gap: Kind | None
    """What rows for the difference between the two are called; None if there is none."""
    slot: int
    """As the feed's rows have it, behind all slots of a job that the state comes from."""
    now: int
    storage: TaskStorage
    open_shard: Callable[[str], OpenShard]
    process: type[Process[Any]] | None
    """Whose declaration reads stored values as those of today's type; None where they are columns."""
    sent_modules: SentModules

    @property
    def evolved(self) -> bool:
        return self._now is not None and self.then is not None and self.then.value != self.feed.schema.value

    @property
    def _now(self) -> StateSchema | None:
        """None if the parent is from before the state was declared, or before the operator's first batch."""
        return recorded_state(self.parent, self.uid, self.feed.schema)

    def rows(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The feed's rows of the batch, `frame`, and those of what was between."""
        if self.gap is not None:
            frame = frame.unionByName(self._frame(spark, frame, self.gap))
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
        records = [record for record in (self.parent, self.shown) if record is not None]
        operator = next(record.operators[self.uid] for record in records if self.uid in record.operators)
        shares = sum(map(len, operator.shards))
        open_parcel = parcel(self)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            task: ChangesBetween = open_parcel()
            make = task.evolved_rows if kind == "evolve" else task.rows_between
            for batch in batches:
                for share in batch.column(0).to_pylist():
                    yield from make(share, shares)

        return spark.range(0, shares, 1, shares).mapInArrow(run, like.schema)

    def rows_between(self, share: int, shares: int) -> Iterator[pa.RecordBatch]:
        """Of every so many-th pair of shards."""
        part = (share, shares)
        found: Iterator[Change]
        assert self.gap is not None
        if self.then is None or self.shown is None:
            found = ((key, None, raw) for key, raw in self._entries(self.parent, self.feed.schema, part))
        elif self._now is None:
            found = ((key, raw, None) for key, raw in self._entries(self.shown, self.then, part))
        else:
            differ = self._compared(part).stored(self.uid, self.then.id)
            found = ((each.key, each.before, each.after) for each in differ)
        yield from self._made(self.gap, self.parent.slot + self.parent.shift, found)

    def evolved_rows(self, share: int, shares: int) -> Iterator[pa.RecordBatch]:
        """Of every so many-th shard. Entries that were written since what the tables show have rows already, and may be of a type that
        nobody knew then."""
        part = (share, shares)
        if self.gap is None or self.then is None:
            entries = self._entries(self.parent, self.feed.schema, part)
        else:
            entries = self._compared(part).unchanged(self.uid, self.then.id)
        yield from self._made("evolve", self.slot, ((key, raw, raw) for key, raw in entries))

    def _compared(self, share: tuple[int, int]) -> Differences:
        assert self.shown is not None
        context = self._context()
        one, other = (ComparedSnapshot("", record, context) for record in (self.shown, self.parent))
        names = {uid: dict(each) for uid, each in names_of_states(self.shown, self.parent).items()}
        # Of the state itself the code may know more than the two records.
        former = next(
            name for name, schema in self.shown.operators[self.uid].states.items() if schema == self.then
        )
        own = recorded_state_name(self.parent, self.uid, self.feed.schema)
        assert own is not None
        names[self.uid] = {name: old for name, old in names[self.uid].items() if old != former} | {
            own: former
        }
        return Differences(one, other, look_up=True, share=share, names=names)

    def _entries(
        self, record: Record, schema: StateSchema, share: tuple[int, int]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a state, in every so many-th shard."""
        first, shares = share
        context = self._context()
        for shard in islice(record.operators[self.uid].all_shards, first, None, shares):
            if shard.files:
                with opened_shard(context, shard) as backend:
                    for group in range(shard.first, shard.last + 1):
                        yield from backend.scan(*state_range(group, schema.id))

    def _made(self, kind: Kind, slot: int, found: Iterator[Change]) -> Iterator[pa.RecordBatch]:
        """`found` has the bytes as they are stored at both points."""
        todays = todays_values(self.feed.schema, self._serializer(self.feed.schema))[0]
        schema = self.then or self.feed.schema
        now, then = self._now_rows, ChangeRows(self.feed.key, self.feed.state, schema)
        thens = self._thens_values(schema)
        while part := list(islice(found, ROWS)):
            there = [change for change in part if change[2] is not None]
            if there:
                keys = [renumbered(key, now.state_id) for key, _, _ in there]
                after = todays([raw for _, _, raw in there])
                rows = now.rows(_entries(kind, keys, [None] * len(keys), after), slot, self.now)
                yield self._cast(_differing(rows, then, thens([raw for _, raw, _ in there]), keys))
            gone = [change for change in part if change[2] is None and change[1] is not None]
            if gone:
                keys, before = [key for key, _, _ in gone], thens([raw for _, raw, _ in gone])
                yield self._cast(
                    then.rows(_entries("delete", keys, before, [None] * len(keys)), slot, self.now)
                )

    def _thens_values(self, schema: StateSchema) -> Callable[[Raws], Raws]:
        """How values stored under a former schema are read. Code of the pipeline's reads those that are of today's type."""
        if schema.value == self.feed.schema.value:
            with suppress(RefusedError):
                return todays_values(schema, self._serializer(schema))[0]
        return partial(_thens_values, schema)

    def _serializer(self, schema: StateSchema) -> Serializer | None:
        if self.process is None:
            return None
        return evolved_serializer(type_of(self.process, self.uid, self.feed.state), schema)

    def _cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self.feed.columns
        shown = [_shown(column, field.type) for column, field in zip(rows.columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(shown, schema=columns)

    @property
    def _now_rows(self) -> ChangeRows:
        return ChangeRows(self.feed.key, self.feed.state, self.feed.schema)

    def _context(self) -> ReaderContext:
        return task_reader(self.storage, self.open_shard, self.now)


def changes_between(
    attempt: BatchAttempt, node: KeyedNode, output: str, feed: TaskFeed
) -> tuple[ChangesBetween | None, list[str]]:
    """What the feed lacks, if it lacks something; and sentences on what it goes on lacking."""
    parent, settings = attempt.parent, attempt.settings
    if parent is None:
        return None, []
    sinks, operators = readers_of(settings.flow, node, output)
    shown = {sink.uid: _shown_by(attempt, sink, node, feed) for sink in sinks}
    shown |= {operator_reader(each.uid): _read_by(parent, each, node, feed) for each in operators}
    erased = [uid for uid, each in shown.items() if each is not None and each.erased]
    lacking = [_of_erased_keys(node, feed, erased, parent)] if erased else []
    now = recorded_state(parent, node.uid, feed.schema)
    holds = now is not None and any(True for _ in parent.operators[node.uid].files)
    delivered = {*attempt.last_commits, *parent.sinks, *map(operator_reader, parent.operators)}
    behind = lag(shown, delivered, attempt.late, slots_of_state(parent, attempt.record_at), holds=holds)
    base: Record | None = parent
    then: StateSchema | None = None
    gap: Kind | None = None
    why = behind.why
    if behind.lacks:
        base = None if behind.since is None else attempt.record_at(behind.since)
        gap = "restore" if behind.since is not None and behind.since < parent.cut else "snapshot"
        if behind.since is not None:
            name = next(each.state for each in shown.values() if each is not None)
            then, reason = _comparable(base, name, parent, node)
            why = why or reason
    elif now is None:  # the state begins
        return None, [*lacking, *_of_other_feeds(attempt, node, feed, [u for u in shown if shown[u] is None])]
    else:
        then = now
    if why:
        return None, [*lacking, _of_missing_rows(node, feed, behind, gap, parent, why, bool(operators))]
    changes = ChangesBetween(
        feed,
        node.uid,
        _only(base, node.uid) if base is not None else None,
        then,
        _only(parent, node.uid),
        gap,
        attempt.moment.slot + attempt.moment.shift,
        attempt.moment.now,
        attempt.storage,
        settings.open_shard,
        node.process_type if node.columnar is None else None,
        settings.sent_modules,
    )
    return (changes if gap is not None or changes.evolved else None), lacking


def _shown_by(attempt: BatchAttempt, sink: SinkNode, node: KeyedNode, feed: TaskFeed) -> ShownState | None:
    """What the sink's table shows of the state, which may have had another name."""
    ours = [
        each
        for each in under_todays_names(attempt.feeds, attempt.settings.flow.sinks)
        if (each.sink, each.operator) == (sink.uid, node.uid) and _is_same(attempt, each, node, feed)
    ]
    return max(ours, key=lambda each: each.slot, default=None)


def _read_by(parent: Record, reader: KeyedNode, node: KeyedNode, feed: TaskFeed) -> ShownState | None:
    """What an operator has had of the state. Its own state is of the same record, so that it never lags behind."""
    state = recorded_state_name(parent, node.uid, feed.schema)
    before = parent.operators.get(reader.uid)
    if state is None or before is None or (node.uid, state) not in before.feeds:
        return None
    return ShownState("", node.uid, state, parent.slot, "")


def _of_other_feeds(
    attempt: BatchAttempt, node: KeyedNode, feed: TaskFeed, begins: Sequence[str]
) -> list[str]:
    """Warns of tables that get this state and still show another one, which no feed updates any more."""
    flow = attempt.settings.flow
    told = {(sink.uid, *feed) for sink in flow.sinks for feed in fed_by(flow, sink)}
    left = [
        each
        for each in under_todays_names(attempt.feeds, flow.sinks)
        if each.sink in begins and each.name not in told
    ]
    if not left:
        return []
    tables = ", ".join(sorted({each.sink for each in left}))
    other = left[0]
    sentence = (
        f"the feed of state {feed.state!r} of operator {node.uid!r} begins in tables ({tables}) that still show state {other.state!r} of "
        f"operator {other.operator!r}, of which no row tells that it is gone: delete its rows there, or take another table"
    )
    return [sentence]


def under_todays_names(feeds: Iterable[ShownState], sinks: Sequence[SinkNode]) -> tuple[ShownState, ...]:
    """A sink that the pipeline no longer has may have got another name: that of the one which writes to its table."""
    uids = {sink.uid for sink in sinks}
    return tuple(
        next(
            (
                msgspec.structs.replace(each, sink=sink.uid)
                for sink in sinks
                if each.sink not in uids and sink.place and sink.sink_kind.is_at(sink.target, each.target)
            ),
            each,
        )
        for each in feeds
    )


def _is_same(attempt: BatchAttempt, shown: ShownState, node: KeyedNode, feed: TaskFeed) -> bool:
    """By the names in the newest record that has the state which the table shows."""
    for record in (attempt.parent, attempt.record_at(shown.slot)):
        operator = record.operators.get(node.uid) if record is not None else None
        if operator is not None and shown.state in operator.states:
            return recorded_names(node, operator).get(feed.state) == shown.state
    return shown.state == feed.state


def recorded_state(record: Record, uid: str, schema: StateSchema) -> StateSchema | None:
    """The same state in a record: its name may be another one there, its number is not."""
    name = recorded_state_name(record, uid, schema)
    return None if name is None else record.operators[uid].states[name]


def recorded_state_name(record: Record, uid: str, schema: StateSchema) -> str | None:
    operator = record.operators.get(uid)
    states = operator.states.items() if operator is not None else ()
    return next((name for name, state in states if state.id == schema.id), None)


def _comparable(
    base: Record | None, name: str, parent: Record, node: KeyedNode
) -> tuple[StateSchema | None, str]:
    """The state's schema in `base`, where it is called `name`, and why it cannot be compared with that of the parent; empty if it can."""
    if base is None:
        gone = "the checkpoint of what they show is gone"
        return (
            None,
            f"{gone} (an erasure deletes it; then the rows of the erased key have to be deleted there)",
        )
    one = base.operators.get(node.uid)
    if one is None or name not in one.states:
        return None, f"checkpoint {base.slot} does not have the state"
    then, other = one.states[name], parent.operators.get(node.uid, one)
    if (one.key_types, one.max_parallelism) != (other.key_types, other.max_parallelism):
        return then, "the operator has another key or other key groups now"
    return then, ""


def _of_missing_rows(
    node: KeyedNode, feed: TaskFeed, behind: Lag, gap: Kind | None, parent: Record, why: str, operators: bool
) -> str:
    what = "restore" if gap == "restore" else "the changes up to slot" if behind.late else "the state of slot"
    tables = []
    kind = "readers" if operators else "tables"
    if behind.late:
        names = ", ".join(behind.late)
        tables.append(
            f"({names}) show the state as of slot {behind.since} for every entry that no batch changes again"
        )
    if behind.new:
        tables.append(
            f"({', '.join(behind.new)}) show the entries that batches change from now on, and no others"
        )
    return (
        f"the feed of state {feed.state!r} of operator {node.uid!r} has no rows for {what} {parent.cut if gap == 'restore' else parent.slot}, "
        f"since {why}: its {kind} {', '.join(tables)}; `stateflow state export` has the state as it is"
    )


def _of_erased_keys(node: KeyedNode, feed: TaskFeed, tables: Sequence[str], parent: Record) -> str:
    return (
        f"the feed of state {feed.state!r} of operator {node.uid!r} has no rows for erasure {parent.slot}: its tables "
        f"({', '.join(tables)}) still have those of the erased key, which have to be deleted there"
    )


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


def _entries(kind: Kind, keys: Sequence[bytes], before: Raws, after: Raws) -> ChangedEntries:
    return ChangedEntries([kind] * len(keys), keys, before, after)


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
    """Casts a column to the type that the table has: fields by their names, null for what does not fit."""
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
        return cast_by_digits(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), kind)

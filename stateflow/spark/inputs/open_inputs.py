"""The sources of a run as one streaming frame, and the rows of each source in a batch of it.

Each source is tagged and all are unioned, so that Spark ends a batch at the same point in all of them: the aligned
barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.records import PartitionTime, SourceState
from stateflow.format.source_offsets import NOTHING, SourceLeaves
from stateflow.operators.lateness import is_late
from stateflow.pipelines.absent import Watched, is_watched, may_have_nulls, watched
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import SinkNode, SourceNode, put_table
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.input import PARTITION
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.inputs.partition_times import advanced_partitions, kept_awake, lowest_partition
from stateflow.spark.inputs.silence import gained_by, is_idle, is_read_through, quiet_until
from stateflow.spark.internals.delta_log import CHANGE_FEED, DeltaLog
from stateflow.spark.internals.file_systems import missing
from stateflow.spark.internals.gateway import JAVA_ERRORS, first_line
from stateflow.spark.internals.managed_tables import managed_stream, refuse_path
from stateflow.spark.internals.plans import parts_of_union
from stateflow.spark.internals.queries import observed_metrics
from stateflow.spark.internals.sketches import can_measure_highest, highest_by_key, values_by_key
from stateflow.spark.shuffle.exchange import LATE
from stateflow.spark.sources.catalog_tables import located
from stateflow.spark.sources.kafka import parse
from stateflow.spark.sources.kafka_topics import ids_of_topics
from stateflow.spark.sources.leaves import LeafDescription, check_frame, leaves_of, topic_ids_of

_ABSENT = ("DELTA_SCHEMA_NOT_SET", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")
"""Error conditions of Spark and Delta for a source that points to nothing."""

TAG = "_sf_source"
_OBSERVED = "stateflow-source-"
_PRESENT = "present"
_WHOLE = "whole"
_EARLY = "early"
_PARTITIONS = "partitions"
_EARLY_1970 = "between timestamp'1970-01-01 00:00:00Z' and timestamp'1970-04-26 00:00:00Z'"
"""Seconds since 1970 that are numbers below ten million."""
_BITS = 62
_SOON = 86_400_000_000
"""Of an event time that is still to come, how far it may be ahead of the clock: clocks differ, and days end later elsewhere."""
_LAST_MOMENT = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds since 1970. Python has no later one."""


class SourceFrames(dict[str, DataFrame]):
    """The rows of each source in a batch; release them when the batch is done."""

    def __init__(self, frames: Mapping[str, DataFrame], shared: DataFrame | None = None) -> None:
        super().__init__(frames)
        self._shared = shared

    def release(self) -> None:
        if self._shared is not None:
            self._shared.unpersist()


@dataclass(frozen=True)
class OpenInputs:
    """A pipeline's sources, opened."""

    nodes: tuple[SourceNode, ...]
    frames: Mapping[str, DataFrame]
    """Each source's streaming frame, for its schema."""
    stream: DataFrame
    """What the query reads."""
    layout: tuple[SourceLeaves, ...]
    leaves: tuple[LeafDescription, ...]

    @cached_property
    def topic_ids(self) -> dict[str, dict[str, str]]:
        """By source, for its record, the ids of the topics of Kafka that it reads."""
        return {uid: topic_ids_of(own) for uid, own in leaves_of(self.layout, self.leaves).items()}

    @cached_property
    def since(self) -> dict[str, str]:
        """By source, for its record, what it says of where it begins."""
        return {node.uid: node.factory.since for node in self.nodes}

    @property
    def cutting(self) -> frozenset[str]:
        """The connectors' sources that may end a batch where more follows."""
        return frozenset(node.uid for node in self.nodes if node.factory.cuts_batches)

    def split(self, batch: DataFrame) -> SourceFrames:
        """The rows of each source in a batch."""
        if len(self.nodes) == 1:
            return SourceFrames({self.nodes[0].uid: batch})
        by_source = self._by_source(batch)
        if by_source is not None:
            return SourceFrames(
                {node.uid: _checked(by_source[index], index) for index, node in enumerate(self.nodes)}
            )
        # The optimiser cannot look into a batch's frame: every split would read, and count, all sources again.
        shared = batch.persist()
        split = {
            node.uid: shared.where(f"{TAG} = {index}").selectExpr(f"{_column(index)}.*")
            for index, node in enumerate(self.nodes)
        }
        return SourceFrames(split, shared)

    def _by_source(self, batch: DataFrame) -> list[DataFrame] | None:
        """A frame per source, of the partitions that are its own; None where Spark does not show which are.

        Spark has planned the batch as a union. Its parts are the sources in their order, unless a source is a union itself, or
        the optimiser has left out a source without rows.
        """
        if any(len(source.kinds) != 1 for source in self.layout):
            return None
        parts = parts_of_union(batch)
        return parts if len(parts) == len(self.nodes) else None

    def empty(self, spark: SparkSession) -> SourceFrames:
        """A batch without input."""
        nothing = spark.sparkContext.emptyRDD()
        # Of an empty list Spark would make no rows in Python workers, which take seconds to start.
        frames = {uid: spark.createDataFrame(nothing, frame.schema) for uid, frame in self.frames.items()}
        return SourceFrames(frames)


def open_inputs(spark: SparkSession, flow: Flow, *, exactly_once: bool) -> OpenInputs:
    """Opens every source and checks its frame."""
    frames: dict[str, DataFrame] = {}
    layout: list[SourceLeaves] = []
    opened: list[LeafDescription] = []
    for node in flow.sources:
        frame, leaves = open_source(spark, node, exactly_once=exactly_once)
        layout.append(SourceLeaves(node.uid, len(leaves), tuple(leaf.kind for leaf in leaves)))
        frames[node.uid] = frame
        opened += leaves
    nodes = tuple(flow.sources)
    stream = _unioned([(node, _observed(node, frames[node.uid])) for node in nodes])
    frames |= {node.uid: frames[node.uid].drop(PARTITION) for node in nodes if node.per_partition}
    # The streams of the union are other objects, in the same order.
    streams = zip(check_frame(stream, exactly_once), opened, strict=True)
    leaves_read = tuple(replace(leaf, topic_ids=own.topic_ids, target=own.target) for leaf, own in streams)
    return OpenInputs(nodes, frames, stream, tuple(layout), leaves_read)


def locate(spark: SparkSession, node: SourceNode | SinkNode) -> None:
    """Gives a source or a sink the place of its table, if a catalog names that and has not been asked."""
    table = node.factory if isinstance(node, SourceNode) else node.target
    if isinstance(table, DeltaTable) and not table.path:
        put_table(node, located(spark, table, f"{node.kind} {node.uid!r}"))


def open_source(
    spark: SparkSession, node: SourceNode, *, exactly_once: bool
) -> tuple[DataFrame, list[LeafDescription]]:
    """One source's frame, checked, and the streams that it consists of."""
    locate(spark, node)
    frame = _open_frame(spark, node)
    try:
        leaves = check_frame(frame, exactly_once)
    except StateflowError as error:
        raise type(error)(f"source {node.uid!r}: {error}") from error
    if isinstance(node.factory, DeltaTable):
        leaves = [replace(leaf, target=node.factory.named) for leaf in leaves]
    return frame, [
        replace(leaf, topic_ids=ids_of_topics(spark, node.uid, leaf)) if leaf.kind == "kafka" else leaf
        for leaf in leaves
    ]


def _open_frame(spark: SparkSession, node: SourceNode) -> DataFrame:
    factory = node.factory
    try:
        if isinstance(factory, Files) and not missing(spark, [f"{factory.path}/_delta_log"]):
            raise UsageError(
                f"source {node.uid!r}: {factory.path} is a Delta table, whose folder also has files that are no part of it any more: read it with "
                f"sf.delta({factory.path!r})"
            )
        if isinstance(factory, DeltaTable) and factory.reads_changes:
            _require_feed(spark, node.uid, factory)
        frame = _stream(spark, node)
    except StateflowError:
        raise
    except Exception as error:
        if isinstance(error, PySparkException) and (condition := error.getCondition()) in _ABSENT:
            raise NotFoundError(_not_there(node, str(condition), error)) from error
        raise UsageError(f"source {node.uid!r} cannot be opened: {first_line(error)}") from error
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise UsageError(f"source {node.uid!r} gives no streaming DataFrame: open it with spark.readStream")
    types = dict(frame.dtypes)
    for field in node.rows.fields if node.rows else ():
        if field.name not in types:
            raise IncompatibleError(
                f"source {node.uid!r} has no column {field.name!r}, which {node.rows.name if node.rows else ''} declares; "
                f"it has {', '.join(types)}"
            )
    if node.event_time is not None and types.get(node.event_time) not in ("timestamp", "timestamp_ntz"):
        raise IncompatibleError(
            f"source {node.uid!r}: event-time column {node.event_time!r} is {types.get(node.event_time, 'missing')}, "
            "not a timestamp"
        )
    return frame


def _stream(spark: SparkSession, node: SourceNode) -> DataFrame:
    uid, factory = node.uid, node.factory
    if node.per_partition:
        if not can_measure_highest(spark):
            raise IncompatibleError(
                f"source {uid!r}: watermark=sf.per_partition(...) needs Spark 4.2, which can measure the event time of each partition: upgrade "
                "Spark, or say watermark='10 minutes', which goes by all partitions together"
            )
        return factory.streaming_with_partitions(spark)
    if not isinstance(factory, DeltaTable):
        return factory.streaming(spark)
    if factory.managed:
        return managed_stream(spark, factory.managed_as, factory.path, factory.reader_options)
    try:
        return factory.streaming(spark)
    except JAVA_ERRORS as error:
        refuse_path(error, f"source {uid!r}: ", factory.path)
        raise


def _require_feed(spark: SparkSession, uid: str, table: DeltaTable) -> None:
    log = DeltaLog(spark, table.path, table.managed_as)
    if log.exists() and not log.begin().shape().is_on(CHANGE_FEED):
        raise UsageError(
            f"source {uid!r}: the {table} keeps no feed of its changes: let it do so from now on, ALTER TABLE {table.in_sql} SET "
            f"TBLPROPERTIES ('{CHANGE_FEED}' = 'true'), and run again"
        )


def _not_there(node: SourceNode, condition: str, error: Exception) -> str:
    if isinstance(node.factory, DeltaTable):
        return (
            f"source {node.uid!r}: there is no Delta table at {node.factory.path}; check where it points to"
        )
    if isinstance(node.factory, Files):
        return f"source {node.uid!r}: there is no folder {node.factory.path}: make it, or correct the path"
    if condition.startswith("DELTA_"):  # Delta's own message does not name the table
        return f"source {node.uid!r} opens a Delta table that is not there; check where it points to"
    return f"source {node.uid!r} opens what is not there: {first_line(error)}"


def _observed(node: SourceNode, frame: DataFrame) -> DataFrame:
    measures = [F.count(F.lit(1)).alias("rows")]
    if node.event_time is not None:
        micros = f"unix_micros(cast(`{node.event_time}` as timestamp))"
        measures.append(F.max(F.expr(micros)).alias("event_time"))
        if node.per_partition:
            measures.append(highest_by_key(PARTITION, micros).alias(_PARTITIONS))
    if is_watched(node):
        measures += [
            F.bit_or(F.expr(_bits([each.present for each in some]))).alias(f"{_PRESENT}{k}")
            for k, some in enumerate(_in_words(_watched(node)))
        ]
    # Of the rows without a value nothing is counted here: that costs as much as a tenth of Spark's reading.
    measures += [
        F.bit_and(F.expr(_bits([_unless_broken(node) + each.whole for each in some]))).alias(f"{_WHOLE}{k}")
        for k, some in enumerate(_in_words(_never_null(node)))
    ]
    if times := _parsed_times(node):
        measures.append(
            F.bit_or(F.expr(_bits([f"{quoted(each)} {_EARLY_1970}" for each in times]))).alias(_EARLY)
        )
    observed = frame.observe(_OBSERVED + node.uid, *measures)
    return observed.drop(PARTITION) if node.per_partition else observed


def _watched(node: SourceNode) -> list[Watched]:
    return watched(node.rows) if node.rows is not None else []


def _never_null(node: SourceNode) -> list[Watched]:
    """The fields in which every row should have a value."""
    return [each for each in _watched(node) if each.may_not_be_null] if may_have_nulls(node) else []


def _parsed_times(node: SourceNode) -> list[str]:
    """Timestamp fields: the JSON reader takes a number there for seconds since 1970."""
    if node.rows is None or not isinstance(node.factory, Files) or node.factory.format != "json":
        return []
    return [field.name for field in node.rows.fields if field.type in ("timestamp", "timestamp_ltz")][:_BITS]


def _unless_broken(node: SourceNode) -> str:
    """The beginning of a condition that leaves out rows which Spark could not read. Such a row has only its own column."""
    broken = node.factory.column_of_broken_rows
    return f"{quoted(broken)} is not null or " if broken else ""


def _in_words(some: Sequence[Watched]) -> list[Sequence[Watched]]:
    """The fields in groups, each with as many fields as a number has bits."""
    return [some[k : k + _BITS] for k in range(0, len(some), _BITS)]


def _bits(conditions: Sequence[str]) -> str:
    """SQL for a number with a bit for each condition that holds in a row. A count per column would cost a visible part of a
    batch."""
    return " | ".join(f"cast(({condition}) as bigint) * {1 << k}L" for k, condition in enumerate(conditions))


def _unioned(sources: Sequence[tuple[SourceNode, DataFrame]]) -> DataFrame:
    if len(sources) == 1:
        return sources[0][1]
    types = [frame.schema.simpleString() for _, frame in sources]
    tagged = []
    for index, (_, frame) in enumerate(sources):
        columns = [
            (F.struct(*(F.col(f"`{c}`") for c in frame.columns)) if index == other else F.lit(None))
            .cast(types[other])
            .alias(_column(other))
            for other in range(len(sources))
        ]
        tagged.append(frame.select(F.lit(index).alias(TAG), *columns))
    out = tagged[0]
    for other_frame in tagged[1:]:
        out = out.unionByName(other_frame)
    return out


def _column(index: int) -> str:
    return f"_sf_s{index}"


def _checked(frame: DataFrame, index: int) -> DataFrame:
    """A source's rows. A row of another source here would be lost without a word."""
    own = f"if({TAG} = {index}, true, cast(raise_error('a batch held rows of another source') as boolean))"
    return frame.where(own).selectExpr(f"{_column(index)}.*")


@dataclass(frozen=True)
class Observation:
    """What a batch held from one source."""

    rows: int
    event_time: int | None
    absent: tuple[str, ...] = ()
    """Fields that no row has a value in."""
    null: tuple[str, ...] = ()
    """Fields that some row has no value in, though its class says that it always has one."""
    early: tuple[str, ...] = ()
    """Fields with times in early 1970: a sign of numbers in another unit."""
    partitions: Mapping[str, int | None] | None = None
    """Of a source whose watermark is held per partition: the highest event time of each partition that had rows."""


def observations(
    spark: SparkSession,
    nodes: Sequence[SourceNode],
    positions: Mapping[str, SourceState] = MappingProxyType({}),
) -> dict[str, Observation]:
    """Rows and highest event time per source, as the running batch observed them; call after its jobs. Without `positions`, the batch's
    end, nothing is said of partitions.

    A transform that reads its frame twice counts its rows twice; the highest event time is right all the same. Failed
    tries of the batch count too: see `less`.
    """
    by_uid = {node.uid: node for node in nodes}
    by_source: dict[str, Observation] = {}
    for name, values in observed_metrics(spark).items():
        if name.startswith(_OBSERVED):
            uid = name.removeprefix(_OBSERVED)
            node = by_uid[uid]
            present, whole = (
                [mask for each, mask in values.items() if each.startswith(kind)]
                for kind in (_PRESENT, _WHOLE)
            )
            by_source[uid] = Observation(
                int(values["rows"]),
                values.get("event_time"),
                _without(_watched(node), present),
                _without(_never_null(node), whole),
                tuple(
                    name for k, name in enumerate(_parsed_times(node)) if (values.get(_EARLY) or 0) >> k & 1
                ),
                _of_partitions(spark, node, positions.get(uid), values),
            )
    return by_source


def _of_partitions(
    spark: SparkSession, node: SourceNode, position: SourceState | None, values: Mapping[str, Any]
) -> dict[str, int | None] | None:
    if not node.per_partition or position is None:
        return None
    names = node.factory.partitions(position.lines[0])
    sketch = values.get(_PARTITIONS)
    return {names[key]: time for key, time in values_by_key(spark, sketch, names).items()} if sketch else {}


def check_times(observed: Mapping[str, Observation]) -> None:
    """Refuses a batch with an event time that no clock shows: the watermark would go there, and every later row would be late."""
    for uid, seen in observed.items():
        if seen.event_time is not None and seen.event_time > _LAST_MOMENT:
            seconds = seen.event_time // 1_000_000
            raise IncompatibleError(
                f"source {uid!r}: a row of the batch has an event time beyond the year 9999, {seconds} seconds since 1970, after which every "
                "row would be late: if those are milliseconds or microseconds, make seconds of them where the time is made, as "
                "timestamp_millis(column) does, or leave such rows out; no row was written"
            )


def early_times(observed: Mapping[str, Observation]) -> Iterator[tuple[str, str]]:
    """Warnings, each with its matter, of times that are hardly any."""
    for uid, seen in observed.items():
        for name in seen.early:
            sentence = (
                f"source {uid!r}: rows have a time of early 1970 in {name!r}, as a small number has, since Spark takes numbers of "
                "JSON for seconds since 1970: if they are numbers, declare the field as int"
            )
            yield f"source {uid}: early times in {name}", sentence


def times_to_come(observed: Mapping[str, Observation], now: int, job: str) -> Iterator[tuple[str, str]]:
    """Warnings, each with its matter, of event times that the clock is far from: the watermark goes there, and what comes until then is late."""
    for uid, seen in observed.items():
        if seen.event_time is not None and seen.event_time > now + _SOON:
            time = datetime.fromtimestamp(seen.event_time // 1_000_000, UTC)
            sentence = (
                f"source {uid!r}: a row has the event time {time:%Y-%m-%d %H:%M}, which is still to come, and the watermark goes by it: rows with "
                "true times will be late; correct the time where it is made, then take the watermark back with "
                f"`stateflow restore {job} FILE --from latest --reset-watermark`"
            )
            yield f"source {uid}: times to come", sentence


def _without(fields: Sequence[Watched], masks: Sequence[int | None]) -> tuple[str, ...]:
    """The fields whose bit is not set."""
    return tuple(
        each.path
        for some, mask in zip(_in_words(fields), masks, strict=False)
        for k, each in enumerate(some)
        if not (mask or 0) >> k & 1
    )


def less(observed: Mapping[str, Observation], counted: Mapping[str, Observation]) -> dict[str, Observation]:
    """Spark's observations since `counted`. The highest event time is the same in every try of a batch."""
    return {
        uid: replace(of, rows=of.rows - counted[uid].rows) if uid in counted else of
        for uid, of in observed.items()
    }


def with_lateness(node: SourceNode, frame: DataFrame, watermark: int | None) -> DataFrame:
    """Marks every row as it enters: is it at or behind the watermark?"""
    if node.event_time is None:
        return frame
    if watermark is None:
        return frame.withColumn(LATE, F.lit(False))
    at = F.expr(f"unix_micros(cast(`{node.event_time}` as timestamp))")
    # Without a time a row is not late.
    return frame.withColumn(LATE, F.coalesce(is_late(at, F.lit(watermark)), F.lit(False)))


def watermark_of(
    flow: Flow, sources: Mapping[str, SourceState], before: int | None, idle_after: int
) -> int | None:
    """The watermark of the next batch: the lowest among the sources that are not idle. It never goes back. The source that had rows last is
    never idle.
    """
    marks = _marks(flow, sources, idle_after)
    if not marks or None in marks.values():
        return before
    lowest = min(mark for mark in marks.values() if mark is not None)
    return lowest if before is None else max(before, lowest)


class Holder(NamedTuple):
    """What holds the watermark back."""

    source: str
    since: int
    """When it last had rows."""
    partition: str = ""
    """The partition of the source, if it is only that."""


def holder_of(flow: Flow, sources: Mapping[str, SourceState], idle_after: int) -> Holder | None:
    """What holds the watermark back: the lowest of the sources that are not idle, while another one had rows since and is ahead; or,
    whenever it last had rows, its lowest partition, if the rows there would be late by the newest row of the source. A source whose
    rows had no time yet holds it with every batch."""
    marks = _marks(flow, sources, idle_after)
    if not marks:
        return None
    uid = min(marks, key=lambda uid: (marks[uid] is not None, marks[uid] or 0))
    lowest = marks[uid]
    if uid not in sources or (active := sources[uid].active) is None:
        return None
    if held := _lowest_of_its_source(flow, uid, sources[uid], idle_after):
        return held
    passed = [
        other
        for other, mark in marks.items()
        if mark is not None
        and (lowest is None or mark > lowest)
        and (sources[other].active or 0) > (active - 1 if lowest is None else active)
    ]
    return Holder(uid, active) if passed else None


def _lowest_of_its_source(flow: Flow, uid: str, state: SourceState, idle_after: int) -> Holder | None:
    node = next(node for node in flow.sources if node.uid == uid)
    if not node.per_partition or state.event_time is None or node.watermark is None:
        return None
    name = lowest_partition(state.partitions, idle_after)
    if name is None:
        return None
    own = state.partitions[name]
    if own.event_time is None or own.active is None or own.event_time >= state.event_time - node.watermark:
        return None
    return Holder(uid, own.active, name)


def _marks(flow: Flow, sources: Mapping[str, SourceState], idle_after: int) -> dict[str, int | None]:
    """How far event time is in each source that is not idle; None for one that had no rows yet."""
    marks: dict[str, int | None] = {}
    timed = [node for node in flow.sources if node.event_time is not None]
    last = max(
        (
            s.active
            for node in timed
            if (s := sources.get(node.uid)) and s.event_time is not None and s.active
        ),
        default=None,
    )
    for node in timed:
        state = sources.get(node.uid)
        if state is None or node.watermark is None:
            marks[node.uid] = None
            continue
        had_rows_last = state.event_time is not None and state.active == last
        if had_rows_last or not is_idle(state.silent, idle_after):
            reached = _reached(node, state, idle_after)
            marks[node.uid] = None if reached is None else reached - node.watermark
    return marks


def _reached(node: SourceNode, state: SourceState, idle_after: int) -> int | None:
    """How far event time is in a source. Of a record from before the pipeline said `per_partition` no partition is known."""
    name = lowest_partition(state.partitions, idle_after) if node.per_partition else None
    return state.event_time if name is None else state.partitions[name].event_time


def advanced(
    sources: Mapping[str, SourceState],
    observed: Mapping[str, Observation],
    now: int,
    waiting: Collection[str] = (),
    *,
    before: Mapping[str, SourceState] = MappingProxyType({}),
    looked: Mapping[str, int] = MappingProxyType({}),
    cutting: Collection[str] = (),
) -> dict[str, SourceState]:
    """Source states with the event times, the activity and the silence of this batch. `waiting`: sources of which it was to take nothing: they
    are not idle. If they were, the watermark could pass the rows that wait. `before`: the sources before the batch. `looked`: until when
    it has looked into each source that it has read. `cutting`: sources that may end a batch where more follows.
    """
    out: dict[str, SourceState] = {}
    for uid, state in sources.items():
        observation, until = observed.get(uid), looked.get(uid)
        if observation is not None and observation.rows:
            times = [t for t in (state.event_time, observation.event_time) if t is not None]
            out[uid] = msgspec.structs.replace(
                state,
                event_time=max(times, default=None),
                active=now,
                partitions=_partitions_after(state, before.get(uid), observation, now, until),
                looked=max((at for at in (state.looked, until) if at is not None), default=None),
                silent=0,
            )
        elif uid in waiting:
            awake = kept_awake(state.partitions, now)
            out[uid] = msgspec.structs.replace(state, active=now, partitions=awake, silent=0)
        elif until is not None and is_read_through(state, before.get(uid), cuts_batches=uid in cutting):
            out[uid] = quiet_until(state, until)
        else:
            out[uid] = state
    return out


def _partitions_after(
    state: SourceState, before: SourceState | None, observation: Observation, now: int, until: int | None
) -> dict[str, PartitionTime]:
    if observation.partitions is None:
        return {}
    ends = parse(state.lines[0])
    begins = parse(before.lines[0]) if before is not None and before.lines[0] != NOTHING else {}
    unmoved = {partition for partition, end in ends.items() if begins.get(partition) == end}
    return advanced_partitions(
        state.partitions,
        observation.partitions,
        {_named(partition) for partition in ends},
        now,
        read_through={_named(partition) for partition in unmoved},
        gained=gained_by(state, until),
    )


def _named(partition: tuple[str, int]) -> str:
    topic, number = partition
    return f"{topic}/{number}"


def unioned(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, columns matched by name. Rows of a stream without lateness are not late."""
    if any(LATE in frame.columns for frame in frames):
        frames = [f if LATE in f.columns else f.withColumn(LATE, F.lit(False)) for f in frames]
    out = frames[0]
    for other in frames[1:]:
        out = out.unionByName(other)
    return out

"""The sources of a run as one streaming frame, and the rows of each source in a batch of it.

Each source is tagged and all are unioned, so that Spark ends a batch at the same point in all of them: the aligned
barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.records import Record, SourceState
from stateflow.format.source_offsets import CONNECTED, SourceLeaves, check_same_source
from stateflow.operators.lateness import is_late
from stateflow.pipelines.graph import SinkNode, SourceNode, put_table
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.input import PARTITION
from stateflow.pipelines.inputs.source import DeclaredSource
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.inputs.observations import ObservedSource, event_time_in_sql
from stateflow.spark.internals.delta_log import CHANGE_FEED, DeltaLog
from stateflow.spark.internals.file_systems import missing
from stateflow.spark.internals.gateway import JAVA_ERRORS, first_line
from stateflow.spark.internals.managed_tables import managed_stream, refuse_path
from stateflow.spark.internals.own_types import OwnTypes
from stateflow.spark.internals.plans import parts_of_union
from stateflow.spark.internals.sketches import can_measure_highest
from stateflow.spark.shuffle.exchange import LATE
from stateflow.spark.sinks.fit import sql_type
from stateflow.spark.sources.catalog_tables import located
from stateflow.spark.sources.kafka_topics import ids_of_topics
from stateflow.spark.sources.leaves import (
    LeafDescription,
    by_source,
    change_feeds_of,
    check_frame,
    shape_of,
    topic_ids_of,
    with_places,
)

_ABSENT = ("DELTA_SCHEMA_NOT_SET", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")
"""Error conditions of Spark and Delta for a source that points to nothing."""

TAG = "_sf_source"


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
    observed: tuple[ObservedSource, ...]
    """What Spark observes of each source."""

    @cached_property
    def topic_ids(self) -> dict[str, dict[str, str]]:
        """By source, for its record, the ids of the topics of Kafka that it reads."""
        return {uid: topic_ids_of(own) for uid, own in by_source(self.leaves).items()}

    @cached_property
    def change_feeds(self) -> dict[str, tuple[int, ...]]:
        """By source, for its record, its leaves that read a change feed."""
        return {uid: change_feeds_of(own) for uid, own in by_source(self.leaves).items()}

    @property
    def identities(self) -> dict[str, list[str]]:
        """By source what it reads, however its address is spelled, as far as that can be told."""
        found = {uid: [*ids.values()] for uid, ids in self.topic_ids.items()}
        for node in self.nodes:
            if isinstance(node.factory, DeclaredSource) and (own := node.factory.identity):
                found[node.uid].append(own)
        return found

    @cached_property
    def file_types(self) -> dict[str, OwnTypes]:
        """By source of ORC or Parquet files, what asks a file for its types. It remembers schemas, so there is one for the whole run."""
        spark = self.stream.sparkSession
        return {
            node.uid: OwnTypes(spark, node.factory.format)
            for node in self.nodes
            if isinstance(node.factory, Files) and node.factory.format in ("orc", "parquet")
        }

    @cached_property
    def since(self) -> dict[str, str]:
        """By source, for its record, what it says of where it begins."""
        return {node.uid: node.factory.since for node in self.nodes}

    def with_time_columns(self, sources: Mapping[str, SourceState]) -> dict[str, SourceState]:
        """The sources for a record, with the columns that have their event times. A source without event time keeps what its record says."""
        noted = dict(sources)
        for node in self.nodes:
            if node.event_time is not None and node.uid in noted:
                columns = node.rows.names if node.rows is not None else ()
                noted[node.uid] = msgspec.structs.replace(
                    noted[node.uid], time_column=node.event_time, columns=columns
                )
        return noted

    @cached_property
    def cutting(self) -> frozenset[str]:
        """The connectors' sources that may end a batch where more follows."""
        return frozenset(node.uid for node in self.nodes if node.factory.cuts_batches)

    def check(self, record: Record | None) -> None:
        """Raises IncompatibleError for a source that cannot take up what a record says of it."""
        for source in self.layout:
            if record is not None and source.uid in record.sources:
                check_same_source(source, record.sources[source.uid])

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


def open_inputs(spark: SparkSession, sources: Sequence[SourceNode], *, exactly_once: bool) -> OpenInputs:
    """Opens every source and checks its frame."""
    frames: dict[str, DataFrame] = {}
    layout: list[SourceLeaves] = []
    opened: list[LeafDescription] = []
    for node in sources:
        frame, leaves = open_source(spark, node, exactly_once=exactly_once)
        layout.append(shape_of(node.uid, leaves))
        frames[node.uid] = frame
        opened += leaves
    nodes = tuple(sources)
    observed = tuple(map(ObservedSource.of, nodes))
    stream = _unioned([(each.node, each.of_frame(frames[each.node.uid])) for each in observed])
    frames |= {node.uid: frames[node.uid].drop(PARTITION) for node in nodes if node.per_partition}
    # The streams of the union are other objects, in the same order.
    streams = zip(with_places(layout, check_frame(stream, exactly_once)), opened, strict=True)
    leaves_read = tuple(
        replace(leaf, kind=own.kind, topic_ids=own.topic_ids, target=own.target) for leaf, own in streams
    )
    return OpenInputs(nodes, frames, stream, tuple(layout), leaves_read, observed)


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
    if node.factory.offset_kind in CONNECTED:
        leaves = [replace(leaf, kind=node.factory.offset_kind) for leaf in leaves]
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
            f"TBLPROPERTIES ('{CHANGE_FEED}' = 'true'), and run again; what changed before that statement is in no feed, and a job that has read "
            "the table before, but not all of that, has to begin anew then (docs/recipes/changes.md)"
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


def _unioned(sources: Sequence[tuple[SourceNode, DataFrame]]) -> DataFrame:
    if len(sources) == 1:
        return sources[0][1]
    types = [sql_type(frame.schema) for _, frame in sources]
    tagged = []
    for index, (_, frame) in enumerate(sources):
        columns = [
            (F.struct(*(F.col(quoted(c)) for c in frame.columns)) if index == other else F.lit(None))
            .cast(types[other])
            .alias(_column(other))
            for other in range(len(sources))
        ]
        tagged.append(frame.select(F.lit(index).alias(TAG), *columns))
    return unioned(tagged)


def _column(index: int) -> str:
    return f"_sf_s{index}"


def _checked(frame: DataFrame, index: int) -> DataFrame:
    """A source's rows. A row of another source here would be lost without a word."""
    own = f"if({TAG} = {index}, true, cast(raise_error('a batch held rows of another source') as boolean))"
    return frame.where(own).selectExpr(f"{_column(index)}.*")


def with_lateness(node: SourceNode, frame: DataFrame, watermark: int | None) -> DataFrame:
    """Marks every row as it enters: is it at or behind the watermark?"""
    if node.event_time is None:
        return frame
    if watermark is None:
        return frame.withColumn(LATE, F.lit(False))
    at = F.expr(event_time_in_sql(node.event_time))
    # Without a time a row is not late.
    return frame.withColumn(LATE, F.coalesce(is_late(at, F.lit(watermark)), F.lit(False)))


def unioned(frames: Sequence[DataFrame], declared: Collection[str] = ()) -> DataFrame:
    """The rows of all frames, columns matched by name. Rows of a stream without lateness are not late. Beside `declared` columns one that
    not all have, as a table gets one day, is left out."""
    if any(LATE in frame.columns for frame in frames):
        frames = [f if LATE in f.columns else f.withColumn(LATE, F.lit(False)) for f in frames]
    columns = [{name.lower() for name in frame.columns} for frame in frames]
    wanted = {name.lower() for name in declared} or set.union(*columns)
    if lacking := sorted(name for name in wanted if not all(name in names for names in columns)):
        raise UsageError(
            f"union(): not all of its streams have a column {lacking[0]!r}: let the one that lacks it put it out in a transform()"
        )
    shared = set.intersection(*columns)
    frames = [
        frame
        if len(names) == len(shared)
        else frame.select([quoted(name) for name in frame.columns if name.lower() in shared])
        for frame, names in zip(frames, columns, strict=True)
    ]
    out = frames[0]
    for other in frames[1:]:
        out = out.unionByName(other)
    return out

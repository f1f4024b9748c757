"""Spark's streaming sources before a query runs them: what a frame reads, where a source stands, and where its batches would end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stateflow.errors import IncompatibleError, UnavailableError
from stateflow.internals import internal
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.internals.gateway import JAVA_ERRORS, first_line, has_class
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.plans import PlanNode
from stateflow.spark.internals.read_limits import ReadLimit, java_limit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_CATALYST = "org.apache.spark.sql.catalyst"
_CONNECTOR = "org.apache.spark.sql.connector.read.streaming"
_KAFKA = "org.apache.spark.sql.kafka010"
_DELTA = "org.apache.spark.sql.delta"
_FILE_LIST = "allFilesForTriggerAvailableNow"
_OLDER, _NEWER = "StreamingRelation", "StreamingRelationV2"


class PlanRefused(Exception):
    """The source refuses to plan a batch: running it raises its own words."""


@dataclass(frozen=True, slots=True)
class StreamRelation:
    """A stream in a frame's plan, which can be opened on a folder of its own."""

    name: str
    """As Spark shows the source: `FileSource[/in]`, `delta`, `kafka`."""
    format: str
    options: Mapping[str, str]
    """With lower-case names."""
    table: str
    """The catalog's name of a table; empty for any other."""
    reads_micro_batches: bool
    """Whether it is of the newer kind (data source V2), which can tell its initial offset."""
    _java: Any

    @internal(
        f"{_STREAMING}[.runtime].StreamingRelation.dataSource()",
        "org.apache.spark.sql.execution.datasources.DataSource.createSource(String)",
    )
    def _source(self, folder: str) -> Any:
        """The object that plans and reads batches of a source of the older kind."""
        return self._java.dataSource().createSource(folder)

    def delta(self, spark: SparkSession, folder: str) -> DeltaSource:
        return DeltaSource(spark, self._source(folder))

    def files(self, spark: SparkSession, folder: str) -> FileSource:
        return FileSource(spark, self._source(folder))

    @internal(
        f"{_CATALYST}.streaming.StreamingRelationV2.table()",
        "org.apache.spark.sql.connector.read.Scan.toMicroBatchStream(String)",
    )
    def stream(self, spark: SparkSession, folder: str) -> MicroBatchStream:
        """The reader of a stream of the newer kind. Stop it after use."""
        scan = self._java.table().newScanBuilder(self._java.extraOptions()).build()
        return MicroBatchStream(spark, scan.toMicroBatchStream(folder))


@internal(
    f"{_CATALYST}.streaming.StreamingRelationV2.v1Relation()",
    f"{_CATALYST}.streaming.StreamingRelationV2.extraOptions()",
    f"{_CATALYST}.streaming.StreamingRelationV2.sourceName()",
    f"{_CATALYST}.streaming.StreamingRelationV2.identifier()",
    f"{_CATALYST}.streaming.StreamingRelationV2.table()",
    f"{_STREAMING}[.runtime].StreamingRelation.sourceName()",
    "org.apache.spark.sql.execution.datasources.DataSource.options()",
    "org.apache.spark.sql.execution.datasources.DataSource.className()",
    "org.apache.spark.sql.execution.datasources.DataSource.catalogTable()",
)
def relation_of(node: PlanNode) -> StreamRelation | None:
    """The stream that a node of a plan is; None where it is something else."""
    if node.kind not in (_OLDER, _NEWER):
        return None
    java = node._java
    if node.kind == _OLDER:
        return _older(java)
    capabilities = [capability.toString() for capability in java.table().capabilities()]
    if java.v1Relation().isDefined() and "MICRO_BATCH_READ" not in capabilities:
        return _older(java.v1Relation().get())
    options = {entry.getKey().lower(): entry.getValue() for entry in java.extraOptions().entrySet()}
    table = java.identifier().get().toString() if java.identifier().isDefined() else ""
    name = str(java.sourceName())
    return StreamRelation(name, name, options, table, True, java)


def _older(relation: Any) -> StreamRelation:
    source = relation.dataSource()
    pairs = source.options().iterator()
    options: dict[str, str] = {}
    while pairs.hasNext():
        pair = pairs.next()
        options[pair._1().lower()] = pair._2()
    catalog = source.catalogTable()
    table = str(catalog.get().identifier().unquotedString()) if catalog.isDefined() else ""
    return StreamRelation(
        str(relation.sourceName()), str(source.className()), options, table, False, relation
    )


class DeltaSource:
    """Delta's streaming source of a table. Stop it after use."""

    @internal(
        f"{_DELTA}.sources.DeltaSource.tableId()",
        f"{_DELTA}.sources.DeltaSource.deltaLog()",
        f"{_DELTA}.sources.DeltaSource.catalogTableOpt()",
        f"{_DELTA}.DeltaLog.dataPath()",
    )
    def __init__(self, spark: SparkSession, java: Any) -> None:
        """Of the stream that Spark has opened."""
        self._spark = spark
        self._java = java
        opened = java.deltaLog()
        self._catalog_table = java.catalogTableOpt()
        self.log = DeltaLog(spark, str(opened.dataPath().toString()), opened=(opened, self._catalog_table))
        self.table_id = str(java.tableId())
        """The table's own identity: a table that is made anew in its place has another."""
        self._none = java_names(spark).scala.Option.empty()

    @internal(f"{_DELTA}.sources.DeltaSource.getStartingVersion()")
    def starting_version(self) -> int | None:
        """That of its option `startingVersion` or `startingTimestamp`."""
        starting = self._java.getStartingVersion()
        return int(starting.get()) if starting.isDefined() else None

    @internal(f"{_DELTA}.sources.DeltaSource.options()", f"{_DELTA}.DeltaReadOptions.readChangeFeed()")
    def reads_changes(self) -> bool:
        """Whether it reads the table's change feed."""
        return bool(self._java.options().readChangeFeed())

    @internal(f"{_DELTA}.DeltaLog.history()", f"{_DELTA}.DeltaHistoryManager.getEarliestDeltaFile(DeltaLog)")
    def earliest_commit(self) -> int:
        """The version that its log begins at."""
        log = self._java.deltaLog()
        return int(log.history().getEarliestDeltaFile(log))

    @internal(f"{_DELTA}.DeltaHistoryManager.getEarliestRecreatableCommit()")
    def earliest_snapshot(self) -> int:
        """The oldest version whose rows can still be told."""
        return int(self._java.deltaLog().history().getEarliestRecreatableCommit())

    @internal(
        f"{_DELTA}.DeltaHistoryManager.getActiveCommitAtTime(Timestamp, Option, boolean, boolean, boolean)",
        f"{_DELTA}.DeltaHistoryManager$Commit.timestamp()",
    )
    def version_at(self, instant: datetime) -> int | None:
        """The last commit at or before a time; None where there is none."""
        millis = int(instant.timestamp() * 1000)
        history, time = self._java.deltaLog().history(), java_names(self._spark).java.sql.Timestamp(millis)
        # For a time before all commits Delta gives the first. So an error says that it cannot read the log.
        try:
            commit = history.getActiveCommitAtTime(time, self._catalog_table, True, False, True)
        except JAVA_ERRORS as error:
            raise UnavailableError(
                f"Delta does not tell which version {self.log.path} had at {instant} ({first_line(error)}): see whether its log can be read, "
                "or give a version as the bound"
            ) from error
        return int(commit.version()) if commit.timestamp() <= millis else None

    @internal(
        f"{_STREAMING}[.runtime].SerializedOffset(String)",
        f"{_CONNECTOR}.SupportsAdmissionControl.latestOffset(Offset, ReadLimit)",
    )
    def planned_end(self, start: str, limit: ReadLimit | None = None) -> str:
        """Where a batch from `start` on would end under the source's own rate limit and this one. PlanRefused where Delta refuses to
        plan it."""
        try:
            end = self._java.latestOffset(self._offset(start), java_limit(self._spark, self._java, limit))
            return start if end is None else str(end.json())
        except JAVA_ERRORS as error:
            raise PlanRefused from error

    def files_of_next_batch(self, start: str) -> list[str]:
        """The data files of the batch from `start` on. PlanRefused where Delta refuses to plan it."""
        return self.files_of_batch(start, self.planned_end(start))

    @internal(
        f"{_STREAMING}.Source.getBatch(Option, Offset)",
        "org.apache.spark.sql.execution.datasources.LogicalRelation.relation()",
        "org.apache.spark.sql.execution.datasources.HadoopFsRelation.location()",
        "org.apache.spark.sql.execution.datasources.FileIndex.inputFiles()",
    )
    def files_of_batch(self, start: str | None, end: str) -> list[str]:
        """The data files of the batch from `start` (None: the beginning) to `end`. PlanRefused where Delta refuses to plan it."""
        some = (
            self._none if start is None else java_names(self._spark).scala.Option.apply(self._offset(start))
        )
        try:
            frame = self._java.getBatch(some, self._offset(end))
            relations = [
                node._java
                for node in PlanNode(frame.queryExecution().analyzed()).walk()
                if node.kind == "LogicalRelation"
            ]
            return [str(path) for each in relations for path in each.relation().location().inputFiles()]
        except JAVA_ERRORS as error:
            raise PlanRefused from error

    def stop(self) -> None:
        self._java.stop()

    def _offset(self, line: str) -> Any:
        streaming = java_names(self._spark).org.apache.spark.sql.execution.streaming
        # Spark 4.0 has no package `runtime`.
        newer = has_class(self._spark, f"{_RUNTIME}.SerializedOffset")
        return (streaming.runtime if newer else streaming).SerializedOffset(line)


class FileSource:
    """Spark's source of a folder of files, which writes its log of files as batches are planned."""

    def __init__(self, spark: SparkSession, java: Any) -> None:
        self._spark = spark
        self._java = java

    @internal(
        f"{_STREAMING}[.runtime].FileStreamSource.prepareForTriggerAvailableNow()",
        f"{_STREAMING}[.runtime].FileStreamSource.{_FILE_LIST}",
        where_missing="a run with a bound is refused, with the versions that have it",
    )
    def end_at(self, until: datetime) -> None:
        """From here on batches are planned of the files alone that were modified until then.

        For an `availableNow` run the source lists its files once and plans from that list, which is cut at the bound.
        """
        self._java.prepareForTriggerAvailableNow()
        field = next(
            (f for f in self._java.getClass().getDeclaredFields() if f.getName() == _FILE_LIST), None
        )
        if field is None:
            raise IncompatibleError(
                f"this Spark version's file source has no {_FILE_LIST}, the list that a bound cuts: run without a bound"
            )
        field.setAccessible(True)
        field.set(self._java, _up_to(field.get(self._java), int(until.timestamp() * 1000)))

    @internal(
        f"{_STREAMING}[.runtime].FileStreamSource.latestOffset(Offset, ReadLimit)",
        f"{_STREAMING}[.runtime].FileStreamSourceOffset.logOffset()",
    )
    def next_end(self, limit: ReadLimit | None = None) -> tuple[int, str] | None:
        """The log's number and the offset line at which the next batch ends; None where there is nothing more. It writes the log's entry."""
        end = self._java.latestOffset(None, java_limit(self._spark, self._java, limit))
        return None if end is None else (int(end.logOffset()), str(end.json()))


def _up_to(files: Any, bound_ms: int) -> Any:
    """Those `files` that were modified at or before the bound. The list is sorted by time, in either direction."""
    count = files.size()
    if count == 0:
        return files
    newest_first = files.apply(0).timestamp() > files.apply(count - 1).timestamp()
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if (files.apply(middle).timestamp() <= bound_ms) != newest_first:
            low = middle + 1
        else:
            high = middle
    return files.drop(low) if newest_first else files.take(low)


class MicroBatchStream:
    """A stream of the newer kind, such as Kafka's. Stop it after use."""

    def __init__(self, spark: SparkSession, java: Any) -> None:
        self._spark = spark
        self._java = java

    @internal(f"{_CONNECTOR}.SparkDataStream.initialOffset()")
    def initial(self) -> str:
        """Where it begins, as an offset line."""
        return str(self._java.initialOffset().json())

    @internal(
        f"{_CONNECTOR}.SparkDataStream.deserializeOffset(String)",
        f"{_CONNECTOR}.SupportsAdmissionControl.latestOffset(Offset, ReadLimit)",
    )
    def planned_end(self, start: str, limit: ReadLimit | None = None) -> str:
        """Where a batch from `start` on would end under the source's own rate limit and this one."""
        offset = self._java.deserializeOffset(start)
        end = self._java.latestOffset(offset, java_limit(self._spark, self._java, limit))
        return start if end is None else str(end.json())

    @internal(
        f"{_KAFKA}.KafkaMicroBatchStream.kafkaOffsetReader()",
        f"{_KAFKA}.KafkaOffsetReader.fetchGlobalTimestampBasedOffsets(long, boolean, Enumeration$Value)",
    )
    def kafka_after(self, millis: int) -> str:
        """Per partition of Kafka the first record that is not older, or its end, as an offset line."""
        # The last argument matters only for a *start* that matches no record. An end becomes the topic's end then.
        reader = self._java.kafkaOffsetReader()
        return str(reader.fetchGlobalTimestampBasedOffsets(millis, False, None).json())

    @internal(
        f"{_KAFKA}.KafkaOffsetReader.fetchEarliestOffsets()",
        f"{_KAFKA}.KafkaOffsetReader.fetchLatestOffsets(Option)",
        f"{_KAFKA}.KafkaSourceOffset(Map)",
    )
    def kafka_range(self) -> tuple[str, str]:
        """Per partition of Kafka its first record and its end, as offset lines."""
        reader = self._java.kafkaOffsetReader()
        names = java_names(self._spark)
        line = names.org.apache.spark.sql.kafka010.KafkaSourceOffset
        first, end = reader.fetchEarliestOffsets(), reader.fetchLatestOffsets(names.scala.Option.empty())
        return str(line(first).json()), str(line(end).json())

    def stop(self) -> None:
        self._java.stop()

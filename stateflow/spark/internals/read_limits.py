"""How much a batch may take of a stream: limits of this library's beside the ones that the stream's options set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stateflow.internals import internal
from stateflow.spark.internals.gateway import java_array
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.plans import PlanNode
from stateflow.spark.internals.queries import running_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXECUTION = "org.apache.spark.sql.execution.streaming"
_CONNECTOR = "org.apache.spark.sql.connector.read.streaming"
_DELTA = "org.apache.spark.sql.delta.sources"
_MOST_FILES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """The most that a batch takes of one stream: messages of Kafka, bytes or files of a table or a folder."""

    unit: Literal["rows", "bytes", "files"]
    most: int


Limited = Callable[[], ReadLimit | None]
"""How much of a stream the next batch may take; asked anew for each batch."""


def unlimited() -> ReadLimit | None:
    return None


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a batch takes of one stream of files."""

    bytes: int
    files: int


@internal(
    f"{_CONNECTOR}.SupportsAdmissionControl.getDefaultReadLimit()",
    f"{_CONNECTOR}.ReadLimit.maxRows(long)",
    f"{_CONNECTOR}.ReadLimit.maxBytes(long)",
    f"{_CONNECTOR}.ReadLimit.maxFiles(int)",
    f"{_CONNECTOR}.ReadLimit.compositeLimit(ReadLimit[])",
    f"{_CONNECTOR}.CompositeReadLimit.getReadLimits()",
    f"{_DELTA}.ReadMaxBytes(long)",
    f"{_DELTA}.CompositeLimit(ReadMaxBytes, ReadMaxFiles, ReadMinFiles)",
    f"{_DELTA}.CompositeLimit.apply$default$3()",
    seen_in=("pyspark 4.2.0",),
)
def java_limit(spark: SparkSession, source: Any, limit: ReadLimit | None) -> Any:
    """What a source's `latestOffset` takes: its own limits, and `limit` as well."""
    own = source.getDefaultReadLimit()
    if limit is None:
        return own
    names = java_names(spark)
    made = names.org.apache.spark.sql.connector.read.streaming.ReadLimit
    parts = list(own.getReadLimits()) if _kind(own) == "CompositeReadLimit" else [own]
    if limit.unit == "rows":
        most = [limit.most, *(int(part.maxRows()) for part in parts if _kind(part) == "ReadMaxRows")]
        least = [part for part in parts if _kind(part) == "ReadMinRows"]
        rows = made.maxRows(min(most))
        return made.compositeLimit(java_array(spark, made, *least, rows)) if least else rows
    if limit.unit == "files":
        own_files = [int(part.maxFiles()) for part in parts if _kind(part) == "ReadMaxFiles"]
        return made.maxFiles(min(limit.most, _MOST_FILES, *own_files))
    if _is_delta(source):
        return _delta_limit(names, made, own, limit.most)
    own_bytes = [int(part.maxBytes()) for part in parts if _kind(part) == "ReadMaxBytes"]
    return made.maxBytes(min(limit.most, *own_bytes) if own_bytes else limit.most)


def _delta_limit(names: Any, made: Any, own: Any, most: int) -> Any:
    """Delta takes no limits of Spark's in bytes, but has kinds of its own."""
    delta = names.org.apache.spark.sql.delta.sources
    files, least = made.maxFiles(_MOST_FILES), getattr(delta.CompositeLimit, "apply$default$3")()
    if _kind(own) == "ReadMaxFiles":
        files = own
    elif _kind(own) == "ReadMaxBytes":
        most = min(most, int(own.maxBytes()))
    elif _kind(own) == "CompositeLimit":
        most, files, least = min(most, int(own.bytes().maxBytes())), own.maxFiles(), own.minFiles()
    return delta.CompositeLimit(delta.ReadMaxBytes(most), files, least)


def _kind(java: Any) -> str:
    return str(java.getClass().getSimpleName())


def _is_delta(source: Any) -> bool:
    return str(source.getClass().getName()).startswith("org.apache.spark.sql.delta.")


@internal(
    f"{_EXECUTION}[.runtime].StreamExecution.sources()",
    f"{_EXECUTION}[.runtime].StreamExecution.uniqueSources()",
    f"{_EXECUTION}[.runtime].StreamExecution.uniqueSources_$eq(Map)",
    seen_in=("pyspark 4.2.0",),
)
def limit_next_batch(
    spark: SparkSession, limits: Sequence[ReadLimit | None], query: str | None = None
) -> None:
    """Limits what the next batch of a query takes of its streams, in the plan's order: of the running one, inside its batch, or of that
    with this id.

    Spark looks the limits up in this map each time when it plans a batch, in the thread that runs the batches.
    """
    execution = running_query(spark, query)
    if execution is None:
        return
    sources, known = execution.sources(), execution.uniqueSources()
    for number, limit in enumerate(limits):
        source = sources.apply(number)
        if limit is not None and known.contains(source):
            known = known.updated(source, java_limit(spark, source, limit))
    getattr(execution, "uniqueSources_$eq")(known)


@internal(
    f"{_EXECUTION}[.runtime].StreamExecution.sources()",
    f"{_EXECUTION}.runtime.MicroBatchExecution.getLatestExecutionContext()",
    f"{_EXECUTION}.runtime.StreamExecutionContext.newData()",
    "org.apache.spark.sql.execution.datasources.LogicalRelation.relation()",
    "org.apache.spark.sql.execution.datasources.HadoopFsRelation.location()",
    "org.apache.spark.sql.execution.datasources.FileIndex.inputFiles()",
    "org.apache.spark.sql.execution.datasources.FileIndex.sizeInBytes()",
    seen_in=("pyspark 4.2.0",),
)
def admitted(spark: SparkSession) -> list[Admitted]:
    """What the running batch takes of each stream of files, in the plan's order; nothing for any other stream."""
    execution = running_query(spark)
    if execution is None:
        return []
    sources, plans = execution.sources(), execution.getLatestExecutionContext().newData()
    found = []
    for number in range(sources.size()):
        plan = plans.get(sources.apply(number))
        nodes = PlanNode(plan.get()).walk() if plan.isDefined() else ()
        files = [node._java.relation().location() for node in nodes if node.kind == "LogicalRelation"]
        found.append(
            Admitted(
                sum(int(each.sizeInBytes()) for each in files),
                sum(len(each.inputFiles()) for each in files),
            )
        )
    return found

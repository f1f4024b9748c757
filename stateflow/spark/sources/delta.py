"""Positions of a Delta source: where it begins, where its batches end, and whether the table still has them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError, UsageError
from stateflow.spark.sources.delta_log import local_log
from stateflow.spark.sources.delta_offset import BEGINNING, DeltaOffset
from stateflow.spark.sources.leaves import plan_nodes

_DELTA_ERRORS = (Py4JJavaError, CapturedException)
"""What a call into Delta raises. PySpark translates some of Delta's exceptions."""


def start_offset(spark: SparkSession, source: Any, until: int | datetime | None = None) -> DeltaOffset | None:
    """The source's first position as a version: that of its starting option, or else the table's first snapshot.

    With `until` the first snapshot is the table as of that bound. None when there was no table at that time. A table whose
    few commits only append begins at its first commit: the rows are the same, and Delta sorts no snapshot for them, which
    takes longer than the rest of a small first batch.
    """
    starting = source.getStartingVersion()
    if starting.isDefined():
        return DeltaOffset(table_id(source), int(starting.get()))
    version = latest_version(spark, source) if until is None else bound_version(spark, source, until)
    if version < 0:
        return None
    if until is not None and version < (earliest := _earliest(source)):
        raise UsageError(
            f"the log of the Delta table {table_path(source)} now begins at version {earliest}, which is later than "
            f"{until}: choose a later bound"
        )
    if _replays(source, version):
        return DeltaOffset(table_id(source), 0)
    return DeltaOffset(table_id(source), version, snapshot=True)


def _replays(source: Any, version: int) -> bool:
    """Whether the table's commits give the rows of its snapshot. A table of another file system is not looked at."""
    log = local_log(table_path(source))
    if log is None or log.table != table_id(source):
        return False
    # A change feed tells each row's version, which would be another one.
    return not source.options().readChangeFeed() and log.only_appends(version)


def lies_behind(spark: SparkSession, source: Any, start: DeltaOffset, until: int | datetime) -> bool:
    """Whether the source has been read beyond `until`."""
    return start.position > (bound_version(spark, source, until) + 1, BEGINNING)


def bound_version(spark: SparkSession, source: Any, until: int | datetime) -> int:
    """The last version that `until` includes: `until` itself, or the last commit at or before that time.

    For a time before the whole log it is the version before the log's first, so -1 for a table that is younger.
    """
    latest = latest_version(spark, source)
    if not isinstance(until, datetime):
        if until > latest:
            raise UsageError(
                f"the Delta table {table_path(source)} has no version {until} yet, its newest is {latest}: "
                f"choose a version up to {latest}, or run without a bound"
            )
        return until
    if until.tzinfo is None:
        raise UsageError(
            f"the bound {until.isoformat()} has no time zone: write it as {until.isoformat()}+00:00"
        )
    jvm = spark._jvm
    assert jvm is not None
    instant = jvm.java.sql.Timestamp(int(until.timestamp() * 1000))
    try:
        commit = source.deltaLog().history().getActiveCommitAtTime(instant, _none(spark), True, False, False)
    except _DELTA_ERRORS:  # no commit at or before that time
        return _earliest(source) - 1
    return int(commit.version())


def end_offsets(
    spark: SparkSession, source: Any, start: DeltaOffset, until: int | datetime
) -> list[DeltaOffset]:
    """The end of each batch when a run reads the source from `start` through `until`.

    The source plans the batches under its own rate limit. So they are those of a run without a bound, except that the
    last one is cut.
    """
    target = DeltaOffset(table_id(source), bound_version(spark, source, until) + 1)
    jvm = spark._jvm
    assert jvm is not None
    limit = source.getDefaultReadLimit()
    ends: list[DeltaOffset] = []
    while start.position < target.position:
        serialized = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset(start.line())
        try:
            end = DeltaOffset.parse(source.latestOffset(serialized, limit).json())
        except _DELTA_ERRORS:
            # Planning reads one commit ahead and refuses a commit that deletes rows, even behind the bound. Then less
            # than one batch is left. If the commit lies before the bound, running the batch raises the error.
            end = target
        start = end if start.position < end.position < target.position else target
        ends.append(start)
    return ends


def check_offset(spark: SparkSession, source: Any, uid: str, offset: DeltaOffset) -> None:
    """Refuses an offset from which the table can no longer be read."""
    path = table_path(source)
    if offset.table != table_id(source):
        raise DisagreementError(
            f"source {uid!r} is recorded at version {offset.version} of Delta table {offset.table}, but {path} is now "
            f"table {table_id(source)}: it was recreated; bring the old table back, or give the source a new uid"
        )
    latest = latest_version(spark, source)
    if offset.version > latest + 1:
        raise DisagreementError(
            f"source {uid!r} has read the Delta table {path} up to version {offset.version - 1}, but its "
            f"newest version is {latest}: an older copy was put in its place; bring the newer one back, "
            "or restore the job to a checkpoint of that time"
        )
    history = source.deltaLog().history()
    if offset.snapshot:
        earliest = int(history.getEarliestRecreatableCommit())
    else:
        earliest = _earliest(source)
    if offset.version <= latest and offset.version < earliest:
        raise DisagreementError(
            f"source {uid!r} has to go on at version {offset.version} of the Delta table {path}, but its log "
            f"now starts at version {earliest}: rows are lost between them; restore the job to a later "
            "checkpoint, or give the source a new uid to read the table anew"
        )


def pending_files(spark: SparkSession, source: Any, offset: DeltaOffset) -> list[str]:
    """The data files of the next batch after `offset`.

    Empty when Spark refuses the range: the run will raise Spark's own message.
    """
    target = DeltaOffset(offset.table, latest_version(spark, source) + 1)
    if offset.position >= target.position:
        return []
    jvm = spark._jvm
    assert jvm is not None
    serialized = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset
    try:
        end = source.latestOffset(serialized(offset.line()), source.getDefaultReadLimit())
        frame = source.getBatch(jvm.scala.Option.apply(serialized(offset.line())), serialized(end.json()))
        relations = [node for node in plan_nodes(frame.queryExecution().analyzed()) if _is_relation(node)]
        return [str(path) for node in relations for path in node.relation().location().inputFiles()]
    except _DELTA_ERRORS:
        return []


def latest_version(spark: SparkSession, source: Any) -> int:
    return int(source.deltaLog().update(False, _none(spark), _none(spark)).version())


def table_id(source: Any) -> str:
    return str(source.tableId())


def table_path(source: Any) -> str:
    return str(source.deltaLog().dataPath().toString())


def _earliest(source: Any) -> int:
    log = source.deltaLog()
    return int(log.history().getEarliestDeltaFile(log))


def _is_relation(node: Any) -> bool:
    return bool(node.getClass().getSimpleName() == "LogicalRelation")


def _none(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm.scala.Option.empty()

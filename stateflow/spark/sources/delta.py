"""Positions in a Delta table as its streaming source writes them.

An offset names the table, a version and an index within it. Index -1 is the very beginning of a version, so
"version 7 has been read completely" is version 8 at index -1, whether version 8 exists yet or not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError, UsageError
from stateflow.spark.sources.leaves import plan_nodes

_BEGINNING = -1
_Refused = (Py4JJavaError, CapturedException)
"""What a call into Delta raises: Spark's Python side translates the exceptions it knows."""


@dataclass(frozen=True, slots=True)
class DeltaOffset:
    """What Delta's source calls DeltaSourceOffset, in its serialised form."""

    table: str
    version: int
    index: int = _BEGINNING
    snapshot: bool = False
    """Inside the first snapshot, not in the changes of `version`."""

    @classmethod
    def parse(cls, line: str) -> DeltaOffset:
        offset = json.loads(line)
        return cls(
            offset["reservoirId"],
            int(offset["reservoirVersion"]),
            int(offset["index"]),
            bool(offset["isStartingVersion"]),
        )

    def line(self) -> str:
        return json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": self.table,
                "reservoirVersion": self.version,
                "index": self.index,
                "isStartingVersion": self.snapshot,
            },
            separators=(",", ":"),
        )

    @property
    def place(self) -> tuple[int, int]:
        return self.version, self.index


def start_offset(spark: SparkSession, source: Any, until: int | datetime | None = None) -> DeltaOffset:
    """The source's first position, made concrete: `latest` and timestamps become a version, none a snapshot.

    With `until` the first snapshot is the table as of that bound.
    """
    starting = source.getStartingVersion()
    if starting.isDefined():
        return DeltaOffset(table_id(source), int(starting.get()))
    version = latest_version(spark, source) if until is None else bound_version(spark, source, until)
    return DeltaOffset(table_id(source), version, snapshot=True)


def bound_version(spark: SparkSession, source: Any, until: int | datetime) -> int:
    """The last version that `until` includes: itself, or the last commit at or before the time."""
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
    except _Refused as error:
        raise UsageError(
            f"the Delta table {table_path(source)} has no commit at or before {until.isoformat()}: "
            f"choose a later bound ({_reason(error)})"
        ) from error
    return int(commit.version())


def end_offsets(
    spark: SparkSession, source: Any, start: DeltaOffset, until: int | datetime
) -> list[DeltaOffset]:
    """Where each batch ends when the source is read from `start` up to and with `until`.

    The source plans them itself, under its own rate limit, so the batches are those of a run without a
    bound; the last one is cut.
    """
    target = DeltaOffset(table_id(source), bound_version(spark, source, until) + 1)
    jvm = spark._jvm
    assert jvm is not None
    limit = source.getDefaultReadLimit()
    ends: list[DeltaOffset] = []
    while start.place < target.place:
        serialized = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset(start.line())
        try:
            planned = DeltaOffset.parse(source.latestOffset(serialized, limit).json())
        except _Refused:
            # Planning reads one commit ahead and refuses it when it deletes rows, even if that commit lies
            # behind the bound. What is left then is less than one batch; if the commit lies before the bound,
            # running the batch says so.
            planned = target
        start = planned if start.place < planned.place < target.place else target
        ends.append(start)
    return ends


def check_offset(spark: SparkSession, source: Any, uid: str, offset: DeltaOffset) -> None:
    """Refuse an offset from which the table can no longer be read."""
    path = table_path(source)
    if offset.table != table_id(source):
        raise DisagreementError(
            f"source {uid!r} is recorded at version {offset.version} of Delta table {offset.table}, but "
            f"{path} "
            f"is now table {table_id(source)}: it was recreated; bring the old table back, or give the "
            "source "
            "a new uid"
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
        earliest = int(history.getEarliestDeltaFile(source.deltaLog()))
    if offset.version <= latest and offset.version < earliest:
        raise DisagreementError(
            f"source {uid!r} has to go on at version {offset.version} of the Delta table {path}, but its log "
            f"now starts at version {earliest}: rows are lost between them; restore the job to a later "
            "checkpoint, or give the source a new uid to read the table anew"
        )


def pending_files(spark: SparkSession, source: Any, offset: DeltaOffset) -> list[str]:
    """The data files of the next batch after `offset`.

    Empty when Spark itself refuses the range: its own message says why when the run starts.
    """
    target = DeltaOffset(offset.table, latest_version(spark, source) + 1)
    if offset.place >= target.place:
        return []
    jvm = spark._jvm
    assert jvm is not None
    serialized = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset
    try:
        end = source.latestOffset(serialized(offset.line()), source.getDefaultReadLimit())
        frame = source.getBatch(jvm.scala.Option.apply(serialized(offset.line())), serialized(end.json()))
        relations = [node for node in plan_nodes(frame.queryExecution().analyzed()) if _is_relation(node)]
        return [str(path) for node in relations for path in node.relation().location().inputFiles()]
    except _Refused:
        return []


def latest_version(spark: SparkSession, source: Any) -> int:
    return int(source.deltaLog().update(False, _none(spark), _none(spark)).version())


def table_id(source: Any) -> str:
    return str(source.tableId())


def table_path(source: Any) -> str:
    return str(source.deltaLog().dataPath().toString())


def _is_relation(node: Any) -> bool:
    return bool(node.getClass().getSimpleName() == "LogicalRelation")


def _none(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm.scala.Option.empty()


def _reason(error: Py4JJavaError | CapturedException) -> str:
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).split("\n")[0]

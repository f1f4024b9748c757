"""Appends to a Delta table in two phases: it writes data files, and commits them after the decision."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.errors import DisagreementError, IncompatibleError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.delta_log import DeltaLog, TableShape, Transaction
from stateflow.spark.internals.gateway import failure_classes
from stateflow.spark.sinks.base import (
    BatchFunction,
    Committed,
    DeliveryMode,
    decide_undecided,
    disagreement,
    is_committed,
)
from stateflow.spark.sinks.fit import cast_to, check_fit, column_marks
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

KIND = "delta_append"
ATTEMPTS = 10
CREATING = 5
MOST_REMEMBERED = 64
CREATED_WITH = {"delta.checkpointInterval": "100"}
"""Properties of tables that a run creates; the caller's own win. By default every tenth commit also writes Delta's own
checkpoint: of micro-batches of half a second, each tenth would take two."""
_unvacuumed: OrderedDict[str, None] = OrderedDict()
"""The first data file of each slot that this process prepared and has not committed: VACUUM spares files so young."""


class DeltaAppend:
    """The sink `stream.append(uid, delta(path))`."""

    kind = KIND

    def __init__(self, table: DeltaTable, delivery: DeliveryMode = "exactly_once") -> None:
        self.table = table
        self.delivery: DeliveryMode = delivery

    def open(self, spark: SparkSession, schema: StructType) -> None:
        shape = open_table(spark, self.table, schema, self.delivery)
        check_fit(schema, shape, str(self.table), self.table.path)

    def prepare(self, frame: DataFrame, at: SinkSlot, prev: int | None, stager: Stager) -> Prepared:
        txn = DeltaLog(frame.sparkSession, self.table.path).begin()
        shape = txn.shape()
        exactly_once = self.delivery == "exactly_once"
        if exactly_once:
            refuse_disagreement(txn, at, str(self.table), prev)
        check_fit(frame.schema, shape, str(self.table), self.table.path)
        actions = txn.write(cast_to(frame, shape))
        adds = added(actions)
        if adds:
            _unvacuumed[adds[0]["path"]] = None
            while len(_unvacuumed) > MOST_REMEMBERED:
                _unvacuumed.popitem(last=False)
        return Prepared(
            kind=KIND,
            target=self.table.path,
            prev=prev,
            payload={
                "actions": actions,
                "table": shape.id,
                "fingerprint": shape.fingerprint,
                "partition_by": list(shape.partition_by),
                "columns": frame.columns,
                "marks": column_marks(shape, frame.columns),
                "exactly_once": exactly_once,
            },
            rows=sum(rows_of(add) for add in adds),
        )


def commit(
    spark: SparkSession,
    prepared: Prepared,
    at: SinkSlot,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stager: Stager,
) -> Committed:
    exactly_once = bool(prepared.payload["exactly_once"])
    adds = added(prepared.payload["actions"])
    if not adds:
        # Sound without a fence: a slow run with a lower slot finds that recovery has committed that slot.
        return "none"
    recent = adds[0]["path"] in _unvacuumed
    log = DeltaLog(spark, prepared.target)
    for attempt in range(ATTEMPTS):
        txn = log.begin()
        # Asked before anything else: it makes a racing commit of the same slot fail this transaction.
        if exactly_once and is_committed(txn, prepared, at, still_owner):
            return "already"
        actions = current_actions(log, txn, prepared, at, adds, recent)
        if exactly_once:
            actions += fence(log, at)
        try:
            now_added = added(actions)
            metrics = {
                "numAddedFiles": len(now_added),
                "numRemovedFiles": 0,
                "numOutputRows": sum(rows_of(add) for add in now_added),
                "numOutputBytes": sum(int(add["size"]) for add in now_added),
            }
            txn.commit(actions, at.app_id, at.slot, metrics)
        except Exception as error:
            # Another writer committed in between, perhaps this very slot: read the table and decide again.
            if not conflicted(error) or attempt == ATTEMPTS - 1:
                raise
            still_owner()
            continue
        _unvacuumed.pop(adds[0]["path"], None)
        return "committed"
    raise AssertionError("unreachable: the last attempt returns or raises")


def current_actions(
    log: DeltaLog,
    txn: Transaction,
    prepared: Prepared,
    at: SinkSlot,
    adds: Sequence[dict[str, Any]],
    recent: bool,
) -> list[str]:
    """The recorded actions, if the table has not changed; else the same rows written again, if they still fit."""
    payload, target = prepared.payload, f"Delta table {prepared.target}"
    shape = txn.shape()
    if shape.id != payload["table"]:
        raise stuck(at, f"{target} was recreated since the rows of record {at.slot} were prepared for it")
    if not recent and (missing := log.missing(adds)):
        raise stuck(
            at,
            f"{len(missing)} of {len(adds)} data files that record {at.slot} prepared in {target} are gone "
            f"({missing[0]}; was it vacuumed with too short a retention?)",
        )
    if shape.fingerprint == payload["fingerprint"]:
        return list(payload["actions"])
    marks = payload["marks"]
    changed = [c for c in payload["columns"] if column_marks(shape, [c]).get(c.lower()) != marks[c.lower()]]
    if changed or list(shape.partition_by) != payload["partition_by"]:
        what = f"columns {', '.join(changed)}" if changed else "the partitioning"
        raise stuck(at, f"{what} of {target} changed since the rows of record {at.slot} were prepared for it")
    try:
        frame = txn.reread(payload["actions"]).select(*map(quoted, payload["columns"]))
        check_fit(frame.schema, shape, target, prepared.target)
        return txn.write(frame)
    except IncompatibleError as error:
        raise stuck(at, str(error)) from error
    except Exception as error:
        if any("InvariantViolation" in name for name in failure_classes(error)):
            raise stuck(
                at, f"rows prepared for record {at.slot} break a constraint that {target} has got since"
            ) from error
        raise


def open_table(
    spark: SparkSession, table: DeltaTable, schema: StructType, delivery: DeliveryMode
) -> TableShape:
    """The table's shape; creates the table when there is none."""
    check_log_store(spark, table.path, delivery)
    log = DeltaLog(spark, table.path)
    if not log.exists():
        create_table(spark, table, schema)
    shape = log.begin().shape()
    if table.partition_by and shape.partition_by != table.partition_by:
        raise IncompatibleError(
            f"{table} is partitioned by {list(shape.partition_by)}, not by {list(table.partition_by)}: "
            "leave partition_by out or write to another path"
        )
    return shape


def create_table(spark: SparkSession, table: DeltaTable, schema: StructType) -> None:
    from delta.tables import DeltaTable as Builder

    unknown = [c for c in table.partition_by if c not in schema.names]
    if unknown:
        raise UsageError(
            f"partition_by of {table} names {unknown}, which are not among its columns {schema.names}"
        )
    builder = Builder.createIfNotExists(spark).location(table.path)
    for field in schema.fields:
        builder = builder.addColumn(field.name, field.dataType, nullable=True)
    if table.partition_by:
        builder = builder.partitionedBy(*table.partition_by)
    for name, value in {**CREATED_WITH, **table.properties}.items():
        builder = builder.property(name, value)
    for attempt in range(1, CREATING + 1):
        try:
            builder.execute()
            return
        except Exception:
            # Two first runs create the table at once. While one is at it, Delta says both that there is a table and that
            # there is none.
            if DeltaLog(spark, table.path).exists():
                return
            if attempt == CREATING:
                raise
            time.sleep(0.3 * attempt)


def check_log_store(spark: SparkSession, path: str, delivery: DeliveryMode) -> None:
    """Delta on S3 does not exclude a second driver by itself: two drivers would overwrite each other's commits."""
    scheme = path.partition("://")[0] if "://" in path else ""
    if delivery == "at_least_once" or scheme not in ("s3", "s3a", "s3n"):
        return
    configured = spark.conf.get(f"spark.delta.logStore.{scheme}.impl", "") or spark.conf.get(
        "spark.delta.logStore.class", ""
    )
    if not configured or configured.endswith("S3SingleDriverLogStore"):
        raise UsageError(
            f"exactly-once output into {path} needs a log store that several drivers can share: set "
            f"spark.delta.logStore.{scheme}.impl=io.delta.storage.S3DynamoDBLogStore "
            "(package delta-storage-s3-dynamodb) or use delivery='at_least_once'"
        )


def refuse_disagreement(txn: Transaction, at: SinkSlot, target: str, prev: int | None) -> None:
    """`prepare` calls it: a disagreement that shows only after the decision would block the job."""
    version = txn.slot_of(at.app_id)
    if decide_undecided(version, prev, at.slot, at.late) == "disagree":
        raise disagreement(at, target, version, prev)


def fence(log: DeltaLog, at: SinkSlot) -> list[str]:
    """The actions that mark a slot as the last one committed, and say by which record."""
    marks = {at.app_id: at.slot, at.mark_id: at.mark}
    return [
        json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": log.now()}})
        for app_id, version in marks.items()
    ]


def added(actions: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(action["add"]) for action in map(json.loads, actions) if "add" in action]


def rows_of(add: Mapping[str, Any]) -> int:
    return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))


def conflicted(error: BaseException) -> bool:
    names = failure_classes(error)
    return any(("Concurrent" in name or "ChangedException" in name) and "delta" in name for name in names)


def stuck(at: SinkSlot, what: str) -> DisagreementError:
    return DisagreementError(
        f"{what}; put the table back, or give up this output of {at} with "
        f"`stateflow abandon {at.job_name} {at.slot}`"
    )

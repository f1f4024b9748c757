"""Appends to a Delta table in two phases: data files first, after the decision the commit that shows them."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.errors import DisagreementError, IncompatibleError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.tables import DeltaTable
from stateflow.spark.sinks.base import BatchFunction, Committed, Delivery, decide, disagreement
from stateflow.spark.sinks.delta_log import DeltaLog, TableShape, Transaction, failure_classes
from stateflow.spark.sinks.fit import check_fit, column_marks, fitted
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

KIND = "delta_append"
ATTEMPTS = 10
CREATING = 5
FRESH_KEPT = 64
CREATED_WITH = {"delta.checkpointInterval": "100"}
"""Of tables that a run creates. Delta's own checkpoint is written inside a commit, by default inside every tenth: of
micro-batches of half a second each tenth would take two. What the caller says of the table wins."""
_fresh: OrderedDict[str, None] = OrderedDict()
"""First data file of what this process prepared and has not committed: VACUUM cannot have reached it yet."""


class DeltaAppend:
    """The sink `stream.append(uid, delta(path))`."""

    kind = KIND

    def __init__(self, table: DeltaTable, delivery: Delivery = "exactly_once") -> None:
        self.table = table
        self.delivery: Delivery = delivery

    def open(self, spark: SparkSession, schema: StructType) -> None:
        shape = open_table(spark, self.table, schema, self.delivery)
        check_fit(schema, shape, str(self.table))

    def prepare(self, frame: DataFrame, place: SinkSlot, prev: int | None, stage: Stager) -> Prepared:
        txn = DeltaLog(frame.sparkSession, self.table.path).begin()
        shape = txn.shape()
        exactly_once = self.delivery == "exactly_once"
        if exactly_once:
            refuse_disagreement(txn, place, str(self.table), prev)
        check_fit(frame.schema, shape, str(self.table))
        actions = txn.write(fitted(frame, shape))
        adds = added(actions)
        if adds:
            _fresh[adds[0]["path"]] = None
            while len(_fresh) > FRESH_KEPT:
                _fresh.popitem(last=False)
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


def carry_out(
    spark: SparkSession,
    prepared: Prepared,
    place: SinkSlot,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stage: Stager,
) -> Committed:
    exactly_once = bool(prepared.payload["exactly_once"])
    adds = added(prepared.payload["actions"])
    if not adds:
        # Sound without a fence: who comes late with a lower slot finds that recovery has committed it.
        return "none"
    fresh = adds[0]["path"] in _fresh
    log = DeltaLog(spark, prepared.target)
    for attempt in range(ATTEMPTS):
        txn = log.begin()
        # Read before anything else: it makes a racing commit of the same slot fail this transaction.
        version = txn.slot_of(place.app_id) if exactly_once else prepared.prev
        verdict = decide(version, prepared.prev, place.slot, place.late)
        if verdict == "already":
            return "already"
        if verdict == "disagree":
            raise disagreement(place, f"Delta table {prepared.target}", version, prepared.prev)
        actions = current_actions(log, txn, prepared, place, adds, fresh)
        if exactly_once:
            actions.append(fence(log, place))
        try:
            now_added = added(actions)
            metrics = {
                "numAddedFiles": len(now_added),
                "numRemovedFiles": 0,
                "numOutputRows": sum(rows_of(add) for add in now_added),
                "numOutputBytes": sum(int(add["size"]) for add in now_added),
            }
            txn.commit(actions, place.app_id, place.slot, metrics)
        except Exception as error:
            # Somebody else committed in between, perhaps this very slot: look again and decide again.
            if not conflicted(error) or attempt == ATTEMPTS - 1:
                raise
            still_owner()
            continue
        _fresh.pop(adds[0]["path"], None)
        return "committed"
    raise AssertionError("unreachable: the last attempt returns or raises")


def current_actions(
    log: DeltaLog,
    txn: Transaction,
    prepared: Prepared,
    place: SinkSlot,
    adds: Sequence[dict[str, Any]],
    fresh: bool,
) -> list[str]:
    """The recorded actions if the table is as it was; the same rows written anew if they still fit."""
    payload, target = prepared.payload, f"Delta table {prepared.target}"
    shape = txn.shape()
    if shape.id != payload["table"]:
        raise stuck(
            place, f"{target} was recreated since the rows of record {place.slot} were prepared for it"
        )
    if not fresh and (gone := log.missing(adds)):
        raise stuck(
            place,
            f"{len(gone)} of {len(adds)} data files that record {place.slot} prepared in {target} are gone "
            f"({gone[0]}; was it vacuumed with too short a retention?)",
        )
    if shape.fingerprint == payload["fingerprint"]:
        return list(payload["actions"])
    marks = payload["marks"]
    changed = [c for c in payload["columns"] if column_marks(shape, [c]).get(c.lower()) != marks[c.lower()]]
    if changed or list(shape.partition_by) != payload["partition_by"]:
        what = f"columns {', '.join(changed)}" if changed else "the partitioning"
        raise stuck(
            place, f"{what} of {target} changed since the rows of record {place.slot} were prepared for it"
        )
    try:
        frame = txn.reread(payload["actions"], payload["columns"])
        check_fit(frame.schema, shape, target)
        return txn.write(frame)
    except IncompatibleError as error:
        raise stuck(place, str(error)) from error
    except Exception as error:
        if any("InvariantViolation" in name for name in failure_classes(error)):
            raise stuck(
                place, f"rows prepared for record {place.slot} break a constraint that {target} has got since"
            ) from error
        raise


def open_table(spark: SparkSession, table: DeltaTable, schema: StructType, delivery: Delivery) -> TableShape:
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
            # Two first runs at once: of one that has only begun Delta says that there is a table, and that there is none.
            if DeltaLog(spark, table.path).exists():
                return
            if attempt == CREATING:
                raise
            time.sleep(0.3 * attempt)


def check_log_store(spark: SparkSession, path: str, delivery: Delivery) -> None:
    """Delta on S3 excludes no second driver by itself: two would overwrite each other's commits."""
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


def refuse_disagreement(txn: Transaction, place: SinkSlot, target: str, prev: int | None) -> None:
    """Finds in `prepare` what would block the job once the record is decided."""
    version = txn.slot_of(place.app_id)
    if decide(version, prev, place.slot, place.late) == "disagree":
        raise disagreement(place, target, version, prev)


def fence(log: DeltaLog, place: SinkSlot) -> str:
    """The action that makes a slot the last one committed."""
    return json.dumps({"txn": {"appId": place.app_id, "version": place.slot, "lastUpdated": log.now()}})


def added(actions: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(found["add"]) for found in map(json.loads, actions) if "add" in found]


def rows_of(add: Mapping[str, Any]) -> int:
    return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))


def conflicted(error: BaseException) -> bool:
    names = failure_classes(error)
    return any(("Concurrent" in name or "ChangedException" in name) and "delta" in name for name in names)


def stuck(place: SinkSlot, what: str) -> DisagreementError:
    return DisagreementError(
        f"{what}; put the table back, or give up this output of {place} with "
        f"`stateflow abandon {place.job_name} {place.slot}`"
    )

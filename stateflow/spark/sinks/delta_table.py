"""What sinks into Delta tables share: they open a table, mark its slots, and know a conflict from a dead end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stateflow.errors import DisagreementError, IncompatibleError, UsageError
from stateflow.format.records import CATALOG_NAME, MANAGED, Prepared
from stateflow.format.sql_texts import text_in_quotes
from stateflow.pipelines.inputs.tables import DeltaTable, parts_of, path_in_sql, sql_name
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.delta_log import DeltaLog, TableShape, Transaction
from stateflow.spark.internals.gateway import failure_classes
from stateflow.spark.internals.words import CONFLICT, VIOLATION
from stateflow.spark.sinks.base import CommitRequest, Committed, DeliveryMode
from stateflow.spark.sinks.log_stores import check_log_store
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.catalog_tables import located

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

ATTEMPTS = 10
"""How often a commit begins anew after another writer's."""
CREATING = 5
APPEND_ONLY = "delta.appendOnly"
MOST_SAID = 300
"""Characters of Delta's words. They have the values of a row, which may be long."""
_SAID = re.compile(r"\[DELTA_[^]]*\](.*?)(?:\n\s*at |\Z)", re.DOTALL)
UNMARKED = "unmarked"
"""In the payload of a sink: true if the slot before was delivered at least once, and is not in the table."""
CREATED_WITH = {"delta.checkpointInterval": "100"}
"""Properties of tables that a run creates; the caller's own win. By default every tenth commit also writes Delta's own
checkpoint: of micro-batches of half a second, each tenth would take two."""


def open_table(
    spark: SparkSession,
    table: DeltaTable,
    schema: StructType,
    delivery: DeliveryMode,
    refuse_gone: Callable[[str], None],
) -> tuple[DeltaTable, TableShape]:
    """The table at its place, and its shape; creates the table when there is none, and never was."""
    if table.location:
        check_log_store(spark, table.location, delivery)
    if not table.path:
        refuse_gone(str(table))
        create_table(spark, table, schema)
        table = located(spark, replace(table, create=False), f"the sink into {table}")
    check_log_store(spark, table.path, delivery)
    log = DeltaLog(spark, table.path, table.managed_as)
    if not log.exists():
        refuse_gone(str(table))
        create_table(spark, table, schema)
    shape = log.begin().shape()
    if table.partition_by and shape.partition_by != table.partition_by:
        raise IncompatibleError(
            f"{table} is partitioned by {list(shape.partition_by)}, not by {list(table.partition_by)}: "
            "leave partition_by out or write to another path"
        )
    return table, shape


def create_table(spark: SparkSession, table: DeltaTable, schema: StructType) -> None:
    unknown = [c for c in table.partition_by if c not in schema.names]
    if unknown:
        raise UsageError(
            f"partition_by of {table} names {unknown}, which are not among its columns {schema.names}"
        )
    make = _by_path if table.path and "`" not in table.path else _by_statement
    for attempt in range(1, CREATING + 1):
        try:
            make(spark, table, schema)
            return
        except Exception:
            # Two first runs create the table at once. While one is at it, Delta says both that there is a table and that
            # there is none.
            if _is_there(spark, table):
                return
            if attempt == CREATING:
                raise
            time.sleep(0.3 * attempt)


def _by_path(spark: SparkSession, table: DeltaTable, schema: StructType) -> None:
    from delta.tables import DeltaTable as Builder

    builder = Builder.createIfNotExists(spark).location(table.path)
    for field in schema.fields:
        builder = builder.addColumn(field.name, field.dataType, nullable=True)
    if table.partition_by:
        builder = builder.partitionedBy(*table.partition_by)
    for name, value in {**CREATED_WITH, **table.properties}.items():
        builder = builder.property(name, value)
    builder.execute()


def _by_statement(spark: SparkSession, table: DeltaTable, schema: StructType) -> None:
    """Delta's builder knows no name with a catalog, and no path with a backtick."""
    from pyspark.sql.types import StructField, StructType

    columns = StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])
    properties = {**CREATED_WITH, **table.properties}
    parts = [
        f"CREATE TABLE IF NOT EXISTS {table.in_sql if table.path else sql_name(parts_of(table.name))} ({columns.toDDL()}) USING delta",
        f"PARTITIONED BY ({', '.join(map(quoted, table.partition_by))})" if table.partition_by else "",
        f"LOCATION {text_in_quotes(table.location)}" if table.location and not table.path else "",
        f"TBLPROPERTIES ({', '.join(f'{text_in_quotes(name)} = {text_in_quotes(value)}' for name, value in properties.items())})",
    ]
    spark.sql(" ".join(filter(None, parts)))


def _is_there(spark: SparkSession, table: DeltaTable) -> bool:
    if table.path:
        return DeltaLog(spark, table.path, table.managed_as).exists()
    return bool(located(spark, table, f"the sink into {table}").path)


def called(name: str, managed: bool) -> dict[str, Any]:
    """For a record: the table's name in its catalog, and whether the catalog manages its commits."""
    return {**({CATALOG_NAME: name} if name else {}), **({MANAGED: True} if managed else {})}


def log_of(spark: SparkSession, prepared: Prepared) -> DeltaLog:
    """The log of the table that a record names."""
    return DeltaLog(spark, prepared.target, parts_of(prepared.name) if prepared.is_managed else ())


def in_sql(prepared: Prepared) -> str:
    """The table that a record names, as statements name it."""
    return sql_name(parts_of(prepared.name)) if prepared.is_managed else path_in_sql(prepared.target)


Change = Callable[[DeltaLog, Transaction, TableShape, list[str]], object]
"""What a commit does to a table as it is now. It commits the transaction, with the actions that mark the slot."""


def committed(request: CommitRequest, change: Change, since: str = "") -> Committed:
    """Commits a change of the table, once. After another writer's commit, perhaps of this very slot, it reads the table and decides again.

    `since` says what was decided, if it is not the rows of the record.
    """
    prepared = request.prepared
    at = replace(request.at, unmarked=bool(prepared.payload.get(UNMARKED)))
    request = replace(request, at=at)
    target, exactly_once = f"Delta table {prepared.target}", prepared.payload.get("exactly_once", True)
    since = since or f"the rows of record {at.slot} were prepared for it"
    log = log_of(request.spark, prepared)
    for left in reversed(range(ATTEMPTS)):
        txn = log.begin()
        # Asked before anything else: it makes a racing commit of the same slot fail this transaction. A MERGE by Delta sets the slot alone.
        slot, mark = txn.slot_of(at.app_id), txn.slot_of(at.mark_id)
        if exactly_once and request.is_in(target, slot, mark, mark_may_lack=True):
            return "already"
        try:
            shape = txn.shape()
        except DisagreementError as error:
            raise stuck(request, f"{target} is gone since {since}") from error
        if shape.id != prepared.payload["table"]:
            raise stuck(request, f"{target} was recreated since {since}")
        try:
            change(log, txn, shape, fence(log, at) if exactly_once else [])
        except Exception as error:
            if broken := broken_in(error):
                rows = f"rows prepared for record {at.slot} break a constraint"
                # Records of earlier versions do not say what the table was like.
                if shape.fingerprint == prepared.payload.get("fingerprint", shape.fingerprint):
                    why = f"{rows} of {target} ({broken}); alter the table so that it takes them"
                    raise request.stuck(why) from error
                raise stuck(request, f"{rows} that {target} has got since ({broken})") from error
            if not conflicted(error) or not left:
                raise
            request.still_owner()
            continue
        return "committed"
    raise AssertionError("unreachable: the last attempt returns or raises")


def fence(log: DeltaLog, at: SinkSlot) -> list[str]:
    """The actions that mark a slot as the last one committed, and say by which record."""
    marks = {at.app_id: at.slot, at.mark_id: at.mark}
    return [
        json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": log.now()}})
        for app_id, version in marks.items()
    ]


def added(actions: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(action["add"]) for action in map(json.loads, actions) if "add" in action]


def rows_in(txn: Transaction, actions: Sequence[str]) -> int:
    """The rows of files that were just written."""
    rows = counted_rows(actions)
    return txn.reread(actions).count() if rows is None else rows


def counted_rows(actions: Sequence[str]) -> int | None:
    """What the statistics of added files say; None where the session collects none."""
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in added(actions)]
    return None if None in counts else sum(counts)


def conflicted(error: BaseException) -> bool:
    return any(CONFLICT.is_in(name) and "delta" in name for name in failure_classes(error))


def broken_in(error: BaseException) -> str:
    """What Delta says of a row that breaks a constraint of its table; empty for any other error."""
    if not any(map(VIOLATION.is_in, failure_classes(error))):
        return ""
    found = _SAID.search(str(error))
    return " ".join(found[1].split())[:MOST_SAID].rstrip(".") if found else "a constraint"


def stuck(request: CommitRequest, what: str) -> DisagreementError:
    return request.stuck(f"{what}; put the table back")

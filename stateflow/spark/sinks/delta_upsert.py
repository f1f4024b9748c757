"""Upserts into a Delta table: it stages rows as listed files, and merges them in one MERGE after the decision."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stateflow.errors import IncompatibleError
from stateflow.format.records import Prepared
from stateflow.internals import MissingNameError
from stateflow.pipelines.changes import DELETE
from stateflow.pipelines.inputs.tables import parts_of, sql_name
from stateflow.pipelines.rows.as_json import value_as_json
from stateflow.pipelines.rows.row_type import quoted, unused_name
from stateflow.pipelines.sink_kinds import DELTA_UPSERT
from stateflow.spark.internals.delta_log import DeltaLog, TableShape, Transaction
from stateflow.spark.internals.frames import cloned_session
from stateflow.spark.internals.managed_tables import managed_table
from stateflow.spark.sinks.base import CommitRequest, Committed
from stateflow.spark.sinks.delta_rewind import TableSink
from stateflow.spark.sinks.delta_rewrite import bytes_per_file, files_to_rewrite, is_plain, metrics, rewritten
from stateflow.spark.sinks.delta_table import APPEND_ONLY, called, committed, open_table, stuck
from stateflow.spark.sinks.fit import cast_to, check_fit, column_marks
from stateflow.spark.sinks.key_ranges import key_ranges
from stateflow.spark.sinks.same_task import with_plain_names
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import staged_schema
from stateflow.spark.sinks.table_rules import asks_within, may_break, padded, violations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

_log = logging.getLogger(__name__)
APP_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
_BY_TEXT = re.compile("map<|variant|float|double|collate")
"""Types without an order, or with different values that are equal in it."""


class DeltaUpsert(TableSink):
    """The sink `stream.upsert(uid, delta(path), keys=[...], order_by=...)`."""

    declared = DELTA_UPSERT

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.upsert.refuse_unknown(schema.names)
        self.upsert.refuse_incomparable(schema)
        self.upsert.deletion(schema)
        schema = self.upsert.columns(schema)
        self.target, shape = open_table(spark, self.target, schema, self.delivery, self.refuse_gone)
        self._check(shape, schema)
        violations(spark.createDataFrame([], schema), shape, str(self.target))

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        spark = frame.sparkSession
        txn = DeltaLog(spark, self.target.path, self.target.managed_as).begin()
        shape = txn.shape()
        exactly_once = self.delivery == "exactly_once"
        before = self.prepare_for(shape, at, txn.slot_of(at.app_id)) if exactly_once else {}
        self._check(shape, self.upsert.columns(frame.schema))
        frame, upsert = self.upsert.marked(frame)
        goes = f"{quoted(upsert.operation)} = '{DELETE}'" if upsert.operation else "false"
        rows = padded(cast_to(frame, shape, str(self.target), goes), shape, upsert.keys)
        staged = stager.write(rows, at, bounds_of=upsert.keys)
        upsert.refuse(staged, rows, at, stager)
        if staged.files and may_break(staged.nulls, shape):
            # They would fail every commit once the record is decided.
            self._check_values(stager.read(spark, staged.files, rows.schema), shape, at, upsert.operation)
        return Prepared(
            kind=DELTA_UPSERT.name,
            target=self.target.path,
            payload={
                "table": shape.id,
                "fingerprint": shape.fingerprint,
                "schema": rows.schema.json(),
                "marks": column_marks(shape, rows.columns),
                "keys": list(upsert.keys),
                "order_by": list(upsert.order_by),
                **({"operation": upsert.operation} if upsert.operation else {}),
                **({"bounds": staged.bounds} if staged.bounds else {}),
                **called(self.target.name, self.target.managed),
                "exactly_once": exactly_once,
                **before,
            },
            files=staged.files,
            rows=staged.rows,
        )

    def _check(self, shape: TableShape, schema: StructType) -> None:
        check_fit(schema, shape, str(self.target), self.target.in_sql)
        if shape.is_on(APPEND_ONLY):
            raise IncompatibleError(
                f"{self.target} only takes appends ({APPEND_ONLY}): use append, or unset it"
            )

    def _check_values(self, rows: DataFrame, shape: TableShape, at: SinkSlot, operation: str) -> None:
        from pyspark.sql import functions as F

        rows, broken = violations(rows, shape, str(self.target))
        if operation:
            # A row that goes breaks nothing.
            stays = F.col(quoted(operation)) != DELETE
            broken = {what: stays & condition for what, condition in broken.items()}
        counts = [F.count_if(condition).alias(str(k)) for k, condition in enumerate(broken.values())]
        row = rows.agg(*counts).first() if counts else None
        for count, what in zip(row or (), broken, strict=False):
            if count:
                raise IncompatibleError(
                    f"{count} of the rows of {at} have {what} and cannot be merged into {self.target}: "
                    "no row was written; leave such rows out where the operator puts them out"
                )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        if not request.prepared.files:
            return "none"
        return committed(request, partial(_upsert, request))


def _upsert(
    request: CommitRequest, log: DeltaLog, txn: Transaction, shape: TableShape, marks: list[str]
) -> None:
    at, written = request.at, request.prepared.payload["marks"]
    target = f"Delta table {request.prepared.target}"
    if column_marks(shape, written) != written:
        raise stuck(request, f"columns of {target} changed since the rows of record {at.slot} were prepared")
    if shape.is_on(APPEND_ONLY):
        raise stuck(
            request,
            f"{target} only takes appends now ({APPEND_ONLY}), and record {at.slot} has an upsert for it",
        )
    try:
        is_merged = _rewritten(request, txn, shape, marks)
    except MissingNameError as error:
        # The record is decided: an update of Delta must not keep its rows out for the sake of speed.
        _log.warning("Delta merges the rows itself, which is slower: %s", error)
        is_merged = False
    if not is_merged:
        _merge(request, shape)


def _rewritten(request: CommitRequest, txn: Transaction, shape: TableShape, marks: list[str]) -> bool:
    """Merges the rows by writing anew the files that may hold their keys. False if Delta has to merge them."""
    prepared = request.prepared
    payload, schema = prepared.payload, staged_schema(prepared)
    size = sum(ref.size for ref in prepared.files)
    if not is_plain(shape, schema.names):
        return False
    # Where no column of the key has bounds, every file may hold its keys.
    ranges = key_ranges(shape.schema.fields, shape.partition_by, payload.get("bounds", {}))
    present = txn.files()
    files = files_to_rewrite(present, size, ranges)
    if present is None or files is None:
        return False
    staged = request.stager.read(request.spark, prepared.files, schema)
    rows = newest(staged, payload["keys"], payload["order_by"])
    actions = rewritten(
        txn, shape, files, staged, rows, payload, size, prepared.rows, ranges, bytes_per_file(present)
    )
    numbers = metrics(files, actions, prepared.rows)
    txn.commit_merge([*actions, *marks], numbers)
    return True


def _merge(request: CommitRequest, shape: TableShape) -> None:
    from delta.tables import DeltaTable as Table

    prepared, at = request.prepared, request.at
    payload = prepared.payload
    # In a shared session the settings would make every later statement look like this slot, and Delta would skip it.
    session = cloned_session(request.spark)
    if payload["exactly_once"]:
        session.conf.set(APP_ID, at.app_id)
        session.conf.set(VERSION, str(at.slot))
    schema = staged_schema(prepared)
    rows = newest(request.stager.read(session, prepared.files, schema), payload["keys"], payload["order_by"])
    keys = {key.lower() for key in payload["keys"]}
    operation = payload.get("operation", "")
    rows = _strict(rows, shape, keys, operation)
    names = [name for name in schema.names if name != operation]
    values: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in names}
    changes = {k: v for (k, v), name in zip(values.items(), names, strict=True) if name.lower() not in keys}
    if prepared.is_managed:
        # Delta would look for the catalog's settings in the session of this thread, which has none; what this one has opened, it finds.
        managed_table(session, parts_of(prepared.name))
        table = Table.forName(session, sql_name(parts_of(prepared.name)))
    else:
        table = Table.forPath(session, prepared.target)
    merge = table.alias("t").merge(
        rows.alias("s"), " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in payload["keys"])
    )
    stays = "true"
    if operation:
        goes = f"s.{quoted(operation)} = '{DELETE}'"
        merge, stays = merge.whenMatchedDelete(condition=goes), f"NOT ({goes})"
    if changes:
        merge = merge.whenMatchedUpdate(set=changes)
    merge.whenNotMatchedInsert(condition=stays, values=values).execute()


def _strict(rows: DataFrame, shape: TableShape, keys: Collection[str], operation: str) -> DataFrame:
    """The rows with fields of structs that may not be null where the table has such: Delta's MERGE takes no others, whatever they hold."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    there = {
        field.name.lower(): field.dataType for field in shape.schema.fields if asks_within(field.dataType)
    }
    strict = {name for name in rows.columns if name.lower() in there}
    if not strict:
        return rows
    if operation:
        # A row that deletes may have nulls there. Nobody reads more of it than its key.
        stays = F.col(quoted(operation)) != DELETE
        unread = {name for name in strict if name.lower() not in keys}
        columns = {name: F.col(quoted(name)) for name in rows.columns}
        rows = rows.select(
            *(F.when(stays, c).alias(name) if name in unread else c for name, c in columns.items())
        )
    fields = [
        StructField(field.name, there[field.name.lower()]) if field.name in strict else field
        for field in rows.schema.fields
    ]
    return with_plain_names(rows).mapInArrow(partial(_named, rows.columns), StructType(fields))


def _named(names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.rename_columns(names)


def newest(rows: DataFrame, keys: Sequence[str], order_by: Sequence[str]) -> DataFrame:
    """One row per key: the highest by `order_by`. Among equals it always picks the same one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not order_by:
        return rows
    # MERGE may read its source twice: a tie that fell differently would update one row and insert another.
    order = [F.col(quoted(column)).desc_nulls_last() for column in order_by] + _contents(rows)
    rank = unused_name("_sf_rank", rows.columns)
    ranked = rows.withColumn(
        rank, F.row_number().over(Window.partitionBy(*map(quoted, keys)).orderBy(*order))
    )
    return ranked.where(F.col(rank) == 1).drop(rank)


def _contents(rows: DataFrame) -> list[Column]:
    """An order of rows in which no two differ and are equal: each column by itself, or by a text where it has none, or where values are equal
    that are not the same, as 0 and -0."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    order, texts = [], []
    for name, kind in kinds.items():
        column = quoted(name)
        if _BY_TEXT.search(kind) is None:
            order.append(F.col(column).desc_nulls_last())
        else:
            # As a key of a map, bytes are no text in JSON.
            texts.append(f"map_entries({column})" if kind.startswith("map<") else column)
    if texts:
        order.append(F.expr(value_as_json(f"struct({', '.join(texts)})")).desc_nulls_last())
    return order

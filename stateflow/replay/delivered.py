"""The rows that a checkpoint delivered to a sink, as its record still tells them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from stateflow.format.records import FileRef, Outcome, Prepared
from stateflow.pipelines.sink_kinds import DELTA_APPEND, MEMORY, kind_in_record
from stateflow.spark.internals.gateway import first_line
from stateflow.spark.sinks.delta_table import added, log_of
from stateflow.spark.sinks.kinds import class_of
from stateflow.spark.sinks.staging import Stager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NotKept(Exception):
    """The rows are not there any more; the text says why."""


def delivered_rows(spark: SparkSession, prepared: Prepared, stager: Stager) -> pa.Table | None:
    """None when there were no rows. NotKept when there were, and nobody has them any more."""
    if not prepared.rows:
        return None
    if prepared.kind == MEMORY.name:
        with pa.ipc.open_stream(base64.b64decode(prepared.payload["arrow"])) as reader:
            return reader.read_all()
    try:
        if prepared.kind == DELTA_APPEND.name:
            return _of_table(spark, prepared)
        if prepared.files:
            rows = _put_out(spark, stager, prepared)
            return staged_rows(stager, prepared.files) if rows is None else rows
        kind = kind_in_record(prepared.kind)
        if kind is not None and (told := class_of(kind).delivered(prepared)) is not None:
            return told
    except NotKept:
        raise
    except Exception as error:
        raise NotKept(first_line(error)) from error
    raise NotKept(f"a sink of kind {prepared.kind!r} keeps no rows")


def was_abandoned(outcome: Outcome | None, uid: str) -> bool:
    return outcome is not None and outcome.sinks.get(uid) == "abandoned"


def staged_rows(stager: Stager, refs: Sequence[FileRef]) -> pa.Table | None:
    """The rows of staged files, wherever these lie; None where there are none."""
    batches = [pa.Table.from_batches([batch]) for batch in stager.batches(refs)]
    return pa.concat_tables(batches, promote_options="permissive") if batches else None


def _put_out(spark: SparkSession, stager: Stager, prepared: Prepared) -> pa.Table | None:
    """The rows of a sink that stages others than the pipeline put out; None where it stages those."""
    kind = kind_in_record(prepared.kind)
    struct = class_of(kind).put_out(prepared) if kind is not None else ""
    if not struct:
        return None
    staged = spark.createDataFrame(staged_rows(stager, prepared.files))
    return staged.selectExpr(f"{struct} as row").selectExpr("row.*").toArrow()


def _of_table(spark: SparkSession, prepared: Prepared) -> pa.Table:
    log = log_of(spark, prepared)
    if not log.exists():
        raise NotKept(f"there is no Delta table at {prepared.target} any more")
    txn = log.begin()
    if txn.shape().id != prepared.payload["table"]:
        raise NotKept(f"the Delta table {prepared.target} was recreated since")
    if gone := log.missing(added(prepared.payload["actions"])):
        raise NotKept(f"{len(gone)} of its files in the Delta table {prepared.target} were vacuumed")
    return txn.reread(prepared.payload["actions"]).toArrow()

"""Appends to a Delta table in two phases: it writes data files, and commits them after the decision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stateflow.errors import IncompatibleError
from stateflow.format.records import Prepared
from stateflow.pipelines.rows.row_type import quoted
from stateflow.pipelines.sink_kinds import DELTA_APPEND
from stateflow.spark.internals.delta_log import DeltaLog, TableShape, Transaction
from stateflow.spark.sinks.base import CommitRequest, Committed
from stateflow.spark.sinks.delta_rewind import TableSink
from stateflow.spark.sinks.delta_table import (
    added,
    broken_in,
    called,
    committed,
    in_sql,
    open_table,
    rows_in,
    stuck,
)
from stateflow.spark.sinks.driver_written import written_by_driver
from stateflow.spark.sinks.fit import cast_to, check_fit, column_marks
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

MOST_REMEMBERED = 64
_unvacuumed: OrderedDict[str, None] = OrderedDict()
"""The first data file of each slot that this process prepared and has not committed: VACUUM spares files so young."""


class DeltaAppend(TableSink):
    """The sink `stream.append(uid, delta(path))`."""

    declared = DELTA_APPEND

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.target, shape = open_table(spark, self.target, schema, self.delivery, self.refuse_gone)
        check_fit(schema, shape, str(self.target), self.target.in_sql)

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        txn = DeltaLog(frame.sparkSession, self.target.path, self.target.managed_as).begin()
        shape = txn.shape()
        exactly_once = self.delivery == "exactly_once"
        before = self.prepare_for(shape, at, txn.slot_of(at.app_id)) if exactly_once else {}
        check_fit(frame.schema, shape, str(self.target), self.target.in_sql)
        actions, files = None, files_of(frame)
        if files is not None:
            actions = written_by_driver(txn, shape, frame.schema, files, stager)
        if actions is None:
            actions = self._written(txn, cast_to(frame, shape, str(self.target)), at)
        adds = added(actions)
        if adds:
            _unvacuumed[adds[0]["path"]] = None
            while len(_unvacuumed) > MOST_REMEMBERED:
                _unvacuumed.popitem(last=False)
        return Prepared(
            kind=DELTA_APPEND.name,
            target=self.target.path,
            payload={
                "actions": actions,
                "table": shape.id,
                "fingerprint": shape.fingerprint,
                "partition_by": list(shape.partition_by),
                "columns": frame.columns,
                "marks": column_marks(shape, frame.columns),
                **called(self.target.name, self.target.managed),
                "exactly_once": exactly_once,
                **before,
            },
            rows=rows_in(txn, actions),
        )

    def _written(self, txn: Transaction, frame: DataFrame, at: SinkSlot) -> list[str]:
        try:
            return txn.write(frame)
        except Exception as error:
            broken = broken_in(error)
            if not broken:
                raise
            raise IncompatibleError(
                f"{self.target} refuses rows of {at} ({broken}): no row was written; leave such rows out where the operator puts them out, "
                "or alter the table"
            ) from error

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        adds = added(request.prepared.payload["actions"])
        if not adds:
            # Sound without a fence: a slow run with a lower slot finds that recovery has committed that slot.
            return "none"
        at, recent = request.at, adds[0]["path"] in _unvacuumed

        def append(log: DeltaLog, txn: Transaction, shape: TableShape, marks: list[str]) -> None:
            actions = current_actions(log, txn, shape, request, adds, recent)
            now_added = added(actions)
            metrics = {
                "numAddedFiles": len(now_added),
                "numRemovedFiles": 0,
                "numOutputRows": request.prepared.rows,
                "numOutputBytes": sum(int(add["size"]) for add in now_added),
            }
            txn.commit([*actions, *marks], at.app_id, at.slot, metrics)

        outcome = committed(request, append)
        if outcome == "committed":
            _unvacuumed.pop(adds[0]["path"], None)
        return outcome


def current_actions(
    log: DeltaLog,
    txn: Transaction,
    shape: TableShape,
    request: CommitRequest,
    adds: Sequence[dict[str, Any]],
    recent: bool,
) -> list[str]:
    """The recorded actions, if the table has not changed; else the same rows written again, if they still fit."""
    prepared, at = request.prepared, request.at
    payload, target = prepared.payload, f"Delta table {prepared.target}"
    if not recent and (missing := log.missing(adds)):
        raise stuck(
            request,
            f"{len(missing)} of {len(adds)} data files that record {at.slot} prepared in {target} are gone "
            f"({missing[0]}; was it vacuumed with too short a retention?)",
        )
    if shape.fingerprint == payload["fingerprint"]:
        return list(payload["actions"])
    marks = payload["marks"]
    changed = [c for c in payload["columns"] if column_marks(shape, [c]).get(c.lower()) != marks[c.lower()]]
    if changed or list(shape.partition_by) != payload["partition_by"]:
        what = f"columns {', '.join(changed)}" if changed else "the partitioning"
        raise stuck(
            request, f"{what} of {target} changed since the rows of record {at.slot} were prepared for it"
        )
    try:
        frame = txn.reread(payload["actions"]).select(*map(quoted, payload["columns"]))
        check_fit(frame.schema, shape, target, in_sql(prepared))
        return txn.write(frame)
    except IncompatibleError as error:
        raise stuck(request, str(error)) from error

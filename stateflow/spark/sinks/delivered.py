"""Which sinks of a record have its output. `Job.abandon` asks before it gives a record up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stateflow.format.records import Record
from stateflow.pipelines.sink_kinds import KINDS
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = frozenset(kind.name for kind in KINDS.values() if kind.table)
"""Kinds of sink whose target says which slot it has. A user's function cannot be asked."""


def needs_spark(record: Record) -> bool:
    return any(prepared.kind in TABLES for prepared in record.sinks.values())


def delivered(spark: SparkSession | None, record: Record, job: str) -> Mapping[str, bool]:
    """Per sink uid, whether it has the record's output. `spark` may be None when no sink is a table."""
    has_output = dict.fromkeys(record.sinks, False)
    for uid, prepared in record.sinks.items():
        if prepared.kind in TABLES:
            assert spark is not None
            log = DeltaLog(spark, prepared.target)
            if log.exists():
                app_id = SinkSlot(record.job, job, uid, record.slot, record.epoch).app_id
                version = log.begin().slot_of(app_id)
                has_output[uid] = version is not None and version >= record.slot
    return has_output

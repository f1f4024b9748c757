"""Which sinks of a record have its output. `Job.abandon` asks before it gives a record up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stateflow.format.records import Prepared, Record
from stateflow.pipelines.sink_kinds import kind_in_record
from stateflow.spark.sinks.kinds import class_of
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tells_slot(prepared: Prepared) -> bool:
    """Whether the sink's target says which slot it has. A user's function cannot be asked."""
    kind = kind_in_record(prepared.kind)
    return kind is not None and kind.tells_slot and prepared.kind == kind.name


def needs_spark(record: Record) -> bool:
    return any(tells_slot(prepared) for prepared in record.sinks.values())


def delivered(spark: SparkSession | None, record: Record, job: str) -> Mapping[str, bool]:
    """Per sink uid, whether it has the record's output. `spark` may be None when no sink can be asked."""
    has_output = dict.fromkeys(record.sinks, False)
    for uid, prepared in record.sinks.items():
        if tells_slot(prepared):
            assert spark is not None
            kind = kind_in_record(prepared.kind)
            assert kind is not None
            at = SinkSlot(record.job, job, uid, record.slot, record.epoch)
            slot = class_of(kind).last_slot(spark, prepared, at)
            has_output[uid] = slot is not None and slot >= record.slot
    return has_output

"""Sinks of a replay: they keep the rows in files of the fork, and nothing else hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateflow.format.records import Prepared
from stateflow.pipelines.graph import SinkNode
from stateflow.pipelines.sink_kinds import FUNCTION
from stateflow.spark.sinks.base import CommitRequest, Committed, Sink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager


def unheard(frame: Any, delivery: Any) -> None:
    """The function of a sink whose rows go nowhere."""
    raise AssertionError("a replay commits nothing")


class CapturedSink(Sink):
    """In place of a sink of the pipeline."""

    declared = FUNCTION

    def __init__(self, replaced: SinkNode) -> None:
        super().__init__(replaced.target, replaced.options)
        self.replaced = replaced

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """Does nothing: a missing table stays missing."""

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        frame, upsert = self.upsert.marked(frame)
        staged = stager.write(frame, at)
        if self.replaced.sink_kind.one_row_per_key:
            upsert.refuse(staged, frame, at, stager)
        return Prepared(
            kind=FUNCTION.name,
            target="",
            payload={"schema": frame.schema.json()},
            files=staged.files,
            rows=staged.rows,
        )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        raise AssertionError("a replay commits nothing")

"""Rows are marked as late where they enter a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.input import FunctionInput
from stateflow.spark.inputs.open_inputs import with_lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def marked(spark: SparkSession, watermark: int | None) -> DataFrame:
    rows = spark.range(0, 6, 1, 1).selectExpr("id", "timestamp_micros(nullif(id, 4)) as at")
    return with_lateness(
        SourceNode("events", event_time="at", watermark=0, factory=FunctionInput(lambda spark: rows)),
        rows,
        watermark,
    )


def test_a_row_is_late_at_the_watermark_and_not_without_a_time(spark: SparkSession) -> None:
    found = {row["id"]: row["_sf_late"] for row in marked(spark, 3).collect()}
    assert found == {0: True, 1: True, 2: True, 3: True, 4: False, 5: False}
    assert not any(row["_sf_late"] for row in marked(spark, None).collect())
    assert not any(row["_sf_late"] for row in marked(spark, -(1 << 62)).collect())

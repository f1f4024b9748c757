"""The code that Spark makes of a batch's rows: the same for every watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def code(frame: DataFrame) -> list[str]:
    execution: Any = frame._jdf.queryExecution()
    stages = execution.debug().codegenToSeq()
    return [stages.apply(number)._2() for number in range(stages.size())]


def test_batches_with_different_watermarks_share_their_code(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")  # as it is for users
    one, other = code(marked(spark, 1_700_000_000_000_000)), code(marked(spark, 1_700_000_123_456_789))
    assert one
    assert one == other


def test_a_row_is_late_at_the_watermark_and_not_without_a_time(spark: SparkSession) -> None:
    found = {row["id"]: row["_sf_late"] for row in marked(spark, 3).collect()}
    assert found == {0: True, 1: True, 2: True, 3: True, 4: False, 5: False}
    assert not any(row["_sf_late"] for row in marked(spark, None).collect())
    assert not any(row["_sf_late"] for row in marked(spark, -(1 << 62)).collect())

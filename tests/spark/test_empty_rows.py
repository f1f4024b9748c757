"""Frames without rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from stateflow.spark.internals.frames import empty_frame


def test_no_rows_have_their_columns_and_begin_no_python(spark: SparkSession) -> None:
    schema = spark.sql("select 1L a, map('k', array(2.5)) m, timestamp'2026-01-01' t").schema
    frame = empty_frame(spark, schema)
    assert (frame.schema, frame.collect()) == (schema, [])
    assert "PythonRDD" in _planned(spark.createDataFrame([], schema))
    assert "PythonRDD" not in _planned(frame)


def test_spark_leaves_nothing_out_that_reads_no_rows(spark: SparkSession) -> None:
    """A task that sees no rows still has timers that are due."""
    frame = empty_frame(spark, spark.range(1).schema)
    assert frame.mapInArrow(lambda batches: [*batches][:0], "id long").rdd.getNumPartitions() == 1
    assert frame.mapInArrow(_one, "id long").collect() == [(1,)]


def _one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(batches)
    yield pa.RecordBatch.from_pydict({"id": [1]})


def _planned(frame: Any) -> str:
    return frame._jdf.queryExecution().toRdd().toDebugString()

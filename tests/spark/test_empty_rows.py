"""Frames without rows: what a batch without input reads, and staged output without a file."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.format.keygroups import default_assignment
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.shuffle.exchange import KeyedInput, exchanged, spread


def without_rows(spark: SparkSession) -> DataFrame:
    frame = spark.sql("select 1L id, map('k', array(2.5)) m, timestamp'2026-01-01' t")
    return OpenInputs((), {"rows": frame}, frame, (), (), ()).empty(spark)["rows"]


def test_no_rows_have_their_columns_and_begin_no_python(spark: SparkSession) -> None:
    frame = without_rows(spark)
    assert (frame.columns, frame.collect()) == (["id", "m", "t"], [])
    assert frame.rdd.getNumPartitions() == 0


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("tasks", [1, 3])
def test_each_task_of_an_operator_runs_without_rows(spark: SparkSession, tasks: int, inputs: int) -> None:
    """A task that sees no rows still has timers that are due."""
    given = KeyedInput(without_rows(spark), ("id",), (), row_type("id long"))
    frame = exchanged("o", [given] * inputs, ("int",), 16, default_assignment(tasks, 16))
    assert frame.mapInArrow(_one, "id long").count() == tasks
    assert spread("o", given, tasks).mapInArrow(_one, "id long").count() == tasks


def _one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(batches)
    yield pa.RecordBatch.from_pydict({"id": [1]})

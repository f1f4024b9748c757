"""Python code behind Python code: in one process where nothing lies between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from stateflow.spark.sinks.same_task import map_in_arrow, then_in_arrow


def with_process(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        numbers = [os.getpid()] * batch.num_rows
        yield pa.record_batch([batch.column(0), pa.array(numbers)], names=["id", "process"])


def compared(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        here = [number == os.getpid() for number in batch.column(1).to_pylist()]
        yield pa.record_batch([batch.column(0), pa.array(here)], names=["id", "here"])


def test_both_run_in_one_process_unless_spark_has_to_do_something_in_between(spark: SparkSession) -> None:
    made = map_in_arrow(spark.range(4, numPartitions=2), with_process, "id long, process long")
    together = then_in_arrow(made, compared, "id long, here boolean").collect()
    assert sorted(map(tuple, together)) == [(k, True) for k in range(4)]
    apart = then_in_arrow(made.where("id < 2"), compared, "id long, here boolean").collect()
    assert sorted(map(tuple, apart)) == [(0, False), (1, False)]
    # The rows are still to be had without.
    assert sorted(row["id"] for row in made.collect()) == [0, 1, 2, 3]


def test_the_first_is_closed_when_the_second_fails(spark: SparkSession, tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    def first(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        finally:
            closed.write_text("yes")

    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        raise ValueError("no space")

    made = map_in_arrow(spark.range(2, numPartitions=1), first, "id long")
    with pytest.raises(PythonException, match="no space"):
        then_in_arrow(made, fails, "id long").collect()
    assert closed.exists()

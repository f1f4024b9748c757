"""Rows come to the task that an expression numbers, also where Spark places rows by a hash alone."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.spark.shuffle.numbered_tasks import murmur3, numbers_of_tasks, to_tasks


@pytest.mark.slow
def test_the_hash_is_that_of_spark(spark: SparkSession) -> None:
    numbers = [0, 1, 7, 1000, 65535, 2**31 - 1]
    frame = spark.createDataFrame([(number,) for number in numbers], "n int")
    assert [row["h"] for row in frame.select(F.hash("n").alias("h")).collect()] == list(map(murmur3, numbers))


@pytest.mark.parametrize("tasks", [1, 2, 5, 64, 300])
def test_each_task_has_a_number(tasks: int) -> None:
    assert [murmur3(number) % tasks for number in numbers_of_tasks(tasks)] == list(range(tasks))


@pytest.mark.parametrize("by_hash", [False, True])
@pytest.mark.parametrize("tasks", [1, 3, 8])
def test_a_row_comes_to_the_task_of_its_number(
    spark: SparkSession, tasks: int, by_hash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_hash and hasattr(DataFrame, "repartitionById"):
        monkeypatch.delattr(type(spark.range(1)), "repartitionById")
        monkeypatch.delattr(DataFrame, "repartitionById", raising=False)
    frame = to_tasks(spark.range(100), tasks, f"cast(id % {tasks} as int)")
    placed = frame.select("id", F.spark_partition_id().alias("task")).collect()
    assert {row["id"]: row["task"] for row in placed} == {number: number % tasks for number in range(100)}
    assert frame.rdd.getNumPartitions() == tasks

"""A key that comes twice in a batch is found, by Arrow or by Spark, and both say the same."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.spark.sinks import SinkSlot, duplicates
from stateflow.spark.sinks.duplicates import first_duplicate
from stateflow.spark.sinks.staging import Stager
from stateflow.storage.roots import open_store

AT = SinkSlot("3f2b6c1e-1111-4a6e-9d3f-0123456789ab", "orders", "totals", 1, 1)


@pytest.fixture
def stager(tmp_path: Path) -> Stager:
    return Stager(partial(open_store, str(tmp_path)), lambda: uuid.uuid4().hex)


def found(frame: DataFrame, stager: Stager, *keys: str) -> int:
    """How many rows have the key; 0 where each is alone."""
    staged = stager.write(frame, AT)
    duplicate = first_duplicate(frame.sparkSession, staged, frame.schema, keys, stager)
    return duplicate[1] if duplicate else 0


@pytest.mark.parametrize("most", [duplicates.MOST_ROWS, 0], ids=["arrow", "spark"])
def test_a_key_is_found_across_files_whatever_the_letters_of_its_name(
    spark: SparkSession, stager: Stager, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(duplicates, "MOST_ROWS", most)
    frame = spark.range(100, numPartitions=3).selectExpr("id % 99 as Number", "string(id % 50) as text", "id")
    assert found(frame, stager, "number") == 2
    assert found(frame, stager, "number", "text") == 0
    staged = stager.write(frame.where("number = 0").repartition(2), AT)
    assert first_duplicate(spark, staged, frame.schema, ["number"], stager) == ((0,), 2)
    assert first_duplicate(spark, staged, frame.schema, ["ID"], stager) is None


@pytest.mark.slow
def test_only_keys_that_arrow_compares_as_spark_does_are_left_to_arrow(
    spark: SparkSession, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_arrow(*_: object) -> None:
        raise AssertionError("Arrow was asked")

    monkeypatch.setattr(duplicates, "_by_arrow", by_arrow)
    zeros = spark.sql("SELECT 0D AS x UNION ALL SELECT -0D")
    letters = spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS x UNION ALL SELECT 'A' COLLATE UTF8_LCASE")
    assert [found(frame, stager, "x") for frame in (zeros, letters)] == [2, 2]
    with pytest.raises(AssertionError, match="Arrow was asked"):
        found(spark.sql("SELECT 'a' AS x"), stager, "x")

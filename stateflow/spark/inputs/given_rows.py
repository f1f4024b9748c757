"""Makes a DataFrame of rows that somebody wrote down, and rows of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from stateflow.errors import UsageError
from stateflow.spark.internals.gateway import JAVA_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, rows: Sequence[Any], ddl: str) -> DataFrame:
    """The rows with these columns; UsageError with Spark's reason for a value that does not fit."""
    try:
        return spark.createDataFrame(rows, ddl)
    except PySparkException as error:
        raise UsageError(" ".join(str(error).split())) from None


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The frame's rows; UsageError with Spark's reason, cut short, for files that cannot be read."""
    try:
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    except (PySparkException, *JAVA_ERRORS) as error:
        raise UsageError(" ".join(str(error).split())[:300]) from None
    return rows

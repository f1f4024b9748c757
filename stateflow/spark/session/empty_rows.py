"""A frame without rows that runs no Python.

`createDataFrame([], schema)` of PySpark begins Python workers to make no rows, which takes seconds where none has begun yet.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """It is an RDD to the optimiser, which would take operators away that read a frame known to be empty."""
    session: Any = spark._jsparkSession
    none = spark.sparkContext._jsc.parallelize(spark._jvm.java.util.ArrayList(), 1)  # type: ignore[union-attr]
    return DataFrame(session.createDataFrame(none, session.parseDataType(schema.json())), spark)

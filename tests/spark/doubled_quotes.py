"""Conditions for Sparks that do not take two quotes as one."""

from __future__ import annotations

import re
from functools import cache

from pyspark.sql import SparkSession

_TEXT = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.S)


def as_this_spark_writes(spark: SparkSession, condition: str) -> str:
    """The condition as this Spark's SQL writes it: for Spark 4.0 `'it''s'` is two texts beside each other, `its`."""
    if _takes_doubled(spark):
        return condition
    return _TEXT.sub(lambda text: "'" + text[1].replace("''", r"\'") + "'", condition)


@cache
def _takes_doubled(spark: SparkSession) -> bool:
    """Asked once: a query for each of a thousand conditions would take longer than all of them."""
    return bool(spark.sql("SELECT 'it''s'").collect()[0][0] == "it's")

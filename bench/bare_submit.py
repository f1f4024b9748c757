"""What a run's start is measured against: a plain Spark script that reads a Delta table, groups it and writes a Delta table.

spark-submit bench/bare_submit.py INPUT OUTPUT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(source: str, target: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    orders = spark.read.format("delta").load(source)
    totals = orders.groupBy("user").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
    totals.write.format("delta").mode("append").save(target)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

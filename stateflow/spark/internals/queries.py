"""The streaming query whose batch runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateflow.internals import internal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXECUTION = "org.apache.spark.sql.execution.streaming"


@internal(
    "pyspark.sql.SparkSession._jsparkSession",
    "org.apache.spark.sql.classic.SparkSession.streams()",
    "org.apache.spark.sql.classic.StreamingQueryManager.get(String)",
    f"{_EXECUTION}[.runtime].StreamingQueryWrapper.streamingQuery()",
    f"{_EXECUTION}[.runtime].StreamExecution.lastExecution()",
    "org.apache.spark.sql.execution.QueryExecution.observedMetrics()",
)
def observed_metrics(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """The observations of the running batch so far, by name; call it after the batch's jobs. PySpark gives a query's
    observations only with its progress, after the batch.
    """
    # Spark sets the property for the thread that runs a batch.
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query is None:
        return {}
    execution = spark._jsparkSession.streams().get(query).streamingQuery().lastExecution()
    observed = {}
    metrics = execution.observedMetrics().iterator()
    while metrics.hasNext():
        pair = metrics.next()
        row = pair._2()
        observed[str(pair._1())] = {
            name: row.get(position) for position, name in enumerate(row.schema().fieldNames())
        }
    return observed

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
)
def running_query(spark: SparkSession, query: str | None = None) -> Any:
    """Spark's own object of the query whose batch runs in this thread, or of that with this id; None outside of a batch."""
    # Spark sets the property for the thread that runs a batch.
    query = query or spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if query is None else spark._jsparkSession.streams().get(query).streamingQuery()


@internal(
    f"{_EXECUTION}[.runtime].StreamExecution.lastExecution()",
    "org.apache.spark.sql.execution.QueryExecution.observedMetrics()",
)
def observed_metrics(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """The observations of the running batch so far, by name; call it after the batch's jobs. PySpark gives a query's
    observations only with its progress, after the batch.
    """
    running = running_query(spark)
    if running is None:
        return {}
    observed = {}
    metrics = running.lastExecution().observedMetrics().iterator()
    while metrics.hasNext():
        pair = metrics.next()
        row = pair._2()
        observed[str(pair._1())] = {
            name: row.get(position) for position, name in enumerate(row.schema().fieldNames())
        }
    return observed

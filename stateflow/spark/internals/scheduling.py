"""Where Spark runs tasks: its executors, where tasks ran, and where they should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stateflow.internals import internal
from stateflow.spark.internals.gateway import made
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PINNED = """
import org.apache.spark.rdd.*;
public class StateflowPinned implements PartitionCoalescer, java.io.Serializable {
  private final java.util.List locations;
  public StateflowPinned(java.util.List locations) { this.locations = locations; }
  public PartitionGroup[] coalesce(int max, RDD parent) {
    org.apache.spark.Partition[] partitions = parent.partitions();
    PartitionGroup[] groups = new PartitionGroup[partitions.length];
    for (int i = 0; i < partitions.length; i++) {
      String location = (String) locations.get(i);
      groups[i] = location == null || location.isEmpty()
        ? new PartitionGroup(scala.Option.empty()) : new PartitionGroup(scala.Option.apply(location));
      groups[i].partitions().addOne(partitions[i]);
    }
    return groups;
  }
}
"""


_CONTEXT = "pyspark.SparkContext._jsc", "org.apache.spark.SparkContext.statusStore()"


@internal(
    "pyspark.sql.DataFrame._jdf",
    "pyspark.sql.SparkSession._jsparkSession",
    "org.apache.spark.sql.classic.Dataset.queryExecution()",
    "org.apache.spark.sql.execution.QueryExecution.toRdd()",
    "org.apache.spark.rdd.RDD.coalesce(int, boolean, Option, Ordering)",
    "org.apache.spark.rdd.CoalescedRDD.partitionCoalescer",
    "org.apache.spark.rdd.PartitionGroup(Option)",
    "org.apache.spark.sql.classic.SparkSession.internalCreateDataFrame(RDD, StructType, boolean)",
)
def pinned(frame: DataFrame, placed: Callable[[int], Sequence[str]]) -> DataFrame:
    """`frame` with each partition preferring the executor that `placed` names for it; without names it stays as it is.

    Spark places shuffle partitions at random. A coalescer maps every partition to itself and adds a preferred location.
    """
    from pyspark.sql import DataFrame

    spark = frame.sparkSession
    names = java_names(spark)
    rdd = frame._jdf.queryExecution().toRdd()
    count = rdd.getNumPartitions()
    executors = placed(count)
    if not any(executors):
        return frame
    locations = names.java.util.ArrayList()
    for executor in executors:
        locations.add(executor)
    coalescer = made(spark, _PINNED, "StateflowPinned", locations)
    rows = rdd.coalesce(count, False, names.scala.Option.apply(coalescer), None)
    rows.partitions()
    # The driver has computed the partitions. The compiled class must not travel to executors, which do not have it.
    for declared in rows.getClass().getDeclaredFields():
        if "partitionCoalescer" in declared.getName():
            declared.setAccessible(True)
            declared.set(rows, names.scala.Option.empty())
    session: Any = spark._jsparkSession
    return DataFrame(session.internalCreateDataFrame(rows, frame._jdf.schema(), False), spark)


@internal(
    *_CONTEXT,
    "org.apache.spark.SparkContext.listenerBus()",
    "org.apache.spark.scheduler.LiveListenerBus.waitUntilEmpty()",
    "org.apache.spark.status.AppStatusStore.store()",
    "org.apache.spark.status.TaskDataWrapper.taskId()",
    "org.apache.spark.status.TaskDataWrapper.host()",
    "org.apache.spark.status.TaskDataWrapper.executorId()",
    where_missing="the next batch has no preference",
)
def executors_of(spark: SparkSession, attempts: Sequence[int]) -> tuple[str, ...]:
    """Where these task attempts ran, as `executor_HOST_ID`, which Spark takes as a preferred location; empty where nobody knows."""
    context: Any = _scala_context(spark)
    # It waits ten seconds at most, and a busy driver may need longer: a hint must not fail a finished batch.
    with suppress(Exception):
        context.listenerBus().waitUntilEmpty()
    try:
        # Not looked up by id: py4j turns an id into an Integer, and the store has Longs.
        kind = java_names(spark).java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")
        hosts = _recent(context.statusStore().store().view(kind).reverse().iterator(), set(attempts))
    except Exception:  # the status store drops old tasks; then there is no preference
        hosts = {}
    return tuple(hosts.get(attempt, "") for attempt in attempts)


def _recent(newest_first: Any, attempts: set[int]) -> dict[int, str]:
    hosts: dict[int, str] = {}
    while len(hosts) < len(attempts) and newest_first.hasNext():
        task = newest_first.next()
        attempt = int(task.taskId())
        if attempt < min(attempts):
            break
        if attempt in attempts:
            hosts[attempt] = f"executor_{task.host()}_{task.executorId()}"
    return hosts


@internal(
    "pyspark.SparkContext._jsc",
    "org.apache.spark.SparkContext.getExecutorIds()",
    where_missing="no executor is known, and tasks run where Spark puts them",
    otherwise=str,
)
def executor_ids(spark: SparkSession) -> str:
    """The executors that live, as text that changes when one comes or goes."""
    return str(_scala_context(spark).getExecutorIds().mkString(" "))


@internal(
    *_CONTEXT,
    "org.apache.spark.status.AppStatusStore.executorList(boolean)",
    "org.apache.spark.status.api.v1.ExecutorSummary.hostPort()",
    "org.apache.spark.status.api.v1.ExecutorSummary.totalCores()",
    where_missing="no executor is known, and tasks run where Spark puts them",
    otherwise=dict,
)
def executor_cores(spark: SparkSession) -> dict[str, int]:
    """The cores of each executor, by `executor_HOST_ID`."""
    every = _scala_context(spark).statusStore().executorList(True)
    executors = [every.apply(at) for at in range(every.size())]
    return {
        f"executor_{one.hostPort().rpartition(':')[0]}_{one.id()}": int(one.totalCores())
        for one in executors
        if one.id() != "driver" and one.totalCores() > 0
    }


def _scala_context(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    return context._jsc.sc()

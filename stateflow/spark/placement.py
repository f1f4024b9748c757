"""Keeps state where it is: a subtask runs on the executor that cached its files in the batch before.

Spark places shuffle partitions at random. A coalescer that maps every partition to itself, with a preferred
location, is enough to pin them; Spark's own Java compiler makes it, so no jar has to be shipped. When the executor is
gone or busy for longer than `spark.locality.wait`, the task goes elsewhere and fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stateflow.spark.spread import spread

_SOURCE = """
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


class Placement:
    """Pins partitions when there is more than one executor to choose from."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._factory: Any = None
        self._known = ""
        self._executors: dict[str, int] = {}
        master = str(spark.sparkContext.master)
        self.active = not master.startswith("local[") and master != "local"

    def pin(self, frame: DataFrame, hosts: Sequence[str]) -> DataFrame:
        """`frame` with each partition preferring an executor: that of `hosts`, or one with less to do."""
        if not self.active:
            return frame
        jvm: Any = self._spark._jvm
        execution = frame._jdf.queryExecution()
        rdd = execution.toRdd()
        count = rdd.getNumPartitions()
        chosen = spread(hosts if len(hosts) == count else [""] * count, self._living())
        if not any(chosen):
            return frame
        pinned = rdd.coalesce(count, False, jvm.scala.Option.apply(self._coalescer(list(chosen))), None)
        pinned.partitions()
        # Computed on the driver by now; the compiled class must not travel to executors, which do not have it.
        for declared in pinned.getClass().getDeclaredFields():
            if "partitionCoalescer" in declared.getName():
                declared.setAccessible(True)
                declared.set(pinned, jvm.scala.Option.empty())
        session: Any = self._spark._jsparkSession
        return DataFrame(session.internalCreateDataFrame(pinned, frame._jdf.schema(), False), self._spark)

    def hosts_of(self, attempts: Sequence[int]) -> tuple[str, ...]:
        """Where these task attempts ran, as preferred locations for the next batch."""
        if not self.active:
            return ()
        context: Any = self._spark.sparkContext._jsc.sc()
        # Waits for ten seconds at most, and a busy driver may need longer: a hint must not fail a batch that is done.
        with suppress(Exception):
            context.listenerBus().waitUntilEmpty()
        try:
            found = self._recent(context.statusStore().store(), set(attempts))
        except Exception:  # the status store drops old tasks; then there is no preference
            found = {}
        return tuple(found.get(attempt, "") for attempt in attempts)

    def _living(self) -> dict[str, int]:
        """The cores of every executor; read anew only when others have come or gone."""
        context: Any = self._spark.sparkContext._jsc.sc()
        try:
            known = context.getExecutorIds().mkString(" ")
            if known != self._known:
                every = context.statusStore().executorList(True)
                found = [every.apply(at) for at in range(every.size())]
                self._executors = {
                    f"executor_{one.hostPort().rpartition(':')[0]}_{one.id()}": int(one.totalCores())
                    for one in found
                    if one.id() != "driver" and one.totalCores() > 0
                }
                self._known = known if len(self._executors) == len(known.split()) else ""
        except Exception:  # a hint must not fail a batch
            self._executors, self._known = {}, ""
        return self._executors

    def _recent(self, store: Any, attempts: set[int]) -> dict[int, str]:
        # Read one by one by their ids none would be found: py4j makes an Integer of them, and the store has Longs.
        kind = self._spark._jvm.java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")  # type: ignore[union-attr]
        newest_first = store.view(kind).reverse().iterator()
        found: dict[int, str] = {}
        while len(found) < len(attempts) and newest_first.hasNext():
            task = newest_first.next()
            attempt = int(task.taskId())
            if attempt < min(attempts):
                break
            if attempt in attempts:
                found[attempt] = f"executor_{task.host()}_{task.executorId()}"
        return found

    def _coalescer(self, hosts: list[str]) -> Any:
        jvm: Any = self._spark._jvm
        if self._factory is None:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.cook(_SOURCE)
            self._factory = compiler.getClassLoader().loadClass("StateflowPinned").getConstructors()[0]
        locations = jvm.java.util.ArrayList()
        for host in hosts:
            locations.add(host)
        arguments = self._spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)  # type: ignore[union-attr]
        arguments[0] = locations
        return self._factory.newInstance(arguments)

"""Runs each subtask on the executor that cached its state files in the batch before.

Spark places shuffle partitions at random. To pin them, a coalescer maps every partition to itself and adds a preferred
location. Spark's own Java compiler compiles it, so that no jar has to be shipped. When the executor is gone, or busy for
longer than `spark.locality.wait`, the task runs elsewhere and fetches the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

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
        self._executor_ids = ""
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
        executors = spread(hosts if len(hosts) == count else [""] * count, self._living())
        if not any(executors):
            return frame
        pinned = rdd.coalesce(count, False, jvm.scala.Option.apply(self._coalescer(list(executors))), None)
        pinned.partitions()
        # The driver has computed the partitions. The compiled class must not travel to executors, which do not have it.
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
        # It waits ten seconds at most, and a busy driver may need longer: a hint must not fail a finished batch.
        with suppress(Exception):
            context.listenerBus().waitUntilEmpty()
        try:
            hosts = self._recent(context.statusStore().store(), set(attempts))
        except Exception:  # the status store drops old tasks; then there is no preference
            hosts = {}
        return tuple(hosts.get(attempt, "") for attempt in attempts)

    def _living(self) -> dict[str, int]:
        """The cores of every executor; read again only when executors come or go."""
        context: Any = self._spark.sparkContext._jsc.sc()
        try:
            ids = context.getExecutorIds().mkString(" ")
            if ids != self._executor_ids:
                every = context.statusStore().executorList(True)
                executors = [every.apply(at) for at in range(every.size())]
                self._executors = {
                    f"executor_{one.hostPort().rpartition(':')[0]}_{one.id()}": int(one.totalCores())
                    for one in executors
                    if one.id() != "driver" and one.totalCores() > 0
                }
                self._executor_ids = ids if len(self._executors) == len(ids.split()) else ""
        except Exception:  # a hint must not fail a batch
            self._executors, self._executor_ids = {}, ""
        return self._executors

    def _recent(self, store: Any, attempts: set[int]) -> dict[int, str]:
        # Not looked up by id: py4j turns an id into an Integer, and the store has Longs.
        kind = self._spark._jvm.java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")  # type: ignore[union-attr]
        newest_first = store.view(kind).reverse().iterator()
        hosts: dict[int, str] = {}
        while len(hosts) < len(attempts) and newest_first.hasNext():
            task = newest_first.next()
            attempt = int(task.taskId())
            if attempt < min(attempts):
                break
            if attempt in attempts:
                hosts[attempt] = f"executor_{task.host()}_{task.executorId()}"
        return hosts

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


def spread(homes: Sequence[str], executors: Mapping[str, int]) -> tuple[str, ...]:
    """An executor for each subtask: the one that cached its state, unless other subtasks there would make it wait.

    `homes` names per subtask the executor that cached its state, or is empty; `executors` has the cores of each living
    one. Names are `executor_HOST_ID`, as in Spark's preferred locations. Spark runs the tasks behind a shuffle where most
    of their input is. With a small first batch that is one executor for all of them: if they stayed there, they would
    queue for its cores while other executors idle.

    A subtask stays while its executor has a core for it, or holds no more than its share of all subtasks. Otherwise it
    moves to the least busy executor, on its own host if possible, because the cache belongs to the host.
    """
    if not executors:
        return tuple(homes)
    load = dict.fromkeys(executors, 0)
    cores_in_all = sum(executors.values())
    most = {name: max(cores, -(-len(homes) * cores // cores_in_all)) for name, cores in executors.items()}
    placed: dict[int, str] = {}
    for number, home in enumerate(homes):
        if home in load and load[home] < most[home]:
            placed[number] = home
            load[home] += 1
    for number, home in enumerate(homes):
        if number in placed:
            continue
        near = [name for name in load if _host(name) == _host(home) and load[name] < most[name]]
        executor = min(near or load, key=lambda name: ((load[name] + 1) / executors[name], name))
        placed[number] = executor
        load[executor] += 1
    return tuple(placed[number] for number in range(len(homes)))


def _host(location: str) -> str:
    return location.removeprefix("executor_").rpartition("_")[0]

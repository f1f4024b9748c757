"""Runs each subtask on the executor that cached its state files in the batch before.

Spark places shuffle partitions at random, so each is pinned. When the executor is gone, or busy for longer than
`spark.locality.wait`, the task runs elsewhere and fetches the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from stateflow.spark.internals.scheduling import executor_cores, executor_ids, executors_of, pinned
from stateflow.spark.session.settings import one_process


class Placement:
    """Pins partitions when there is more than one executor to choose from."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._executor_ids = ""
        self._executors: dict[str, int] = {}
        self.active = not one_process(spark.sparkContext.master)

    def pin(self, frame: DataFrame, hosts: Sequence[str]) -> DataFrame:
        """`frame` with each partition preferring an executor: that of `hosts`, or one with less to do."""
        if not self.active:
            return frame
        return pinned(
            frame,
            lambda count: balanced(hosts if len(hosts) == count else [""] * count, self._living()),
        )

    def hosts_of(self, attempts: Sequence[int]) -> tuple[str, ...]:
        """Where these task attempts ran, as preferred locations for the next batch."""
        return executors_of(self._spark, attempts) if self.active else ()

    def _living(self) -> dict[str, int]:
        """The cores of every executor; read again only when executors come or go."""
        try:
            ids = executor_ids(self._spark)
            if ids != self._executor_ids:
                self._executors = executor_cores(self._spark)
                self._executor_ids = ids if len(self._executors) == len(ids.split()) else ""
        except Exception:  # a hint must not fail a batch
            self._executors, self._executor_ids = {}, ""
        return self._executors


def balanced(homes: Sequence[str], executors: Mapping[str, int]) -> tuple[str, ...]:
    """An executor for each subtask: the one that cached its state, unless other subtasks there would make it wait.

    `homes` has for each subtask the executor that cached its state, or is empty; `executors` has the cores of each living
    executor. Names are `executor_HOST_ID`, as in Spark's preferred locations. Spark runs the tasks behind a shuffle where most
    of their input is. With a small first batch that is one executor for all of them: if they stayed there, they would queue for
    its cores while other executors idle.

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
        # Shares are rounded up, so there is room for every subtask.
        free = [name for name in load if load[name] < most[name]]
        near = [name for name in free if _host(name) == _host(home)]
        executor = min(near or free, key=lambda name: ((load[name] + 1) / executors[name], name))
        placed[number] = executor
        load[executor] += 1
    return tuple(placed[number] for number in range(len(homes)))


def _host(location: str) -> str:
    return location.removeprefix("executor_").rpartition("_")[0]

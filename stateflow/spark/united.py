"""The parts of a batch that Spark has planned as a union, each as a frame.

A batch's frame is an RDD to Spark's optimiser, which cannot look into it. But the RDD itself tells which RDDs it unites, so that
one of them can be read without the others.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from stateflow.spark.session.java_names import java_names

_UNION = "org.apache.spark.rdd.UnionRDD"
_WRAPPER = "org.apache.spark.sql.execution.SQLExecutionRDD"
"""Around the RDD of a whole plan."""


def united(batch: DataFrame) -> list[DataFrame]:
    """Every part with all columns of the batch, in the order of the union; nothing where there is none."""
    spark = batch.sparkSession
    sql: Any = java_names(spark).org.apache.spark.sql
    rdd = _union_of(batch._jdf.queryExecution().logical())
    if rdd is None:
        return []
    logical, dataset = (
        getattr(getattr(package, name), "MODULE$")
        for package, name in ((sql.execution, "LogicalRDD$"), (sql.classic, "Dataset$"))
    )
    parts = []
    rdds = rdd.rdds()
    for index in range(rdds.size()):
        plan = logical.fromDataset(rdds.apply(index), batch._jdf, False)
        parts.append(DataFrame(dataset.ofRows(batch._jdf.sparkSession(), plan), spark))
    return parts


def _union_of(plan: Any) -> Any:
    """The union that a frame is; None where it is anything else."""
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return None
    rdd = plan.rdd()
    if rdd.getClass().getName() == _WRAPPER:
        rdd = rdd.dependencies().head().rdd()
    return rdd if rdd.getClass().getName() == _UNION else None

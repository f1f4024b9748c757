"""Tables of state as DataFrames that this process plans itself: for exports, restores, and `where` on keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from stateflow.spark.internals.frames import arrow_schema, python_source, spark_schema
from stateflow.spark.state_tables.failures import library_error
from stateflow.spark.state_tables.snapshots import SnapshotOrigin, TableSnapshot
from stateflow.spark.state_tables.source import FORMAT, register, rows_of
from stateflow.spark.state_tables.tables import Part, Table
from stateflow.spark.task.failures import through_spark

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read_state(spark: SparkSession, **options: Any) -> DataFrame:
    """`spark.read.format("stateflow")` with these options. Here `where` on key columns opens only the shards of its keys.

    Pass options with a dot in their name as a mapping: `read_state(spark, job="orders", ..., storage={...})`.
    """
    texts = {name: str(value) for name, value in options.items() if name != "storage"}
    texts |= {f"storage.{name}": str(value) for name, value in dict(options.get("storage") or {}).items()}
    register(spark)
    # Without this setting Spark refuses any Python source that takes filters.
    spark.conf.set(_PUSHDOWN, "true")
    try:
        return python_source(spark, FORMAT, {**texts, "pushdown": "true"})
    except AnalysisException as error:
        raise library_error(error) from error


def table_frame(spark: SparkSession, snapshot: TableSnapshot, operator: str, state: str) -> DataFrame:
    """All rows of one table, with a task for each part. Unlike the data source it starts no planning process."""
    table, parts = snapshot.table(operator, state)
    schema = spark_schema(table.schema)
    task = _ReadTask(table, tuple(parts), arrow_schema(schema), snapshot.origin)
    # At least one task: Spark cuts off what follows an empty input, and an observation of it would never end.
    count = max(1, len(parts))
    return spark.range(0, count, 1, count).mapInArrow(task, schema)


@dataclass(frozen=True)
class _ReadTask:
    """The task that reads one part per partition."""

    table: Table
    parts: tuple[Part, ...]
    schema: pa.Schema
    origin: SnapshotOrigin

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with through_spark():
                    for part in self.parts[number : number + 1]:
                        yield from rows_of(self.table, part, self.schema, self.origin)

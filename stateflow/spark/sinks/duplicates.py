"""Staged rows that an upsert cannot take, because their keys do not tell them apart: without a key, or several of one.

Arrow groups the rows where this process can open the files, else Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stateflow.errors import IncompatibleError
from stateflow.format.scalars import INTEGERS
from stateflow.pipelines.rows.row_type import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.slot import SinkSlot
    from stateflow.spark.sinks.staging import Staged, Stager

MOST_ROWS = 1_000_000
"""That the driver reads the keys of."""
_ALIKE = frozenset((*INTEGERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"))
"""Types whose values Arrow and Spark compare alike. Arrow tells the floats 0 and -0 apart, and knows no collations."""


def refuse_null_keys(staged: Staged, keys: Sequence[str], at: SinkSlot, target: object) -> None:
    """IncompatibleError for rows that have a null in a key column, as the tasks have counted them."""
    nulls = {name.lower(): count for name, count in staged.nulls.items()}
    for key in keys:
        if count := nulls.get(key.lower()):
            raise IncompatibleError(
                f"{count} of the rows of {at} have a null in the key column {key!r} and cannot be merged into {target}: no row was written; leave "
                "such rows out where the operator puts them out"
            )


def refuse_null_operations(staged: Staged, operation: str, at: SinkSlot, target: object) -> None:
    """IncompatibleError for rows that a step of the user's has taken what they do from: they would be lost, and what they replace."""
    if count := staged.nulls.get(operation):
        raise IncompatibleError(
            f"{count} of the rows of {at} have a null in the column {operation!r}, which says whether a row is written into {target} or deleted: no "
            "row was written; let transform() keep the column as it is"
        )


def refuse_duplicates(
    spark: SparkSession,
    staged: Staged,
    schema: StructType,
    keys: Sequence[str],
    stager: Stager,
    at: SinkSlot,
    target: object,
) -> None:
    """IncompatibleError if a key has several rows and no `order_by` picks one."""
    duplicate = first_duplicate(spark, staged, schema, keys, stager)
    if duplicate is not None:
        values = ", ".join(f"{key}={value!r}" for key, value in zip(keys, duplicate[0], strict=True))
        raise IncompatibleError(
            f"{duplicate[1]} rows of one batch of {at} have the key {values}, and {target} can keep one: give upsert an order_by, of which the "
            "highest wins, or make one row per key; no row was written"
        )


def first_duplicate(
    spark: SparkSession, staged: Staged, schema: StructType, keys: Sequence[str], stager: Stager
) -> tuple[tuple[Any, ...], int] | None:
    """A key that several rows have, and how many."""
    names = {name.lower(): name for name in schema.names}
    columns = [names[key.lower()] for key in keys]
    alike = all(schema[column].dataType.simpleString() in _ALIKE for column in columns)
    paths = stager.local_files(staged.files) if alike and staged.rows <= MOST_ROWS else None
    if paths is not None:
        return _by_arrow(paths, columns)
    rows = stager.read(spark, staged.files, schema).groupBy(*map(quoted, columns)).count()
    row = rows.where("count > 1").first()
    return (tuple(row[: len(columns)]), row["count"]) if row is not None else None


def _by_arrow(paths: Sequence[Any], columns: list[str]) -> tuple[tuple[Any, ...], int] | None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(path) for path in paths]
    keys = pa.concat_tables(file.read(columns=columns) for file in files)
    counts = keys.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    most = pc.max(counts["count_all"]).as_py()
    if most is None or most < 2:
        return None
    found = counts.slice(pc.index(counts["count_all"], most).as_py(), 1).to_pylist()[0]
    return tuple(found[column] for column in columns), most

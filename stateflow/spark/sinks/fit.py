"""Whether rows fit a Delta table: checked when a run starts, not when a decided record is stuck on it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import xxhash

from stateflow.errors import IncompatibleError
from stateflow.spark.sinks.delta_log import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

GENERATED = "delta.generationExpression"
PHYSICAL = "delta.columnMapping.physicalName"
WIDER: dict[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
"""Casts that lose nothing."""
REFUSED_FEATURES = {
    "identityColumns": "identity columns (their numbers are assigned by the commit that wrote the rows)",
    "catalogManaged": "commits that its catalog manages",
    "catalogOwned-preview": "commits that its catalog manages",
}


def check_fit(schema: StructType, table: TableShape, target: str) -> None:
    """IncompatibleError, naming every column, unless rows of `schema` can be written to the table."""
    for field in table.schema.fields:
        if any(name.startswith("delta.identity.") for name in field.metadata):
            raise IncompatibleError(
                f"{target} has the identity column {field.name!r}, which a sink cannot fill: drop it or "
                "write to a table without one"
            )
    for feature in table.features:
        if feature in REFUSED_FEATURES and feature != "identityColumns":
            raise IncompatibleError(
                f"{target} has {REFUSED_FEATURES[feature]}, which a sink by path cannot take part in: "
                "write to a table without them"
            )
    known = {field.name.lower(): field for field in table.schema.fields}
    wrong: list[str] = []
    seen: set[str] = set()
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            wrong.append(f"{field.name!r} comes twice")
        seen.add(name)
        if name not in known:
            wrong.append(f"{field.name!r} is not in the table")
        elif not _castable(field.dataType, known[name].dataType):
            wrong.append(f"{field.name!r} is {_text(field.dataType)}, there {_text(known[name].dataType)}")
    for name, field in known.items():
        if name not in seen and not field.nullable and GENERATED not in field.metadata:
            wrong.append(f"{field.name!r} is missing and NOT NULL there")
    missing = [
        column
        for column in table.partition_by
        if column.lower() not in seen and GENERATED not in known[column.lower()].metadata
    ]
    wrong.extend(f"{column!r} is missing and the table is partitioned by it" for column in missing)
    if wrong:
        raise IncompatibleError(
            f"the output does not fit {target}: {'; '.join(wrong)}; change the output or alter the table"
        )


def fitted(frame: DataFrame, table: TableShape) -> DataFrame:
    """`frame` with the table's own types, its last stage unchanged."""
    from pyspark.sql import functions

    known = {field.name.lower(): field for field in table.schema.fields}
    pairs = [(field, known[field.name.lower()]) for field in frame.schema.fields]
    if all(_text(mine.dataType) == _text(theirs.dataType) for mine, theirs in pairs):
        return frame
    return frame.select(
        *(functions.col(quoted(mine.name)).cast(theirs.dataType).alias(mine.name) for mine, theirs in pairs)
    )


def column_marks(table: TableShape, columns: Iterable[str]) -> dict[str, str]:
    """What each column is in the data files: with equal marks, files written then are read the same now."""
    known = {field.name.lower(): field for field in table.schema.fields}
    return {c.lower(): _mark(known[c.lower()]) for c in columns if c.lower() in known}


def quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _mark(field: StructField) -> str:
    # Column mapping lets a dropped name be given to another column: the physical name tells them apart.
    physical = str(field.metadata.get(PHYSICAL, field.name))
    return xxhash.xxh3_64_hexdigest(
        json.dumps([physical, field.dataType.jsonValue()], sort_keys=True).encode()
    )


def _text(kind: DataType) -> str:
    return kind.simpleString().lower()


def _castable(mine: DataType, theirs: DataType) -> bool:
    return _text(mine) == _text(theirs) or _text(theirs) in WIDER.get(_text(mine), ())

"""The rows of one key that an operator takes in a batch, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow.format.scalars import BY_NAME
from stateflow.operators.python_values import values_of
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.rows.row_type import RowType, quoted
from stateflow.spark.batches.batch import Batch
from stateflow.spark.shuffle.exchange import (
    LATE,
    KeyedInput,
    directions,
    field_sql,
    order_sql,
    same_key_types,
)
from stateflow.spark.task.columns import RowReader

_PART = "_sf_part"


@dataclass(frozen=True)
class InputRows:
    """Those of one input."""

    type: RowType
    table: pa.Table
    late: tuple[bool, ...]
    in_order: bool
    """Whether the key's rows came to the operator in this order, as far as that can be known."""

    def objects(self) -> list[Any]:
        """The rows as user code gets them."""
        return list(RowReader(self.type, range(len(self.type.fields))).read(self.table.columns))

    def plain(self) -> list[dict[str, Any]]:
        """The rows by column, as Python values."""
        columns = [values_of(column) for column in self.table.columns]
        return [dict(zip(self.type.names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class KeyRows:
    """Everything that an operator takes for a key."""

    inputs: tuple[InputRows, ...]
    key_types: tuple[str, ...]
    broadcast: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Rows that go to all keys."""

    @property
    def count(self) -> int:
        return sum(rows.table.num_rows for rows in self.inputs)


def rows_of_key(batch: Batch, node: KeyedNode, key: Any) -> KeyRows:
    """Reads the batch up to the operator, through the steps and operators before it."""
    with batch.inputs_of(node) as inputs:
        types = same_key_types(node.uid, inputs)
        has_operators = len(batch.operators) > 0
        found = tuple(_rows(node.uid, each, types, key, has_operators) for each in inputs)
        return KeyRows(found, types, batch.rows.broadcast(node))


def _rows(uid: str, keyed: KeyedInput, types: tuple[str, ...], key: Any, behind_operators: bool) -> InputRows:
    late = LATE if LATE in keyed.frame.columns else "false"
    fields = keyed.rows.fields
    frame = _of_key(keyed, types, key).selectExpr(
        *(f"{field_sql(uid, keyed, f.name, f.type)} as _sf_{i}" for i, f in enumerate(fields)),
        f"{late} as {LATE}",
        f"spark_partition_id() as {_PART}",
        *(f"{order_sql(uid, keyed, order)} as _sf_by0_{i}" for i, order in enumerate(keyed.order_by)),
    )
    if keyed.order_by:
        frame = frame.orderBy(*directions([keyed]))
    table = frame.toArrow()
    parts = len(table.column(_PART).unique())
    return InputRows(
        keyed.rows,
        table.select(range(len(fields))).rename_columns(list(keyed.rows.names)),
        tuple(table.column(LATE).to_pylist()),
        table.num_rows < 2 or bool(keyed.order_by) or (parts == 1 and not behind_operators),
    )


def _of_key(keyed: KeyedInput, types: tuple[str, ...], key: Any) -> DataFrame:
    values = key if len(types) > 1 else (key,)
    frame = keyed.frame
    for column, kind, value in zip(keyed.columns, types, values, strict=True):
        spark = BY_NAME[kind].spark
        frame = frame.where(F.expr(f"cast({quoted(column)} as {spark})").eqNullSafe(F.lit(value).cast(spark)))
    return frame

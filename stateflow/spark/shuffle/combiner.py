"""Sums a batch's rows up before the exchange, with Spark's SQL: what goes to the tasks is a row per key and piece of time,
and where different values are counted, per value."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow.operators.combined import COUNTED, MARKS, value_name
from stateflow.operators.combining import Combining
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.shuffle.exchange import KeyedInput, field_sql


def combined_rows(uid: str, keyed: KeyedInput, how: Combining) -> KeyedInput:
    """The combined rows of an operator's one input. A key without a value stays one, so that its task refuses it."""
    columns = []
    defaults = dict(how.defaults)
    for field in how.rows.fields:
        value = field_sql(uid, keyed, field.name, field.type)
        if field.name in defaults:
            value = f"coalesce({value}, {defaults[field.name]})"
        columns.append(f"{value} as {quoted(field.name)}")
    by = [quoted(name) for name in how.key]
    if how.time:
        by.append(f"{how.piece} as {quoted(how.time)}")
    rows = keyed.frame.selectExpr(*columns)
    if how.counted:
        rows = _by_counted_column(rows, how.counted)
        by += [COUNTED, *(value_name(n) for n in range(len(how.counted)))]
    summed = rows.groupBy(*map(F.expr, by)).agg(*map(F.expr, how.parts))
    return KeyedInput(summed, keyed.columns, (), how.combined)


def _by_counted_column(rows: DataFrame, counted: Sequence[tuple[str, str, str]]) -> DataFrame:
    """The rows once for each column whose different values are counted, with its value. For the first column these are all rows,
    for the others those with a value that counts."""
    cells = []
    for number, (name, _, marks) in enumerate(counted):
        values = (
            quoted(name) if n == number else f"cast(null as {kind})" for n, (_, kind, _) in enumerate(counted)
        )
        cells += [str(number), marks, *values]
    names = [COUNTED, MARKS, *(value_name(n) for n in range(len(counted)))]
    expanded = rows.selectExpr("*", f"stack({len(counted)}, {', '.join(cells)}) as ({', '.join(names)})")
    there = " OR ".join(f"{value_name(n)} IS NOT NULL" for n in range(1, len(counted))) or "false"
    return expanded.where(f"{COUNTED} = 0 OR ({MARKS} <> 0 AND ({there}))")

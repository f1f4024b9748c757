"""Sums a batch's rows up before the exchange, with Spark's SQL: what goes to the tasks is a row per key and piece of time."""

from __future__ import annotations

from pyspark.sql import functions as F

from stateflow.operators.combining import Combining
from stateflow.pipelines.rows import quoted
from stateflow.spark.exchange import KeyedInput, field_sql


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
    summed = rows.groupBy(*map(F.expr, by)).agg(*map(F.expr, how.parts))
    return KeyedInput(summed, keyed.columns, (), how.combined)

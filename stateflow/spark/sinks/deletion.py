"""Which rows of an upsert delete: a condition that the pipeline checks, as a column of Spark's.

It means what the same condition of an aggregate means: an instant without a zone is in UTC, and what is divided by zero is null,
whatever the session says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from stateflow.pipelines.changes import DELETE, UPSERT
from stateflow.pipelines.conditions.expression import Expression, condition_of
from stateflow.pipelines.rows.row_type import Field, RowType, quoted, unused_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

MARK = "_sf_op"
"""The column that says it in staged rows, where the rows have none of their own."""
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def deletion(where: str, text: str, schema: StructType) -> Expression:
    """The condition, checked against rows of Spark's."""
    fields = tuple(Field(field.name, field.dataType.simpleString()) for field in schema.fields)
    return condition_of(where, text, RowType("its row", fields, dict, typed=False))


def marked(frame: DataFrame, condition: Expression, operation: str) -> tuple[DataFrame, str]:
    """The rows with a column that says of each whether it deletes, and the column's name: `operation`, if they have it already."""
    name = operation or unused_name(MARK, frame.columns)
    otherwise = F.col(quoted(operation)) if operation else F.lit(UPSERT)
    return frame.withColumn(name, F.when(column_of(condition), DELETE).otherwise(otherwise)), name


def column_of(expression: Expression) -> Column:
    match expression.operation:
        case "column":
            return F.col(quoted(expression.value))
        case "literal":
            return F.lit(expression.value)
    arguments = [column_of(argument) for argument in expression.arguments]
    match expression.operation:
        case "AND":
            return reduce(lambda left, right: left & right, map(_boolean, arguments))
        case "OR":
            return reduce(lambda left, right: left | right, map(_boolean, arguments))
        case "NOT":
            return ~_boolean(arguments[0])
        case "IS NULL":
            return arguments[0].isNull()
        case "LIKE":
            return arguments[0].like(expression.value)
    left, right = arguments
    match expression.operation:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return F.try_divide(left.cast("double"), right.cast("double"))
        case "%":
            return F.try_mod(left, right)
    compared: Column = _COMPARED[expression.operation](left, right)
    return compared


def _boolean(column: Column) -> Column:
    return column.cast("boolean")

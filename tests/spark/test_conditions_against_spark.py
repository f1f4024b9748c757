"""Conditions mean what they mean in Spark's SQL: made at random, over rows of all types with nulls, with Spark's own answers beside."""

from __future__ import annotations

from random import Random

import pytest
from pyspark.sql import SparkSession

from stateflow.operators.ready.aggregates.conditions import holds
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import row_type
from tests.spark.doubled_quotes import as_this_spark_writes
from tests.spark.random_conditions import SCHEMA, Conditions, rows

AS_SPARK_IS = {
    # One job for hundreds of expressions: it is quick where none of them is compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.mark.parametrize(
    ("depth", "ansi", "signs"),
    # Divided by zero is null, as without ANSI; everything else is as with it, too.
    [(0, "false", "+-*/%"), (2, "false", "+-*/%"), (2, "true", "+-*")],
)
def test_conditions_have_spark_s_answers(spark: SparkSession, depth: int, ansi: str, signs: str) -> None:
    random = Random(f"{depth} {ansi}")
    made = rows(random, 60)
    conditions = list(dict.fromkeys(Conditions(random, signs).condition(depth) for _ in range(250)))
    settings = AS_SPARK_IS | {"spark.sql.ansi.enabled": ansi}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        frame = spark.createDataFrame(made, SCHEMA)
        table = frame.toArrow()
        in_sql = [as_this_spark_writes(spark, each) for each in conditions]
        answers = frame.selectExpr(*[f"({each}) AS c{n}" for n, each in enumerate(in_sql)]).toArrow()
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    declared = row_type(SCHEMA)
    wrong = {}
    for column, text in zip(answers.columns, conditions, strict=True):
        found = holds(condition_of("a test", text, declared), table.column, len(made)).tolist()
        if expected := [
            row
            for row, here, there in zip(made, found, column.to_pylist(), strict=True)
            if here != (there is True)
        ]:
            wrong[text] = expected[0]
    assert wrong == {}
    assert len(conditions) > 150

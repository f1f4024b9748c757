"""Conditions mean what they mean in Spark's SQL: made at random, over rows of all types with nulls, with Spark's own answers beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.errors import UserCodeError
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.pipelines.conditions.evaluation import holds
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.reading.predicates import condition
from tests.spark.doubled_quotes import as_this_spark_writes
from tests.spark.random_conditions import SCHEMA, Conditions, rows

AS_SPARK_IS = {
    # One job for hundreds of expressions: it is quick where none of them is compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
}


Answers = Callable[[str], list[bool]]
"""For each row whether a condition holds."""
ONLY_64_BITS = "i8 bigint, i16 bigint, i32 bigint, i64 bigint, f32 double, f64 double"
"""What state has of numbers; of decimals any."""


@contextmanager
def session(spark: SparkSession, ansi: str) -> Iterator[None]:
    settings = AS_SPARK_IS | {"spark.sql.ansi.enabled": ansi}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def of_rows(frame: DataFrame) -> Answers:
    """As `where=` of an aggregate and a join evaluates it."""
    table = frame.toArrow()
    declared = row_type(SCHEMA)
    return lambda text: holds(condition_of("a test", text, declared), table.column, table.num_rows).tolist()


def of_state(frame: DataFrame) -> Answers:
    """As `bisect --first` and `debug --expect` evaluate it, for a value with fields."""
    values = frame.toArrow().to_pylist()
    scalars = {each.spark: each.name for each in BY_NAME.values()}
    fields = (
        (field.name, "decimal" if field.type.startswith("decimal") else scalars[field.type])
        for field in row_type(", ".join([ONLY_64_BITS, *SCHEMA.split(", ")[6:]])).fields
    )
    schema = StateSchema(
        id=1, kind="value", value=f"struct Row{{{','.join(f'{name}:{kind}' for name, kind in fields)}}}"
    )
    pairs = [(value, None) for value in values]
    return lambda text: list(condition(text, schema).of_each(pairs))


def check(spark: SparkSession, frame: DataFrame, conditions: list[str], answers: Answers) -> int:
    """Asks Spark, too. Returns how many both refuse, because a number overflows."""
    here, refused = {}, []
    for text in conditions:
        try:
            here[text] = answers(text)
        except (OverflowError, UserCodeError):
            refused.append(text)
    in_sql = [as_this_spark_writes(spark, each) for each in here]
    there = frame.selectExpr(*[f"({each}) AS c{n}" for n, each in enumerate(in_sql)]).toArrow()
    made = frame.collect()
    wrong: dict[str, object] = {}
    for column, (text, found) in zip(there.columns, here.items(), strict=True):
        expected = [answer is True for answer in column.to_pylist()]
        if found != expected:
            wrong[text] = made[[a == b for a, b in zip(found, expected, strict=True)].index(False)]
    for text in refused:
        with pytest.raises(Exception, match=r"OVERFLOW|OUT_OF_RANGE"):
            frame.selectExpr(f"({as_this_spark_writes(spark, text)}) AS c").collect()
    assert wrong == {}
    return len(refused)


@pytest.mark.slow
@pytest.mark.parametrize("answers", [of_rows, of_state])
@pytest.mark.parametrize(
    ("depth", "ansi", "signs"),
    # Divided by zero is null, as without ANSI; everything else is as with it, too.
    [(0, "false", "+-*/%"), (2, "false", "+-*/%"), (2, "true", "+-*")],
)
def test_conditions_have_spark_s_answers(
    spark: SparkSession, depth: int, ansi: str, signs: str, answers: Callable[[DataFrame], Answers]
) -> None:
    random = Random(f"{depth} {ansi}")
    made = rows(random, 60)
    conditions = list(dict.fromkeys(Conditions(random, signs).condition(depth) for _ in range(250)))
    assert len(conditions) > 150
    with session(spark, ansi):
        frame = framed(spark, made, answers)
        assert check(spark, frame, conditions, answers(frame)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("answers", [of_rows, of_state])
def test_large_numbers_have_spark_s_answers_or_overflow_there_too(
    spark: SparkSession, answers: Callable[[DataFrame], Answers]
) -> None:
    """Whole numbers that no double is, infinities, and sums that no type holds."""
    random = Random("large")
    made = rows(random, 60, large=True)
    conditions = list(dict.fromkeys(Conditions(random, "+-*").condition(0) for _ in range(400)))
    with session(spark, "true"):
        frame = framed(spark, made, answers)
        assert 3 < check(spark, frame, conditions, answers(frame)) < 100


@pytest.mark.slow
@pytest.mark.parametrize("answers", [of_rows, of_state])
def test_quotients_of_large_numbers_are_spark_s(
    spark: SparkSession, answers: Callable[[DataFrame], Answers]
) -> None:
    made = [row for row in rows(Random("quotients"), 200, large=True) if 0 not in row]
    sides = ["i8", "i16", "i32", "i64", "f32", "f64", "n2", "7", "-1", "1e0"]
    conditions = [
        f"{left} {sign} {right} {compared}"
        for left, right in product(sides, repeat=2)
        for sign in "/%"
        for compared in ("= 1", "> f64", "IS NULL", "<= i64")
        if not (sign == "/" and left in ("n2", "7", "-1") and right in ("n2", "7", "-1"))
    ]
    with session(spark, "true"):
        frame = framed(spark, made, answers)
        assert check(spark, frame, conditions, answers(frame)) == 0


def framed(
    spark: SparkSession, made: list[tuple[Any, ...]], answers: Callable[[DataFrame], Answers]
) -> DataFrame:
    """Spark's planner knows the rows: an expression over them is computed where it is planned, and starts no job."""
    frame = spark.createDataFrame(made, SCHEMA)
    if answers is of_state:
        wide = dict(each.split() for each in ONLY_64_BITS.split(", "))
        frame = frame.selectExpr(
            *[f"CAST({name} AS {wide[name]}) AS {name}" if name in wide else name for name in frame.columns]
        )
    return spark.createDataFrame(frame.toArrow(), frame.schema)


def test_a_condition_guards_the_one_behind_it(spark: SparkSession) -> None:
    """As in Spark: rows for which the left side decides cannot overflow at the right one."""
    frame = spark.createDataFrame([(1,), (5,), (None,), (2**62,)], "v bigint")
    table = frame.toArrow()
    for text in ("v < 1000 AND v * 1000 > 2000", "v >= 1000 OR v * 1000 > 2000", "NOT (v < 9 AND v * 4 = 4)"):
        found = holds(condition_of("a test", text, row_type("v bigint")), table.column, 4).tolist()
        assert found == [row[0] is True for row in frame.selectExpr(text).collect()], text
    with pytest.raises(OverflowError, match=r"v \* 4 in a condition does not fit int64 and int32"):
        holds(condition_of("a test", "v * 4 > 2", row_type("v bigint")), table.column, 4)
    advised = condition_of("a test", "1e0 * v * 4 > 5", row_type("v bigint"))
    assert holds(advised, table.column, 4).tolist() == [False, True, False, True]

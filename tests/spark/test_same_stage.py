"""Rows that steps have changed one by one are written in the stage that computes them; all others are stored first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.spark.internals.plans import in_one_stage
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents

Step = Callable[[DataFrame], DataFrame]


@dataclass
class Row:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    total: float


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def queried(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("totals_of_a_batch")
    return frame.where("total >= (select min(total) from totals_of_a_batch)")


def counted(frame: DataFrame) -> DataFrame:
    frame.count()
    return frame


def cached(frame: DataFrame) -> DataFrame:
    return frame.persist().where("true")


IN_ONE_STAGE: dict[str, Step] = {
    "renamed": lambda frame: frame.withColumnRenamed("total", "sum").withColumnRenamed("sum", "total"),
    "computed": lambda frame: frame.selectExpr("user", "total * 1 as total").where("total is not null"),
    "aliased": lambda frame: frame.alias("t").select("t.user", "t.total"),
}
APART: dict[str, Step] = {
    "shuffled": lambda frame: frame.repartition(3),
    "sorted": lambda frame: frame.orderBy("total"),
    "joined": lambda frame: frame.join(frame.select("user"), "user"),
    "grouped": lambda frame: frame.groupBy("user").agg(F.sum("total").alias("total")),
    "united": lambda frame: frame.where("user < 3").unionByName(frame.where("user >= 3")),
    "windowed": lambda frame: frame.withColumn("n", F.expr("count(*) over (partition by user)")).drop("n"),
    "by a function of Python": lambda frame: frame.withColumn("total", F.udf(lambda x: x, "double")("total")),
    "by batches of Python": lambda frame: frame.mapInArrow(same, "user long, total double"),
    "queried": queried,
    "found in another table": lambda frame: frame.where("user in (select id from range(3))"),
    "cached": cached,
}


@pytest.mark.parametrize("step", [*IN_ONE_STAGE, *APART])
def test_only_steps_that_look_at_one_row_are_computed_with_it(spark: SparkSession, step: str) -> None:
    rows = spark.sql("select id as user, double(id) as total from range(5)").mapInArrow(
        same, "user long, total double"
    )
    made = {**IN_ONE_STAGE, **APART}[step](rows)
    assert in_one_stage(made, rows) == (step in IN_ONE_STAGE)
    assert not in_one_stage(made, rows.select("total")), "those are other rows"
    rows.unpersist()


@pytest.mark.system
@pytest.mark.parametrize("step", ["computed", "shuffled", "counted"])
def test_the_table_has_the_same_rows_either_way(bench: Workbench, step: str) -> None:
    output, steps = str(bench.folder / "out"), {**IN_ONE_STAGE, **APART, "counted": counted}

    @sf.pipeline("summed")
    def summed(flow: sf.Flow) -> None:
        rows = flow.source("in", bench.source("in", "user long, amount double"), Row)
        totals = rows.key_by("user").aggregate("totals", Total, total=sf.sum("amount"))
        changes = totals.changes_as_rows(op="op").transform(lambda frame: frame.drop("op"), type=Total)
        changes.transform(steps[step], type=Total).append("out", sf.delta(output))

    for batch in range(3):
        bench.rows("in", [Row(user, float(batch + 1)) for user in range(6)])
    bench.run(summed)
    assert contents(bench.spark, output) == [(user, total) for user in range(6) for total in (1.0, 3.0, 6.0)]
    jobs_of_its_own = ["operator totals" in report.statistics["timings"] for report in bench.reports]
    assert jobs_of_its_own == [step not in IN_ONE_STAGE] * 3
    assert [report.statistics["operators"]["totals"]["rows_out"] for report in bench.reports] == [6] * 3

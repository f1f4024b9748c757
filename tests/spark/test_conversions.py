"""Columns of another type than the row class says, in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.pipelines.rows.conversions import converted
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@dataclass
class Point:
    lat: float
    lon: float


@dataclass
class Visit:
    user: int
    at: Point


@dataclass
class Whole:
    user: int
    at: int


class Last(sf.KeyedProcess[int, Any, dict[str, Any]]):
    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            yield {"user": key, "said": repr(row.at)}


def flow(bench: Workbench, declared: type, column: str) -> sf.Pipeline:
    out = sf.memory("conversions")
    out.clear()
    opened = bench.source("in", "user bigint, lon double, lat double")

    @sf.pipeline("conversions")
    def conversions(flow: sf.Flow) -> None:
        source = flow.source(
            "visits", lambda spark: opened(spark).selectExpr("user", f"{column} as at"), declared
        )
        source.key_by("user").process("last", Last, output="user bigint, said string").collect("out", out)

    return conversions


def test_an_operator_reads_a_struct_by_the_names_of_its_fields(bench: Workbench) -> None:
    bench.rows("in", [{"user": 1, "lon": 8.5, "lat": 47.4}])
    bench.run(flow(bench, Visit, "struct(lon, lat)"))
    assert sf.memory("conversions").rows == [{"user": 1, "said": "Point(lat=47.4, lon=8.5)"}]


def test_an_operator_refuses_a_column_whose_values_would_become_others(bench: Workbench) -> None:
    bench.rows("in", [{"user": 1, "lon": 8.5, "lat": 47.4}])
    with refused(
        sf.IncompatibleError, "operator 'last'", "column 'at' is", "double, which Whole says is bigint"
    ):
        bench.run(flow(bench, Whole, "lat"))
    assert bench.run(flow(bench, Whole, "cast(lat as bigint)")).rows == 1
    assert sf.memory("conversions").rows == [{"user": 1, "said": "47"}]


def test_nested_values_are_converted_each(spark: SparkSession) -> None:
    frame = spark.sql(
        "select map('a', array(named_struct('n', 1, 'd', 1.5F)), 'b', null) m, cast(null as struct<a:int,b:int>) s, map(1, 2) k"
    )
    types = dict(frame.dtypes)
    wanted = {
        "m": "map<string,array<struct<d:double,n:bigint>>>",
        "s": "struct<b:bigint,a:bigint>",
        "k": "map<bigint,bigint>",
    }
    found = frame.selectExpr(
        *(f"{converted('here', n, types[n], want)} as {n}" for n, want in wanted.items())
    )
    assert dict(found.dtypes) == wanted
    (row,) = found.collect()
    assert row.asDict(recursive=True) == {"m": {"a": [{"d": 1.5, "n": 1}], "b": None}, "s": None, "k": {1: 2}}


@dataclass
class Broken:
    user: int
    at: float


def test_a_whole_number_that_no_float_is_equal_to_fails_the_batch(bench: Workbench) -> None:
    numbers = {1: 2**53, 2: -(2**53), 3: 2**60, 4: None, 5: 12}
    bench.rows("in", [{"user": user, "lon": 0.0, "lat": 0.0} for user in numbers])
    cases = " ".join(f"when {user} then {at or 'null'}" for user, at in numbers.items())
    bench.run(flow(bench, Broken, f"cast(case user {cases} end as bigint)"))
    given = {row["user"]: row["said"] for row in sf.memory("conversions").rows}
    assert given == {user: repr(at and float(at)) for user, at in numbers.items()}
    for off in (2**53 + 1, -(2**53) - 1, 2**63 - 1):
        bench.rows("in", [{"user": 1, "lon": 0.0, "lat": 0.0}])
        with refused(sf.IncompatibleError, f"the number {off} in 'at' is none of double"):
            bench.run(flow(bench, Broken, f"{off}"))

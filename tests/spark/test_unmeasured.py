"""Spark measures no row of Arrow batches that cannot become too large, and goes on to measure all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.spark.shuffle import unmeasured as module
from stateflow.spark.shuffle.unmeasured import (
    MOST_BYTES,
    NO_SUM,
    bytes_of_row,
    stays_small,
    unmeasured,
    widest_of,
)
from tests.spark.pipelines import Workbench

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
FIXED = "cast(id as {}) as value"


@pytest.fixture
def limits(spark: SparkSession) -> Iterator[Any]:
    before = {name: spark.conf.get(name) for name in (MOST_BYTES, RECORDS)}

    def limit(**given: str) -> None:
        spark.conf.set(MOST_BYTES, given["bytes"])
        spark.conf.set(RECORDS, given["records"])

    yield limit
    for name, value in before.items():
        spark.conf.set(name, str(value))


def test_columns_of_a_fixed_width_have_a_known_size(spark: SparkSession) -> None:
    kinds = {
        "boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "float": 4, "double": 8, "decimal(38,4)": 16,
    }  # fmt: skip
    for kind, width in kinds.items():
        assert bytes_of_row(spark.range(1).selectExpr(f"cast(id as {kind}) as value")) == width + 1
    times = spark.range(1).selectExpr(
        "current_date() as d", "current_timestamp() as t", "localtimestamp() as n"
    )
    assert bytes_of_row(times) == 4 + 8 + 8 + 3
    for made in ("string(id)", "binary(string(id))", "array(id)", "struct(id)", "map(id, id)"):
        assert bytes_of_row(spark.range(1).selectExpr("id", f"{made} as value")) is None


def test_only_what_fits_with_all_its_rows_stays_small(spark: SparkSession, limits: Any) -> None:
    rows = spark.range(1)
    limits(bytes="9001b", records="1000")
    assert stays_small(rows)
    assert not stays_small(rows.selectExpr("string(id) as id"))
    limits(bytes="9000b", records="1000")
    assert not stays_small(rows)
    for unlimited in ("0", "-1"):
        limits(bytes="64m", records=unlimited)
        assert not stays_small(rows)


def test_rows_of_a_job_that_calls_other_python_code_are_measured(spark: SparkSession) -> None:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    @F.udf("bigint")
    def more(value: int) -> int:
        return value + 1

    @F.udtf(returnType="made bigint")
    class Made:
        def eval(self, value: int) -> Iterator[tuple[int]]:
            yield (value,)

    rows = spark.range(1)
    spark.udtf.register("made_of", Made)
    assert stays_small(rows.repartition(2).sortWithinPartitions("id"))
    with_python = [
        rows.mapInArrow(through, "id bigint"),
        rows.select(more("id").alias("id")),
        rows.where(more("id") > 1),
        spark.sql("select made from range(1), lateral made_of(id)"),
    ]
    for frame in with_python:
        assert not stays_small(frame.repartition(2))


def test_the_limit_is_back_when_the_job_ends_or_fails(spark: SparkSession) -> None:
    rows, before = spark.range(1), spark.conf.get(MOST_BYTES)
    with unmeasured(rows, False):
        assert spark.conf.get(MOST_BYTES) == before
    with unmeasured(rows, True):
        assert spark.conf.get(MOST_BYTES) == NO_SUM
    assert spark.conf.get(MOST_BYTES) == before
    with pytest.raises(ZeroDivisionError), unmeasured(rows, True):
        raise ZeroDivisionError
    assert spark.conf.get(MOST_BYTES) == before


def test_spark_ends_a_batch_at_the_limit_and_at_none_without_it(spark: SparkSession, limits: Any) -> None:
    """What `unmeasured` rests on."""

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array([batch.num_rows for batch in batches], pa.int64())})

    limits(bytes="1000b", records="5000")
    rows = spark.range(0, 5000, 1, 1)
    assert max(row.n for row in rows.mapInArrow(sizes, "n bigint").collect()) < 5000
    with unmeasured(rows, True):
        assert [row.n for row in rows.mapInArrow(sizes, "n bigint").collect()] == [5000]


class Count(sf.KeyedProcess[Any, Any, Any]):
    count = sf.ValueState(int, default=0)

    def process(self, key: Any, rows: Iterator[Any], ctx: sf.Context) -> Iterator[tuple[int]]:
        self.count.value += sum(1 for _ in rows)
        yield (self.count.value,)


class Said(sf.KeyedProcess[Any, Any, Any]):
    def process(self, key: Any, rows: Iterator[Any], ctx: sf.Context) -> Iterator[tuple[str]]:
        yield ("any length",)


def watched(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[bool]:
    """Which jobs go unmeasured, from here on; with `fails` they fail."""
    seen: list[bool] = []
    given = module.unmeasured

    def told(frame: DataFrame, small: bool) -> Any:
        seen.append(small)
        if small and fails:
            raise ZeroDivisionError
        return given(frame, small)

    monkeypatch.setattr("stateflow.spark.batches.batch.unmeasured", told)
    return seen


def texts(bench: Workbench) -> sf.Pipeline:
    @sf.pipeline("texts")
    def made(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", "user long, text string"))
        said = source.key_by("user").process("said", Said, output="text string")
        said.collect("out", sf.memory("out"))

    return made


@pytest.mark.slow
def test_only_jobs_of_operators_whose_rows_stay_small_go_unmeasured(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sf.pipeline("widths")
    def widths(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", "user long, text string"))
        numbers = source.transform(lambda rows: rows.select("user"), type="user long")
        small = numbers.key_by("user").process("small", Count, output="n long")
        small.collect("one", sf.memory("one"))
        small.collect("other", sf.memory("other"))
        numbers.key_by("user").process("direct", Count, output="n long").collect("third", sf.memory("third"))
        source.key_by("user").process("wide", Count, output="n long").collect("fourth", sf.memory("fourth"))
        source.collect("rows", sf.memory("rows"))
        numbers.key_by("user").process("said", Said, output="text string").collect(
            "fifth", sf.memory("fifth")
        )

    seen = watched(monkeypatch)
    bench.rows("in", [{"user": 1, "text": "a"}, {"user": 1, "text": "b"}])
    bench.run(widths)
    # The operator with two readers, then the sinks with an operator of their own, then the others. The third of these operators takes
    # rows that stay small, but what it puts out goes into Arrow batches again.
    assert seen == [True, True, False, False, False, False, False]
    assert sf.memory("fourth").rows == [{"n": 2}]
    assert sf.memory("third").rows == [{"n": 2}]


def test_rows_that_were_narrow_may_become_eight_times_as_wide(spark: SparkSession, limits: Any) -> None:
    text = spark.range(1).selectExpr("string(id) as text")
    limits(bytes="80001b", records="1000")
    assert stays_small(text, widest=10)
    assert not stays_small(text, widest=10.5)
    assert not stays_small(text, widest=0), "nobody knows"
    limits(bytes="64m", records="0")
    assert not stays_small(text, widest=10), "a batch has as many rows as there are"


@pytest.mark.parametrize(
    "figures", [{}, {"operators": None}, {"operators": {"op": {"metrics": {"max_row_bytes": "wide"}}}}]
)
def test_figures_that_do_not_tell_the_width_are_none(figures: dict[str, Any]) -> None:
    assert widest_of(figures, "op") == 0


@pytest.mark.slow
def test_text_goes_unmeasured_behind_a_batch_of_narrow_rows(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    narrow, wide = {"user": 1, "text": "a"}, {"user": 1, "text": "a" * 10_000}
    for row in (narrow, narrow, wide, narrow):
        bench.rows("in", [row])
    bench.run(texts(bench))
    assert seen == [False, True, True, False], "the first of a run; behind narrow ones; behind a wide one"
    widths = [widest_of(record.statistics, "said") for record in bench.records("texts")][-3:]
    assert [width > 1000 for width in widths] == [False, True, False]
    seen.clear()
    bench.rows("in", [narrow])
    bench.rows("in", [narrow])
    bench.run(texts(bench))
    assert seen == [False, True], "a run begins measured"


def test_a_batch_that_failed_is_measured(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch, fails=True)
    for _ in range(2):
        bench.rows("in", [{"user": 1, "text": "a"}])
    bench.run(texts(bench), tolerable_failed_batches=1, failure_backoff="10 ms")
    assert seen == [False, True, False]


def test_no_limit_is_lifted_while_a_function_of_the_batch_before_may_run(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the same session, and its rows may be wide."""

    @sf.pipeline("beside")
    def beside(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", "user long"))
        counted = source.key_by("user").process("counted", Count, output="n long")
        counted.append("table", sf.delta(str(bench.folder / "table")))
        source.for_each_batch("given", lambda frame, delivery: None)

    seen = watched(monkeypatch)
    for in_flight in (1, 2):
        bench.rows("in", [{"user": 1}])
        bench.run(beside, max_concurrent_checkpoints=in_flight)
        assert seen == [in_flight == 1, False]
        seen.clear()

"""Feeds of changes as tables of what is there: deletes reach the table once, go back with it, and none is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.jobs.job import Job
from stateflow.operators.ready.grouping.groups import whole
from stateflow.pipelines.conditions.evaluation import holds
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.sinks.deletion import column_of, deletion
from tests.operators.ready.test_aggregates_against_duckdb import CONDITIONS, ROWS, table
from tests.pipelines.test_like_patterns import PATTERNS, TEXTS, answers
from tests.refusals.refusal import refused
from tests.spark.doubled_quotes import as_this_spark_writes
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


@dataclass
class Change:
    id: int
    version: int
    name: str
    op: str


CHANGE = "id long, version long, name string, op string"


def customers(bench: Workbench) -> sf.Pipeline:
    @sf.pipeline("customers")
    def declare(flow: sf.Flow) -> None:
        changes = flow.source("changes", bench.source("changes", CHANGE), Change)
        newest = changes.key_by("id", order_by="version").latest("newest")
        newest.upsert("out", sf.delta(str(bench.folder / "out")), delete_when="op = 'delete'")

    return declare


@pytest.mark.system
def test_a_feed_of_changes_becomes_a_table_of_what_is_there_and_goes_back(
    spark: SparkSession, bench: Workbench
) -> None:
    flow, job = customers(bench), Job(str(bench.folder / "root"), "customers")
    bench.rows("changes", [Change(1, 1, "ann", "insert"), Change(2, 1, "bob", "insert")])
    bench.run(flow, retained_checkpoints=20)
    early, before = job.checkpoints()[-1].slot, live(spark, bench)
    assert before == [(1, 1, "ann", "insert"), (2, 1, "bob", "insert")]
    bench.rows("changes", [Change(1, 3, "ann", "delete"), Change(2, 2, "rob", "update")])
    # Older than the delete: it may not bring the row back.
    bench.rows("changes", [Change(1, 2, "anna", "update"), Change(3, 1, "cy", "delete")])
    bench.run(flow, retained_checkpoints=20, parallelism=3)
    after = live(spark, bench)
    assert after == [(2, 2, "rob", "update")]
    job.restore(f"checkpoint:{early}", flow, options=bench.options(), rewind_sinks=True).apply()
    assert live(spark, bench) == before
    bench.run(flow, retained_checkpoints=20)
    assert live(spark, bench) == after
    bench.rows("changes", [Change(1, 4, "ann", "insert")])
    bench.run(flow)
    assert live(spark, bench) == [(1, 4, "ann", "insert"), *after]


def live(spark: SparkSession, bench: Workbench) -> list[Any]:
    return contents(spark, bench.folder / "out")


@pytest.mark.parametrize("what", ["a filter", "a left anti join", "a sample"])
def test_a_filter_that_only_spark_sees_is_refused_when_the_run_starts(
    spark: SparkSession, bench: Workbench, what: str
) -> None:
    gone = spark.createDataFrame([("delete",)], "op string")

    def kept(frame: Any) -> Any:
        if what == "a left anti join":
            rest = frame.join(gone, "op", "left_anti")
        else:
            rest = frame.sample(0.5) if what == "a sample" else frame.where("op <> 'delete'")
        return rest.select("id", "version", "name", "op")

    def changes(flow: sf.Flow) -> sf.Stream:
        rows = flow.source("changes", bench.source("changes", CHANGE), Change)
        newest = rows.key_by("id", order_by="version").latest("newest")
        return newest.transform(lambda frame: kept(frame), Change)

    @sf.pipeline("filtered")
    def filtered(flow: sf.Flow) -> None:
        changes(flow).upsert("out", sf.delta(str(bench.folder / "out")))

    bench.rows("changes", [Change(1, 1, "ann", "insert")])
    with refused(sf.UsageError, "transform-2", f"({what}", "sink 'out'"):
        bench.run(filtered)
    assert bench.records("filtered") == []


def test_a_transform_that_computes_columns_of_changes_may_look_them_up(
    spark: SparkSession, bench: Workbench
) -> None:
    names = spark.createDataFrame([("insert", 1), ("none", 0)], "op string, number long").where("number > 0")

    @sf.pipeline("computed")
    def computed(flow: sf.Flow) -> None:
        rows = flow.source("changes", bench.source("changes", CHANGE), Change)
        newest = rows.key_by("id", order_by="version").latest("newest")
        numbered = newest.transform(lambda frame: frame.join(names, "op", "left").select("id", "number"))
        numbered.upsert("out", sf.delta(str(bench.folder / "out")))

    bench.rows("changes", [Change(1, 1, "ann", "insert")])
    bench.run(computed)
    assert live(spark, bench) == [(1, 1)]


def test_patterns_of_like_and_texts_mean_what_they_mean_in_sparks_sql(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text,) for text in TEXTS], "s string")
    in_sql = [
        f"coalesce({as_this_spark_writes(spark, text)}, false) AS p{number}"
        for number, text in enumerate(PATTERNS)
    ]
    in_sink = [
        F.coalesce(column_of(deletion("a test", text, frame.schema)), F.lit(False)).alias(f"d{number}")
        for number, text in enumerate(PATTERNS)
    ]
    found = frame.selectExpr("s", *in_sql).collect()
    deletes = frame.select(*in_sink).collect()
    for number, text in enumerate(PATTERNS):
        wanted = [row["s"] for row in found if row[f"p{number}"]]
        assert answers(text) == wanted, text
        assert [one for one, row in zip(TEXTS, deletes, strict=True) if row[f"d{number}"]] == wanted, text


def test_a_condition_means_in_a_sink_what_it_means_in_an_aggregate(spark: SparkSession) -> None:
    rows: pa.Table = table(7, 400)
    zone, ansi = spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.ansi.enabled")
    frame = spark.createDataFrame(rows)
    conditions = [*CONDITIONS, "sent < '2026-01-01 12:00:00'", "n / 0 > 1 OR n % 0 = 1", "name LIKE '%\\\\%'"]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for text in conditions:
            condition = condition_of("a test", text, row_type(ROWS))
            wanted = holds(condition, lambda name: whole(rows[name]), rows.num_rows).tolist()
            column = column_of(deletion("a test", text, frame.schema))
            found = [row[0] is True for row in frame.select(column).collect()]
            assert found == wanted, text
    finally:
        assert zone is not None
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert ansi == "true", "Spark's own division by zero would fail"

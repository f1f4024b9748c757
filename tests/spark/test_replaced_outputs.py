"""Outputs that somebody else replaced by another table, or took back while rows were on their way to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError, StateflowError, UsageError
from stateflow.spark.carry_out import Sinks
from stateflow.spark.inputs.output_watch import OutputWatch
from stateflow.spark.loop import BatchReport
from stateflow.spark.runner import RunReport, RunRequest, run
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents

pytestmark = pytest.mark.slow


def pipeline(bench: Workbench, mode: str = "append") -> sf.Pipeline:
    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        rows = flow.source("rows", bench.source("rows", "id long"), "id long")
        target = sf.delta(str(bench.folder / "copies"))
        rows.append("copies", target) if mode == "append" else rows.upsert("copies", target, keys=["id"])

    return copies


@pytest.fixture
def table(bench: Workbench) -> Path:
    return bench.folder / "copies"


def ran(
    bench: Workbench, *ids: int, after: Mapping[int, Any] | None = None, mode: str = "append"
) -> RunReport:
    """A run of a batch for each id. `after`: what is done when so many batches are complete."""
    for number in ids:
        bench.rows("rows", [{"id": number}])
    reports: list[BatchReport] = []

    def listen(report: BatchReport) -> None:
        reports.append(report)
        if act := (after or {}).get(len(reports)):
            act()

    return run(RunRequest(pipeline(bench, mode), bench.options(), {}, listener=listen))


def replace(spark: SparkSession, table: Path) -> None:
    """By its name in a catalog: Delta replaces no table that it knows by its path alone."""
    spark.sql(f"CREATE TABLE replaced USING delta LOCATION '{table}'")
    spark.sql(f"CREATE OR REPLACE TABLE replaced (id BIGINT) USING delta LOCATION '{table}'")
    spark.sql("DROP TABLE replaced")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_that_was_replaced_by_another_one_is_refused_until_it_is_put_back(
    spark: SparkSession, bench: Workbench, table: Path, mode: str
) -> None:
    ran(bench, 1, 2, mode=mode)
    version = len(list((table / "_delta_log").glob("*.json"))) - 1
    replace(spark, table)
    with refused(DisagreementError, str(table), "CREATE OR REPLACE", "a new sink uid"):
        ran(bench, 3, mode=mode)
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    ran(bench, mode=mode)
    assert contents(spark, str(table), "id") == [1, 2, 3]


def test_a_table_that_is_replaced_between_two_batches_is_refused(
    spark: SparkSession, bench: Workbench, table: Path
) -> None:
    with refused(DisagreementError, "CREATE OR REPLACE"):
        ran(bench, 1, 2, 3, after={2: lambda: replace(spark, table)})
    assert contents(spark, str(table), "id") == []


def test_a_table_that_is_dropped_between_two_batches_is_refused_with_what_helps(
    spark: SparkSession, bench: Workbench, table: Path
) -> None:
    def drop() -> None:
        table.rename(table.with_name("dropped"))

    with refused(DisagreementError, str(table), "put"):
        ran(bench, 1, 2, after={1: drop})
    with refused(DisagreementError, "put it back"):
        ran(bench)
    table.with_name("dropped").rename(table)
    ran(bench)
    assert contents(spark, str(table), "id") == [1, 2]


@pytest.mark.parametrize("when", ["between two batches", "after the last batch"])
def test_a_table_that_goes_back_while_a_run_is_under_way_is_told_once(
    spark: SparkSession, bench: Workbench, table: Path, when: str
) -> None:
    def go_back() -> None:
        by_hand.go_back(table, 1 if "between" in when else 2)

    (told,) = ran(bench, 1, 2, 3, after={3 if "last" in when else 2: go_back}).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert contents(spark, str(table), "id") == ([1, 3] if "between" in when else [1, 2])
    if "between" in when:
        # An endless run has no end at which it would say so.
        assert bench.records("copies")[-1].statistics["warnings"] == [told]
        assert ran(bench, 4).warnings == ()


def test_a_table_that_goes_back_before_the_first_batch_of_a_run_is_told(
    spark: SparkSession, bench: Workbench, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the run has looked at it, and not prepared anything."""
    ran(bench, 1, 2)
    begin = OutputWatch.begin

    def overtaken(watch: OutputWatch) -> None:
        begin(watch)
        by_hand.go_back(table, 1)

    monkeypatch.setattr(OutputWatch, "begin", overtaken)
    (told,) = ran(bench, 3).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert contents(spark, str(table), "id") == [1, 3]


def test_a_table_that_goes_back_before_a_decided_record_arrives_is_told(
    spark: SparkSession, bench: Workbench, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(bench, 1, 2)
    with monkeypatch.context() as patch:

        def dies(*_: Any) -> dict[str, str]:
            raise RuntimeError("died")

        patch.setattr(Sinks, "carry_out", dies)
        with pytest.raises(StateflowError, match="died"):
            ran(bench, 3)
    by_hand.go_back(table, 1)
    (told,) = ran(bench).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert contents(spark, str(table), "id") == [1, 3]


def test_a_table_that_goes_back_between_decision_and_commit_gets_the_rows_and_is_told(
    spark: SparkSession, bench: Workbench, table: Path
) -> None:
    """By Spark itself, which leaves no list of the slots behind."""
    calls: list[int] = []

    def go_back(_: DataFrame, delivery: sf.Delivery) -> None:
        calls.append(delivery.slot)
        if len(calls) == 3:
            spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")

    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        rows = flow.source("rows", bench.source("rows", "id long"), "id long")
        rows.for_each_batch("before", go_back)
        rows.append("copies", sf.delta(str(table)))

    for number in (1, 2, 3):
        bench.rows("rows", [{"id": number}])
    (told,) = bench.run(copies).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert contents(spark, str(table), "id") == [1, 3]


def test_two_sinks_into_a_table_that_is_only_made_now_are_refused(
    spark: SparkSession, bench: Workbench
) -> None:
    """One by the name, and one by the place that the catalog gives it."""
    spark.sql("CREATE SCHEMA IF NOT EXISTS twice")
    try:
        spark.sql("CREATE TABLE twice.probe (id BIGINT) USING delta")
        folder = Path(spark.sql("DESCRIBE DETAIL twice.probe").first()["location"].removeprefix("file:"))  # type: ignore[index]

        @sf.pipeline("twice")
        def twice(flow: sf.Flow) -> None:
            rows = flow.source("rows", bench.source("rows", "id long"), "id long")
            rows.append("by_name", sf.table("twice.out", create=True))
            rows.append("by_path", sf.delta(str(folder.with_name("out"))))

        bench.rows("rows", [{"id": 1}])
        with refused(UsageError, "'by_name'", "'by_path'", "one place"):
            bench.run(twice)
        assert spark.table("twice.out").collect() == []
    finally:
        spark.sql("DROP SCHEMA twice CASCADE")

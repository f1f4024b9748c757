"""A source that loses, while a run reads it, what comes behind its position: the run says what the next one would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError
from stateflow.spark.loop import BatchReport
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import ORDER, Order, Workbench, at


def file_of(table: Path, version: int) -> Path:
    lines = (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return next(table / action["add"]["path"] for action in map(json.loads, lines) if "add" in action)


def vacuumed(spark: SparkSession, table: Path) -> None:
    """As a compaction and a VACUUM leave it: of versions that are in the log still the files are gone."""
    for version in (1, 2):
        file_of(table, version).unlink()


def cleaned(spark: SparkSession, table: Path) -> None:
    """As the clean-up of a log leaves it: the table has a checkpoint, and the versions before that are gone."""
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.forTable(spark._jsparkSession, str(table)).checkpoint()
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "named"),
    [
        (vacuumed, ("has to go on at version", "was vacuumed")),
        (cleaned, ("has to go on at version", "now starts at version 3")),
    ],
    ids=["files", "versions"],
)
def test_what_retention_takes_from_a_run_is_told_as_the_next_run_tells_it(
    bench: Workbench, lose: Callable[[SparkSession, Path], None], named: tuple[str, ...]
) -> None:
    table = bench.folder / "orders"
    for amount in (1, 2, 4, 8):
        by_hand.append(table, [(1, "a", float(amount), at(amount))], by_hand.columns(ORDER))

    @sf.pipeline("reader")
    def reader(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.delta(str(table), options={"maxFilesPerTrigger": 1}), Order)
        rows.collect("rows", sf.memory(f"rows-{bench.folder.name}"))

    seen: list[int] = []

    def listen(report: BatchReport) -> None:
        seen.append(report.rows)
        if len(seen) == 1:
            lose(bench.spark, table)

    with refused(DisagreementError, "source 'orders'", str(table), *named) as first:
        run(RunRequest(reader, bench.options(), listener=listen))
    assert seen == [1]
    with refused(DisagreementError, str(first.value)):
        bench.run(reader)

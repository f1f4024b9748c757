"""A source that became another kind under its uid: its run is refused before anything is decided, and nothing of the job changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import IncompatibleError
from tests.refusals.refusal import refused
from tests.spark.conftest import bench  # noqa: F401
from tests.spark.pipelines import ORDER, Order, Workbench, at


def reading(bench: Workbench, source: Any, rows: Any = Order) -> sf.Pipeline:  # noqa: F811
    @sf.pipeline("copy")
    def copy(flow: sf.Flow) -> None:
        flow.source("src", source, rows).append("out", sf.delta(str(bench.folder / "out")))

    return copy


def opened(path: Path) -> Any:
    return lambda spark: spark.readStream.format("delta").load(str(path))


def ticks(spark: SparkSession) -> Any:
    return (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=2, startTimestamp=1_750_000_000_000)
        .load()
    )


@pytest.fixture
def table(bench: Workbench) -> Path:  # noqa: F811
    path = bench.folder / "table"
    bench.spark.createDataFrame([(1, "a", 2.0, at(1))], ORDER).write.format("delta").save(str(path))
    return path


def unchanged(bench: Workbench, source: Any, *named: str, rows: Any = Order) -> None:  # noqa: F811
    before = bench.states("copy")
    with refused(IncompatibleError, "source 'src' is now", *named, "give it a new uid"):
        bench.run(reading(bench, source, rows))
    assert bench.states("copy") == before


@pytest.mark.slow
def test_files_become_a_table_or_a_stream(bench: Workbench, table: Path) -> None:  # noqa: F811
    bench.rows("in", [Order(1, "a", 2.0, at(1))])
    bench.run(reading(bench, sf.files(str(bench.folder / "in"), "json")))
    unchanged(bench, sf.delta(str(table)), "a delta source", "a file offset")
    unchanged(bench, opened(table), "a delta source", "a file offset")
    unchanged(bench, ticks, "another stream of Spark's", "a file offset", rows=None)


def test_a_table_becomes_files(bench: Workbench, table: Path) -> None:  # noqa: F811
    bench.run(reading(bench, sf.delta(str(table))))
    bench.rows("in", [Order(1, "a", 2.0, at(1))])
    unchanged(bench, sf.files(str(bench.folder / "in"), "json"), "a file source", "a delta offset")
    unchanged(bench, bench.source("in", ORDER), "a file source", "a delta offset")


def test_a_stream_of_spark_s_becomes_a_table(bench: Workbench, table: Path) -> None:  # noqa: F811
    bench.run(reading(bench, ticks, None), trigger="until-stopped", stop_after=1)
    unchanged(bench, sf.delta(str(table)), "a delta source", "an offset of another kind")
    unchanged(bench, opened(table), "a delta source", "an offset of another kind")

"""Replays beside outputs whose sinks stage other columns than the pipeline puts out: what differs is seen, or said to be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.cli.output import TextTable
from stateflow.cli.replay import pieces
from stateflow.connectors import Sink
from stateflow.connectors.files.sink import FilesAppend
from stateflow.replay.comparison import ReplayReport
from tests.connectors.iceberg_catalog import NAME, sql_catalog
from tests.spark.pipelines import Workbench


@dataclass
class Order:
    id: int
    amount: float


@dataclass
class Priced:
    id: int
    amount: float
    at: datetime
    exact: Decimal
    tags: list[str]
    note: str | None
    raw: bytes


def pipeline(
    bench: Workbench, factor: float = 1.0, least: float = 0.0, forms: Sequence[str] = ("json", "parquet")
) -> sf.Pipeline:
    def priced(orders: DataFrame) -> DataFrame:
        columns = (
            "id",
            f"cast(amount * {factor} as double) as amount",
            "timestamp_micros(1750000000123456 + id) as at",
            "cast(id as decimal(38,18)) as exact",
            "array('a\"b', string(id)) as tags",
            "if(id = 1, null, 'two lines\\n') as note",
            "unhex('00ff') as raw",
        )
        return orders.where(F.col("amount") > least).selectExpr(*columns)

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.files(str(bench.folder / "orders"), "json"), Order)
        out = rows.transform(priced, Priced)
        for form in forms:
            lake = sf.iceberg("shop.priced", catalog=NAME, create=True)
            out.append(form, lake if form == "iceberg" else sf.files(str(bench.folder / form), form))

    return orders


@pytest.mark.slow
def test_rows_of_json_are_compared_with_what_the_code_puts_out_now(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(spark, tmp_path)
    bench.rows("orders", [Order(id, float(id)) for id in range(5)])
    bench.run(pipeline(bench))
    last = bench.records("orders")[-1].slot

    def replayed(**changed: float) -> ReplayReport:
        return bench.job("orders").replay(pipeline(bench, **changed), last, options=bench.options())

    same = replayed()
    assert same.is_same, same.document()
    assert {uid: (sink.before, sink.after) for uid, sink in same.sinks.items()} == {
        "json": (4, 4),
        "parquet": (4, 4),
    }
    for changed, counts in (({"factor": 7.0}, {"gone": 4, "new": 4}), ({"least": 2.0}, {"gone": 2})):
        other = replayed(**changed)
        assert {uid: sink.counts for uid, sink in other.sinks.items()} == {"json": counts, "parquet": counts}
        assert other.excess(0.0)
    # As of a sink of messages, whose columns have nothing in common with those of its output.
    monkeypatch.setattr(FilesAppend, "put_out", Sink.put_out)
    unknown = replayed(factor=7.0)
    assert "other columns (line)" in unknown.uncompared[0]
    assert unknown.sinks["parquet"].counts == {"gone": 4, "new": 4}
    assert "cannot be compared" in unknown.excess(0.99)
    assert "only max_changed=1" in unknown.excess(0.99)
    assert unknown.excess(1.0) == ""
    (shown,) = (
        piece for piece in pieces(unknown) if isinstance(piece, TextTable) and "delivered" in piece.columns
    )
    assert {row[0]: row[1:] for row in shown.rows} == {
        "json": ("?",) * 5,
        "parquet": ("4", "4", "4", "4", "0"),
    }


@pytest.mark.slow
def test_rows_in_data_files_of_iceberg_are_compared_until_these_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)
    with sql_catalog(tmp_path / "lake"):
        bench.rows("orders", [Order(id, float(id)) for id in range(5)])
        bench.run(pipeline(bench, forms=["iceberg"]))
        last = bench.records("orders")[-1].slot

        def replayed(**changed: float) -> ReplayReport:
            code = pipeline(bench, forms=["iceberg"], **changed)
            return bench.job("orders").replay(code, last, options=bench.options())

        same = replayed()
        assert same.is_same, same.document()
        assert (same.sinks["iceberg"].before, same.uncompared, same.excess(0.0)) == (4, [], "")
        other = replayed(factor=7.0)
        assert other.sinks["iceberg"].counts == {"gone": 4, "new": 4}
        for file in (tmp_path / "lake").rglob("*.parquet"):
            file.unlink()
        unknown = replayed()
        assert "data files" in unknown.uncompared[0]
        assert "only max_changed=1" in unknown.excess(0.0)


@pytest.mark.slow
def test_a_sink_that_the_job_itself_has_given_up_is_named_and_not_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)
    bench.rows("orders", [Order(1, 1.0)])
    bench.run(pipeline(bench))
    first = bench.records("orders")[-1].slot
    bench.rows("orders", [Order(2, 2.0)])
    bench.run(pipeline(bench, forms=["json"]))

    def replayed(last: int | str) -> ReplayReport:
        code = pipeline(bench, forms=["json"])
        return bench.job("orders").replay(code, first, last, options=bench.options())

    both = replayed("latest")
    assert (both.batches, both.excess(0.0), list(both.sinks)) == (2, "", ["json"])
    assert "had given up sink 'parquet'" in both.notes[0]
    assert "no sink 'parquet'" in replayed(first).excess(0.0)

"""With two records in flight a batch is prepared while tables of Iceberg lack the one before: they end as if one came after the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors.iceberg.sink import IcebergAppend
from stateflow.format.records import Prepared
from tests.connectors.iceberg_catalog import rows_of, sql_catalog
from tests.spark.pipelines import Workbench

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
BATCHES = 4


@dataclass
class Order:
    id: int
    batch: int


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with sql_catalog(tmp_path / "lake") as made:
        yield made


def test_both_kinds_of_writes_end_as_if_each_batch_came_after_the_one_before(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, expected, prepared = (
        Workbench(spark, tmp_path),
        {},
        [threading.Event() for _ in range(BATCHES + 2)],
    )
    seen = itertools.count()
    prepare = IcebergAppend.prepare

    def noted(sink: IcebergAppend, *given: Any) -> Prepared:
        try:
            return prepare(sink, *given)
        finally:
            prepared[next(seen)].set()

    monkeypatch.setattr(IcebergAppend, "prepare", noted)
    for number in range(BATCHES):
        # Each batch has keys of the batch before, and one of its own.
        rows = [{"id": key, "batch": number} for key in range(number, number + 4)]
        bench.rows("orders", rows)
        expected |= {row["id"]: number for row in rows}
    waits = itertools.count(1)
    overlapped = []

    def slow(frame: DataFrame, delivery: Any) -> None:
        overlapped.append(prepared[next(waits)].wait(20))

    @sf.pipeline("lake")
    def lake(flow: sf.Flow) -> None:
        orders = flow.source("orders", bench.source("orders", "id long, batch long"), Order)
        # A delivery that lasts until the next batch is prepared. The tables get their rows behind it.
        orders.for_each_batch("slow", slow)
        orders.append("all", sf.iceberg("shop.all", catalog="lake", create=True))
        newest = orders.key_by("id").aggregate("newest", "id long, batch long", batch=sf.max("batch"))
        newest.upsert("newest", sf.iceberg("shop.newest", catalog="lake", create=True))

    bench.run(lake, max_concurrent_checkpoints=2)
    assert overlapped.count(True) >= BATCHES - 2
    assert {row["id"]: row["batch"] for row in rows_of(catalog, "shop.newest")} == expected
    assert len(rows_of(catalog, "shop.newest")) == len(expected)
    everything = [(row["id"], row["batch"]) for row in rows_of(catalog, "shop.all")]
    assert sorted(everything) == sorted(
        (key, number) for number in range(BATCHES) for key in range(number, number + 4)
    )

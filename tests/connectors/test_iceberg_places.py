"""One table of Iceberg under two names of catalogs is one place: no two sinks write to it, and no source reads what a sink writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.spark.inputs import connected
from stateflow.testing.sink_log import make_sink
from tests.connectors.iceberg_catalog import NAME, sql_catalog
from tests.refusals.refusal import refused
from tests.spark.conftest import bench  # noqa: F401
from tests.spark.pipelines import Workbench

OTHER = "lakehouse"


@dataclass
class Numbered:
    id: int


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Two names of one catalog, as a REST catalog has them that two sections of a configuration lead to."""
    with sql_catalog(tmp_path / "lake") as made:
        table = made.create_table("shop.orders", pa.schema([("id", pa.int64())]))
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake/other.db"}
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__{OTHER.upper()}__{name.upper()}", value)
        other = load_catalog(OTHER, **properties)
        other.create_namespace("shop")
        other.register_table("shop.orders", table.metadata_location)
        yield made


def test_capitals_make_no_other_catalog() -> None:
    @sf.pipeline("loop")
    def loop(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.iceberg("shop.orders", catalog="lake"), Numbered)
        rows.append("out", sf.iceberg("shop.orders", catalog="LAKE"))

    with refused(UsageError, "source 'orders'", "sink 'out'", "another target"):
        loop.build({})

    @sf.pipeline("twice")
    def twice(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.iceberg("shop.orders", catalog="lake"), Numbered)
        rows.append("one", sf.iceberg("shop.out", catalog="Lake"))
        rows.upsert("two", sf.iceberg("shop.out", catalog="LAKE"), keys="id")

    with refused(UsageError, "'one'", "'two'", "one place"):
        twice.build({})


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_sink_says_which_table_it_is_whatever_the_catalog_is_called(
    catalog: Catalog, spark: SparkSession, mode: str
) -> None:
    catalog.create_table("shop.others", pa.schema([("id", pa.int64())]))
    found = []
    for name, known in (("shop.orders", NAME), ("shop.orders", OTHER), ("shop.others", NAME)):
        sink = make_sink(
            "out", mode, sf.iceberg(name, catalog=known), {} if mode == "append" else {"keys": "id"}
        )
        sink.open(spark, spark.createDataFrame([], "id long").schema)
        found.append(sink.identity)
    assert found[0] == found[1] != found[2]
    assert all(found)


@pytest.mark.skipif(connected.SupportsTriggerAvailableNow is None, reason="Spark is older than 4.2")
def test_a_source_that_reads_what_a_sink_writes_by_another_catalog_is_refused(
    catalog: Catalog,
    bench: Workbench,  # noqa: F811
) -> None:
    @sf.pipeline("loop")
    def loop(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.iceberg("shop.orders", catalog=NAME), Numbered)
        rows.append("out", sf.iceberg("shop.orders", catalog=OTHER))

    with refused(UsageError, "source 'orders'", "sink 'out'", "in two ways", "another target"):
        bench.run(loop)

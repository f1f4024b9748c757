"""With two records in flight a batch is prepared while the table lacks the rows of the one before: a table that judges rows by those
that it has is asked when it has them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors.postgres.sink import PostgresAppend
from stateflow.errors import IncompatibleError
from stateflow.format.records import Prepared
from tests.connectors.postgres_server import Server
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, shop: Server) -> Workbench:
    shop.run("CREATE TABLE shop.node (id bigint PRIMARY KEY, parent bigint REFERENCES shop.node)")
    return Workbench(spark, tmp_path)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the second batch is prepared, or could not be."""
    prepare, ended, begun = PostgresAppend.prepare, threading.Event(), []

    def noted(sink: PostgresAppend, *given: Any) -> Prepared:
        begun.append(given)
        try:
            return prepare(sink, *given)
        finally:
            if len(begun) == 2:
                ended.set()

    monkeypatch.setattr(PostgresAppend, "prepare", noted)
    return ended


def pipeline(bench: Workbench, second: threading.Event) -> sf.Pipeline:
    @sf.pipeline("nodes")
    def nodes(flow: sf.Flow) -> None:
        rows = flow.source("nodes", bench.source("nodes", "id long, parent long"))
        # A delivery that lasts until the next batch is prepared. The table gets its rows behind it.
        rows.for_each_batch("slow", slow)
        rows.append("nodes", sf.postgres("shop.node", connection="env:TEST_POSTGRES"))

    def slow(frame: DataFrame, delivery: Any) -> None:
        second.wait(120)

    return nodes


def test_rows_that_need_those_of_the_batch_before_are_taken(
    bench: Workbench, database: Server, second: threading.Event
) -> None:
    bench.rows("nodes", [{"id": 1, "parent": None}])
    bench.rows("nodes", [{"id": 2, "parent": 1}])
    bench.run(pipeline(bench, second), max_concurrent_checkpoints=2)
    assert database.run("SELECT id, parent FROM shop.node ORDER BY 1") == [(1, None), (2, 1)]


def test_rows_that_the_table_refuses_for_those_of_the_batch_before_fail_before_the_decision(
    bench: Workbench, database: Server, second: threading.Event
) -> None:
    bench.rows("nodes", [{"id": 1, "parent": None}])
    bench.rows("nodes", [{"id": 1, "parent": None}])
    with refused(IncompatibleError, "shop.node refuses rows of", "no row was written"):
        bench.run(pipeline(bench, second), max_concurrent_checkpoints=2)
    assert database.run("SELECT id FROM shop.node") == [(1,)]
    assert bench.job("nodes").log().pending == (), "no record that the table never takes"

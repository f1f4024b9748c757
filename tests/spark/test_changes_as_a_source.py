"""`sf.delta(path, changes=True)`: the rows of a table's change feed, and what a table without one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@pytest.mark.slow
def test_a_run_reads_the_changes_once_the_table_keeps_them(
    spark: SparkSession, bench: Workbench, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders")
    spark.sql(f"CREATE TABLE delta.`{table}` (id long, note string) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 'a')")

    @sf.pipeline("feeding")
    def feeding(flow: sf.Flow) -> None:
        columns = "id long, _change_type string, _commit_version long, _commit_timestamp timestamp"
        flow.source("orders", sf.delta(table, changes=True), columns).collect("out", sf.memory("feeding"))

    with refused(sf.UsageError, "source 'orders'", "no feed of its changes") as caught:
        bench.run(feeding)
    spark.sql(str(caught.value).split("from now on, ")[1].split(", and run again")[0])
    bench.run(feeding)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    bench.run(feeding)
    read = [(row["_change_type"], row["id"], row["_commit_version"]) for row in sf.memory("feeding").rows]
    assert read == [("insert", 1, 2), ("delete", 1, 3)]


def test_changes_are_one_word_for_an_option_of_deltas() -> None:
    assert sf.delta("/orders", changes=True) == sf.delta("/orders", options={"readChangeFeed": "true"})

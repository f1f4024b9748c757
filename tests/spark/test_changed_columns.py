"""A Delta source whose column was renamed or dropped while rows were unread: the run says how to read on, and that works."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "name"), [("RENAME COLUMN name TO called", "called"), ("DROP COLUMN more", "name")]
)
def test_a_column_that_was_renamed_or_dropped_ahead_is_told_with_the_way_to_read_on(
    spark: SparkSession, tmp_path: Path, change: str, name: str
) -> None:
    changed, other, output = (str(tmp_path / each) for each in ("changed", "other", "output"))
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    for table in (changed, other):
        spark.sql(f"CREATE TABLE delta.`{table}` (id long, name string, more int) USING delta {mapped}")
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 'a', 1)")
    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "checkpoints"),
            "cache_dir": str(tmp_path / "cache"),
            "local_fsync": False,
        },
        env={},
        folder=tmp_path,
    )

    def ran(name: str, conf: Mapping[str, str]) -> None:
        def picked(rows: DataFrame) -> DataFrame:
            return rows.selectExpr("id", f"{name} AS name")

        @sf.pipeline("copied")
        def copied(flow: sf.Flow) -> None:
            flow.source("other", sf.delta(other), "id long").collect("other", sf.memory("other_columns"))
            rows = flow.source("rows", sf.delta(changed), f"id long, {name} string")
            rows.transform(picked).append("copy", sf.delta(output))

        run(RunRequest(copied, options, master="local[2]", conf=conf))

    def copies() -> list[tuple[int, str]]:
        return contents(spark, output, "id", "name")

    ran("name", {})
    spark.sql(f"INSERT INTO delta.`{changed}` VALUES (2, 'b', 2)")
    spark.sql(f"ALTER TABLE delta.`{changed}` {change}")
    with pytest.raises(sf.IncompatibleError, match="a column renamed, dropped") as told:
        ran(name, {})
    assert str(told.value).startswith(f"source 'rows': the Delta table {Path(changed).as_uri()[:5]}") or str(
        told.value
    ).startswith(f"source 'rows': the Delta table {changed} has had")
    assert "'other'" not in str(told.value)
    assert "schemaTrackingLocation" not in str(told.value)
    advised = re.search("--conf (.*)=(true)`", str(told.value))
    assert advised is not None
    try:
        ran(name, {advised[1]: advised[2]})
    finally:
        spark.conf.unset(advised[1])
    assert copies() == [(1, "a"), (2, "b")]
    # Once was enough.
    spark.sql(f"INSERT INTO delta.`{changed}` (id, {name}) VALUES (3, 'c')")
    ran(name, {})
    assert copies() == [(1, "a"), (2, "b"), (3, "c")]


@dataclass
class Amount:
    id: int
    amount: int


@dataclass
class Value:
    id: int
    value: Annotated[int, sf.field(aliases=["amount"])]


@pytest.mark.slow
def test_an_output_whose_column_was_renamed_is_told_the_statement_that_keeps_its_values(
    spark: SparkSession, bench: Workbench
) -> None:
    output = bench.folder / "output"

    def pipeline(rows: type[Amount] | type[Value]) -> sf.Pipeline:
        @sf.pipeline("renamed")
        def renamed(flow: sf.Flow) -> None:
            read = flow.source("rows", sf.files(str(bench.folder / "rows"), "json"), rows)
            read.upsert("out", sf.delta(str(output)), keys="id")

        return renamed

    bench.rows("rows", [Amount(1, 5), Amount(2, 6)])
    bench.run(pipeline(Amount))
    bench.rows("rows", [Value(1, 7)])
    with refused(sf.IncompatibleError, "'value'", "RENAME COLUMN `amount` TO `value`") as told:
        bench.run(pipeline(Value))
    assert "ADD COLUMNS" not in str(told.value)
    said = str(told.value)
    for statement in said[said.index("ALTER TABLE") :].split("; "):
        spark.sql(statement)
    bench.run(pipeline(Value))
    assert sorted(contents(spark, output)) == [(1, 7), (2, 6)]

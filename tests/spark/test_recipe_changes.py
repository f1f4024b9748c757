"""A table that another job upserts: a stream of its rows is told so, and its change feed gives the right sums."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from scripts.recipes.story import loaded
from stateflow.spark.session.shipping import by_value
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


@dataclass
class Sold:
    shop: str
    region: str
    total: Annotated[Decimal, "decimal(18,2)"]
    at: int
    gone: bool


@pytest.mark.slow
def test_a_table_that_another_job_upserts_is_summed_up_by_its_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    page = Path("docs/recipes/changes.md").read_text(encoding="utf-8")
    assert f"```python\n{Path('examples/recipes/changes.py').read_text(encoding='utf-8')}```\n" in page
    recipe = loaded("changes")
    by_value([recipe])
    bench, shops, regions = Workbench(spark, tmp_path), str(tmp_path / "shops"), str(tmp_path / "regions")
    (tmp_path / "sold").mkdir()

    @sf.pipeline("writing")
    def writing(flow: sf.Flow) -> None:
        sold = flow.source("sold", sf.files(str(tmp_path / "sold"), "json"), Sold)
        table = sf.delta(shops, options={"delta.enableChangeDataFeed": "true"})
        sold.upsert("shops", table, keys=["shop"], order_by="at", delete_when="gone")

    @sf.pipeline("reading")
    def reading(flow: sf.Flow) -> None:
        rows = flow.source("shops", sf.delta(shops), "shop string, total decimal(18,2)")
        rows.collect("out", sf.memory("reading"))

    def write(*sold: tuple[str, str, int, int, bool]) -> None:
        bench.rows(
            "sold", [dict(zip(("shop", "region", "total", "at", "gone"), row, strict=True)) for row in sold]
        )
        bench.run(writing)

    def sums() -> list[Any]:
        bench.run(recipe.changes, {"input": shops, "output": regions})
        return [row[:2] + row[2:] for row in contents(spark, regions, "region", "total", "shops")]

    write(("ada", "north", 10, 1, False), ("bo", "north", 5, 1, False), ("cy", "south", 1, 1, False))
    bench.run(reading)
    assert sums() == [("north", Decimal(15), 2), ("south", Decimal(1), 1)]
    write(("ada", "north", 12, 2, False))
    assert sums() == [("north", Decimal(17), 2), ("south", Decimal(1), 1)]
    write(("ada", "south", 12, 3, False), ("bo", "north", 5, 3, True))
    assert sums() == [("north", Decimal(0), 0), ("south", Decimal(13), 2)]

    with refused(
        sf.IncompatibleError,
        "shops",
        "replaced or deleted",
        "version 2",
        "changes=True in sf.delta or sf.table",
        "docs/recipes/changes.md",
        "skipChangeCommits would",
    ):
        bench.run(reading)


def test_a_row_class_of_a_change_feed_has_to_know_what_is_gone() -> None:
    feed = sf.delta("/shops", options={"ReadChangeFeed": "TRUE"})
    with refused(sf.UsageError, "source 'shops'", "_change_type: str to Sold"):
        sf.Flow("x").source("shops", feed, Sold)
    sf.Flow("x").source("shops", feed, "shop string, _change_type string")

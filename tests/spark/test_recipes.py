"""Recipes through Spark: the rows of their stories reach the tables, as their pages show it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from scripts.recipes.stories import STORIES
from scripts.recipes.story import Batch, Story, loaded, told
from stateflow.spark.session.shipping import by_value
from stateflow.testing import FlowHarness
from tests.spark.pipelines import Workbench

TRIED = ("windows", "current")
"""One that appends when its windows end, and one that upserts and deletes. Operators beside them: `test_harness_agrees.py`."""


@pytest.mark.slow
def test_what_a_page_shows_is_what_a_run_puts_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file per batch, as the stories count them."""
    monkeypatch.setattr(sf, "files", partial(sf.files, per_batch=1))
    for story in (story for story in STORIES if story.recipe in TRIED):
        bench = Workbench(spark, tmp_path / story.recipe)
        bench.folder.mkdir()
        module = loaded(story.recipe)
        by_value([module])
        batches = list(told(story))
        (source,) = batches[0].rows
        for batch in batches:
            if batch.rows:
                bench.rows(source, batch.rows[source])
        output = str(bench.folder / "out")
        given = {"input": str(bench.folder / source), "output": output}
        bench.run(getattr(module, story.recipe), given, drain=story.final)
        table = [row.asDict() for row in spark.read.format("delta").load(output).collect()]
        assert sorted(map(_plain, table)) == sorted(_expected(story, batches)), story.recipe


def _expected(story: Story, batches: list[Batch]) -> list[Any]:
    rows = [
        dict(row if isinstance(row, dict) else vars(row))
        for batch in batches
        for row in batch.out.get("main", ())
    ]
    keys = story.flow().sinks[0].options.get("keys")
    if keys is None:
        return [_plain(row) for row in rows]
    table = {}
    for row in rows:
        goes = "delete" in (row.pop("_op", None), row.get("op"))
        table[tuple(row[name] for name in keys)] = None if goes else _plain(row)
    return [row for row in table.values() if row is not None]


def _plain(row: dict[str, Any]) -> Any:
    return tuple(
        sorted(
            (name, value.astimezone(UTC) if isinstance(value, datetime) else value)
            for name, value in row.items()
        )
    )


@pytest.mark.slow
def test_a_chain_does_what_its_page_says(spark: SparkSession, tmp_path: Path) -> None:
    page, file = Path("docs/recipes/chains.md"), Path("examples/recipes/chains.py")
    assert f"```python\n{file.read_text(encoding='utf-8')}```\n" in page.read_text(encoding="utf-8")
    module = loaded("chains")
    by_value([module])
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    harness = FlowHarness(module.chains, tmp_path)

    def order(id: str, minutes: int) -> dict[str, Any]:
        return {"id": id, "shop": "tea", "ts": noon + timedelta(minutes=minutes)}

    def payment(order_id: str, minutes: int) -> dict[str, Any]:
        return {"order_id": order_id, "ts": noon + timedelta(minutes=minutes)}

    harness.add("orders", order("a", 0), order("b", 5), order("a", 0))
    harness.add("payments", payment("a", 10))
    harness.run()
    harness.add("orders", order("c", 60), order("b", 5))
    harness.add("payments", payment("c", 61))
    harness.run()
    harness.add("orders", order("d", 300), order("e", 1))
    harness.add("payments", payment("x", 300))
    harness.run()
    day = {"shop": "tea", "day": noon.date()}
    assert harness.table("rate") == [{**day, "orders": 3, "paid": 2}]
    assert [row["id"] for row in harness.table("late")] == ["e"]
    harness.run(final=True)
    assert harness.table("rate") == [{**day, "orders": 4, "paid": 2}]

"""What the recipes do with the feed of a state: versions with their validity, features as of a label's time, an audit table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scripts.recipes.story import loaded
from stateflow.spark.session.shipping import by_value
from tests.spark.pipelines import Workbench


def ran(bench: Workbench, name: str, source: str, *batches: list[dict[str, Any]]) -> tuple[Any, str]:
    """The recipe, after a run for each batch, and its table."""
    recipe, output = loaded(name), str(bench.folder / "out")
    by_value([recipe])
    (bench.folder / source).mkdir()
    for rows in batches:
        bench.rows(source, rows)
        bench.run(getattr(recipe, name), {"input": str(bench.folder / source), "output": output})
    return recipe, output


def read(spark: SparkSession, changes: str) -> None:
    """As the pages do it."""
    spark.read.format("delta").load(changes).createOrReplaceTempView("changes")


@pytest.mark.parametrize("name", ["versions", "features", "audit"])
def test_a_page_shows_the_code(name: str) -> None:
    page = Path(f"docs/recipes/{name}.md").read_text(encoding="utf-8")
    assert f"```python\n{Path(f'examples/recipes/{name}.py').read_text(encoding='utf-8')}```\n" in page


@pytest.mark.slow
def test_each_version_is_valid_until_the_next_one(spark: SparkSession, bench: Workbench) -> None:
    recipe, changes = ran(
        bench, "versions", "customers",
        [{"id": 1, "tier": "basic", "updated": 1}, {"id": 2, "tier": "basic", "updated": 1}],
        [{"id": 1, "tier": "gold", "updated": 2}, {"id": 2, "tier": "basic", "updated": 2}],
    )  # fmt: skip
    first, second = (row.time for row in spark.sql(
        f"select distinct time from delta.`{changes}` order by time"
    ).collect())  # fmt: skip
    read(spark, changes)
    # A restore's row has the time of the batch behind it, in which the key may change once more.
    spark.sql(
        "select * from changes union all select id, state, 'restore', after, 'silver', slot - 1, time from changes where after = 'gold'"
    ).createOrReplaceTempView("changes")
    found = spark.sql(recipe.VALID).collect()
    assert sorted(map(tuple, found), key=str) == [
        (1, "basic", first, second), (1, "gold", second, None), (2, "basic", first, None)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_label_gets_what_was_known_at_its_time(spark: SparkSession, bench: Workbench) -> None:
    recipe, changes = ran(
        bench, "features", "payments",
        [{"user": 1, "amount": 5.0}], [{"user": 1, "amount": 2.0}, {"user": 2, "amount": 1.0}],
    )  # fmt: skip
    spark.sql(
        f"""select user, time as ts, true as churned from delta.`{changes}`
        union all select user, time - interval 1 microsecond, false from delta.`{changes}`"""
    ).createOrReplaceTempView("labels")
    read(spark, changes)
    found = spark.sql(recipe.TRAINING.format(delay="0 seconds")).collect()
    told = [
        (row.user, row.churned, row.known and tuple(row.known))
        for row in sorted(found, key=lambda r: (r.user, r.ts))
    ]
    assert told == [
        (1, False, None), (1, True, (1, 5.0)), (1, False, (1, 5.0)), (1, True, (2, 7.0)),
        (2, False, None), (2, True, (1, 1.0)),
    ]  # fmt: skip
    later = spark.sql(recipe.TRAINING.format(delay="1 microsecond")).where("churned").orderBy("user", "ts")
    assert [row.known and tuple(row.known) for row in later.collect()] == [None, (1, 5.0), None]


@pytest.mark.slow
def test_an_audit_table_has_the_changes_of_several_states(spark: SparkSession, bench: Workbench) -> None:
    _, table = ran(
        bench, "audit", "requests",
        [{"account": 7, "limit": 100.0, "owner": "ann"}], [{"account": 7, "limit": 250.0, "owner": "ann"}],
    )  # fmt: skip
    rows = spark.sql(f"select account, state, kind, before, after from delta.`{table}` order by slot, state")
    assert list(map(tuple, rows.collect())) == [
        (7, "limit", "put", None, "100.0"),
        (7, "owner", "put", None, "ann"),
        (7, "limit", "put", "100.0", "250.0"),
    ]

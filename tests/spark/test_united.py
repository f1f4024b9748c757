"""A batch of several sources: each is read by itself, and no row is read as another source's."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic import dataframe as classic

import stateflow as sf
from stateflow.errors import StateflowError
from stateflow.spark.internals.plans import parts_of_union
from tests.spark.pipelines import Workbench


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The frames that were kept in memory."""
    found: list[Any] = []
    persist = classic.DataFrame.persist

    def watched(frame: DataFrame, *level: Any) -> DataFrame:
        found.append(frame)
        return persist(frame, *level)

    monkeypatch.setattr(classic.DataFrame, "persist", watched)
    return found


def both(bench: Workbench, *, left_twice: bool = False) -> sf.Pipeline:
    @sf.pipeline("both")
    def job(flow: sf.Flow) -> None:
        opened = bench.source("left", "id long")

        def twice(spark: SparkSession) -> DataFrame:
            return opened(spark).union(bench.source("more", "id long")(spark))

        left = flow.source("left", twice if left_twice else opened)
        right = flow.source("right", bench.source("right", "name string, id long"))
        left.collect("l", sf.memory(f"l-{bench.folder.name}"))
        right.transform(lambda rows: rows.where("id > 0"), "name string, id long").collect(
            "r", sf.memory(f"r-{bench.folder.name}")
        )

    return job


def ids(bench: Workbench, name: str) -> list[int]:
    return sorted(row["id"] for row in sf.memory(f"{name}-{bench.folder.name}").rows)


def test_columns_of_several_sources_have_any_names(bench: Workbench) -> None:
    odd = "`größe` double, `order id` long, `a``b` array<struct<`c d`: map<string, struct<`maß`: long>>>>"
    found = sf.memory(f"odd-{bench.folder.name}")

    @sf.pipeline("odd")
    def job(flow: sf.Flow) -> None:
        flow.source("left", bench.source("left", odd)).collect("l", found)
        flow.source("right", bench.source("right", "id long")).collect(
            "r", sf.memory(f"r-{bench.folder.name}")
        )

    row = {"größe": 1.5, "order id": 2, "a`b": [{"c d": {"x": {"maß": 3}}}]}
    bench.rows("left", [row])
    bench.rows("right", [{"id": 1}])
    bench.run(job)
    assert [each["order id"] for each in found.rows] == [2]
    assert [each["größe"] for each in found.rows] == [1.5]
    assert ids(bench, "r") == [1]


def test_each_source_of_a_batch_is_read_by_itself(bench: Workbench, kept: list[Any]) -> None:
    for first in (1, 10):
        bench.rows("left", [{"id": first}, {"id": first + 1}])
        bench.rows("right", [{"name": "a", "id": -first}, {"name": "b", "id": first}])
    bench.run(both(bench))
    assert (ids(bench, "l"), ids(bench, "r")) == ([1, 2, 10, 11], [1, 10])
    assert [report.statistics["source_rows"] for report in bench.reports] == [{"left": 2, "right": 2}] * 2
    assert not kept, "the rows of a batch in memory are for several readers of one source"


def test_a_source_without_rows_is_told_from_the_other(bench: Workbench) -> None:
    bench.rows("left", [{"id": 1}])
    bench.rows("right", [{"name": "a", "id": 1}])
    bench.rows("left", [{"id": 2}])
    bench.run(both(bench))
    bench.rows("right", [{"name": "b", "id": 3}])
    bench.run(both(bench))
    assert (ids(bench, "l"), ids(bench, "r")) == ([1, 2], [1, 3])
    assert bench.reports[-1].statistics["source_rows"] == {"left": 0, "right": 1}


def test_a_source_that_is_a_union_is_split_by_its_rows(bench: Workbench, kept: list[Any]) -> None:
    bench.rows("left", [{"id": 1}])
    bench.rows("more", [{"id": 2}])
    bench.rows("right", [{"name": "a", "id": 3}])
    bench.run(both(bench, left_twice=True))
    assert (ids(bench, "l"), ids(bench, "r")) == ([1, 2], [3])
    assert kept


def test_a_row_of_another_source_fails_the_batch(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should Spark once unite in another order, no row may be lost for it."""
    monkeypatch.setattr(
        "stateflow.spark.inputs.open_inputs.parts_of_union",
        lambda batch: list(reversed(parts_of_union(batch))),
    )
    bench.rows("left", [{"id": 1}])
    bench.rows("right", [{"name": "a", "id": 1}])
    with pytest.raises(StateflowError, match="a batch held rows of another source"):
        bench.run(both(bench))
    assert not ids(bench, "l")

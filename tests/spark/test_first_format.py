"""What the first version of the library stored is opened, run on and restored: files that it wrote lie in tests/fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.jobs.job import Job
from tests.spark.stored_files import StoredFiles

pytestmark = pytest.mark.system

USERS = range(6)


class Place(StoredFiles):
    form = "first_format"

    def __init__(self, spark: SparkSession, folder: Path, backend: str) -> None:
        super().__init__(spark, folder, backend)
        self.given = {"input": str(folder / "input"), "output": str(folder / "output")}

    @property
    def job(self) -> Job:
        return Job(str(self.folder / "root"), "first")

    def told(self, output: str, since: int) -> dict[int, str]:
        """What the batch of the last rows put out, by key."""
        rows = self.spark.read.format("delta").load(f"{output}/told").collect()
        told = [row["told"] for row in rows if row["told"].startswith("(")]
        by_key: dict[int, str] = {}
        for text in sorted(told, key=lambda text: int(text.split(", ")[1])):
            by_key[int(text[1 : text.index(",")])] = text
        return by_key

    def expected(self, batches: int) -> dict[int, str]:
        """The same from rows alone, without Spark or any stored byte."""
        harness = sf.testing.KeyedHarness(self.pipeline.Everything, output="told string", key="user")
        for batch in range(batches):
            harness.rows(*(self.pipeline.Order(*row) for row in self.made.orders(batch)))
        return {key: text for key in USERS if (text := harness.state(key).told(key))[:1] == "("}


@pytest.fixture(params=["rocksdb", "memory"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path, request.param)


def test_a_run_goes_on_and_savepoints_are_restored(place: Place) -> None:
    expected = place.expected(3)
    place.made.append(place.spark, place.given["input"], 2)
    place.job.run(place.pipeline.first, place.given, options=place.options())
    found = place.told(place.given["output"], 3)
    latest = {row[0] for row in place.made.orders(2)}
    assert {key: found[key] for key in latest} == {key: expected[key] for key in latest}
    sums = place.spark.read.format("delta").load(f"{place.given['output']}/sums").collect()
    amounts = [row for batch in range(3) for row in place.made.orders(batch)]
    assert {key: max(row["total"] for row in sums if row["user"] == key) for key in latest} == {
        key: sum(row[2] for row in amounts if row[0] == key) for key in latest
    }
    for kind in ("native", "canonical"):
        fork = Job(str(place.folder / "root"), f"fork-{kind}")
        given = {"input": place.given["input"], "output": str(place.folder / f"output-{kind}")}
        plan = fork.restore(
            str(place.folder / f"savepoint-{kind}"), place.pipeline.first, given, options=place.options()
        )
        assert plan.check.compatible
        plan.apply()
        fork.run(place.pipeline.first, given, options=place.options())
        found = place.told(given["output"], 3)
        assert {key: found[key] for key in latest} == {key: expected[key] for key in latest}
        head = fork.log().head
        assert head is not None
        elements = head.operators["everything"].operator_states["seen"].parts
        assert sum(map(len, elements)) == sum(len(place.made.orders(batch)) for batch in range(3))

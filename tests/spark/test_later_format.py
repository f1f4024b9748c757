"""What later formats stored is opened, run on and restored, as the code of their day would have: evolved types, expiries,
namespaces, timers with many times, columns by time, ready-made operators, and state without keys."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateflow.jobs.job import Job
from tests.spark.stored_files import StoredFiles

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


class Place(StoredFiles):
    form = "later_format"

    def __init__(self, spark: SparkSession, folder: Path, backend: str) -> None:
        super().__init__(spark, folder, backend)
        self.expected: dict[str, list[str]] = json.loads((folder / "expected.json").read_text())

    def given(self, output: str = "output") -> dict[str, str]:
        return {"input": str(self.folder / "input"), "output": str(self.folder / output)}

    def told(self, output: str = "output") -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.made.told(self.spark, str(self.folder / output))
        return found


@pytest.fixture(params=["rocksdb", "memory"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path, request.param)


def test_a_run_goes_on(place: Place) -> None:
    place.made.append(place.spark, place.given()["input"], place.made.LAST)
    job = Job(str(place.folder / "root"), "later")
    job.run(place.pipeline.after, place.given(), options=place.options())
    assert place.told() == place.expected
    head = job.log().head
    assert head is not None
    states = head.operators["changing"].states
    assert {name for name, schema in states.items() if schema.versions} == {
        "known",
        "number",
        "items",
        "table",
    }


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_is_restored(place: Place, kind: str) -> None:
    before = place.told()
    place.made.append(place.spark, place.given()["input"], place.made.LAST)
    fork, given = Job(str(place.folder / "root"), f"fork-{kind}"), place.given(f"output-{kind}")
    plan = fork.restore(
        str(place.folder / f"savepoint-{kind}"), place.pipeline.after, given, options=place.options()
    )
    assert plan.check.compatible
    plan.apply()
    fork.run(place.pipeline.after, given, options=place.options())
    found = place.told(f"output-{kind}")
    for name in ("told", "hourly", "counted"):
        assert Counter(found[name]) == Counter(place.expected[name]) - Counter(before[name]), name
    assert set(found["carts"]) == set(place.expected["carts"]) - set(before["carts"])

"""What later formats stored is opened, run on and restored, as the code of their day would have: evolved types, expiries,
namespaces, timers with many times, columns by time, ready-made operators, and state without keys."""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from stateflow.config.options import Options, load
from stateflow.jobs.job import Job
from stateflow.spark.session.shipping import by_value

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "later_format"


def module(name: str) -> ModuleType:
    spec = spec_from_file_location(f"later_format_{name}", FIXTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Place:
    """The files of one backend, copied to where a test may change them."""

    def __init__(self, spark: SparkSession, folder: Path, backend: str) -> None:
        with tarfile.open(FIXTURES / f"{backend}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        self.spark, self.folder, self.backend = spark, folder, backend
        self.pipeline, self.made = module("pipeline"), module("make")
        by_value([self.pipeline])
        self.expected: dict[str, list[str]] = json.loads((folder / "expected.json").read_text())

    def given(self, output: str = "output") -> dict[str, str]:
        return {"input": str(self.folder / "input"), "output": str(self.folder / output)}

    def options(self) -> Options:
        given = {
            "checkpoint_dir": str(self.folder / "root"), "cache_dir": str(self.folder / "cache"),
            "scratch_dir": str(self.folder / "scratch"), "backend": self.backend, "parallelism": 2,
            "local_fsync": False,
        }  # fmt: skip
        return load(code=given, env={}, folder=self.folder)

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

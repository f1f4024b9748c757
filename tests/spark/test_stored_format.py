"""A job and savepoints in today's format, as files in tests/fixtures, are opened, run on and restored.

They have every kind of state: evolved types, expiries, namespaces, timers with many times, columns by time, ready-made operators,
and state without keys.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import Options
from stateflow.jobs.job import Job
from stateflow.spark.session.shipping import by_value
from tests.jobs.builder import options_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "format_1"


def module(name: str) -> ModuleType:
    spec = spec_from_file_location(f"format_1_{name}", FIXTURE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def unpacked(backend: str, folder: Path) -> None:
    with tarfile.open(FIXTURE / f"{backend}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


class Place:
    """The files of one backend, copied to where tests may change them: a run of the job, and forks with outputs of their own."""

    def __init__(self, spark: SparkSession, folder: Path, backend: str) -> None:
        unpacked(backend, folder)
        for file in (folder / "input" / "files").iterdir():
            file.touch()  # new files of another folder: those that the job has read lie where it was made, and would be refused here
        self.spark, self.folder, self.backend = spark, folder, backend
        self.pipeline, self.made = module("pipeline"), module("make")
        by_value([self.pipeline])
        self.expected: dict[str, list[str]] = json.loads((folder / "expected.json").read_text())
        self.before = self.contents()
        self.made.append(spark, self.parameters()["input"], self.made.LAST)

    def job(self, name: str = "stored") -> Job:
        return Job(str(self.folder / "root"), name)

    def options(self) -> Options:
        return options_of(self.folder / "root", backend=self.backend, parallelism=2)

    def parameters(self, output: str = "output") -> dict[str, str]:
        return {"input": str(self.folder / "input"), "output": str(self.folder / output)}

    def contents(self, output: str = "output") -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.made.contents(self.spark, str(self.folder / output))
        return found

    @cached_property
    def texts_of_last_batch(self) -> set[str]:
        """What `everything` puts out for the last batch, computed from the rows alone: without Spark and without a stored byte."""
        harness: Any = sf.testing.KeyedHarness(
            self.pipeline.Everything, output="text string", key="user", event_time="ts"
        )
        for batch in range(self.made.LAST + 1):
            out = harness.rows(*(self.pipeline.Order(*row) for row in self.made.orders(batch)))
        return {text for text in out if text.startswith("(")}


@pytest.fixture(scope="module", params=["rocksdb", "memory"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Place:
    return Place(spark, tmp_path_factory.mktemp(request.param), request.param)


def texts(contents: dict[str, list[str]]) -> set[str]:
    return {json.loads(row)["text"] for row in contents["everything"]}


def test_a_run_goes_on(place: Place) -> None:
    job = place.job()
    job.run(place.pipeline.after, place.parameters(), options=place.options())
    contents = place.contents()
    assert contents == place.expected
    assert place.texts_of_last_batch <= texts(contents)
    head = job.log().head
    assert head is not None
    states = head.operators["changing"].states
    assert {name for name, schema in states.items() if schema.versions} == {
        "known",
        "number",
        "items",
        "table",
    }


def test_a_native_savepoint_is_restored(place: Place) -> None:
    is_restored(place, "native", place.options())


@pytest.mark.parametrize("place", ["rocksdb"], indirect=True)
def test_a_canonical_savepoint_is_restored_with_another_backend(place: Place) -> None:
    """Both backends have written the same tables."""
    is_restored(place, "canonical", options_of(place.folder / "root", backend="memory", parallelism=2))
    other = place.folder / "of memory"
    unpacked("memory", other)
    mine = tables_of(place.folder)
    assert mine == tables_of(other)
    assert len(mine) > 20


def tables_of(folder: Path) -> dict[str, tuple[int, pa.Schema]]:
    """Of a canonical savepoint: how many rows each table has, and their columns."""
    found, place = {}, folder / "savepoint-canonical" / "tables"
    for file in place.rglob("*.parquet"):
        table = pq.read_table(file)
        found[str(file.parent.relative_to(place))] = (table.num_rows, table.schema)
    return found


def is_restored(place: Place, kind: str, options: Options) -> None:
    """To a fork, which takes the last batch and puts out what the job itself would."""
    fork, parameters = place.job(f"fork-{kind}"), place.parameters(f"output-{kind}")
    plan = fork.restore(
        str(place.folder / f"savepoint-{kind}"), place.pipeline.after, parameters, options=options
    )
    assert plan.check.compatible
    plan.apply()
    fork.run(place.pipeline.after, parameters, options=options)
    contents = place.contents(f"output-{kind}")
    for name in ("everything", "sums", "changing", "hourly", "counted"):
        assert Counter(contents[name]) == Counter(place.expected[name]) - Counter(place.before[name]), name
    for name in ("carts", "prompt"):
        assert set(contents[name]) == set(place.expected[name]) - set(place.before[name]), name
    assert place.texts_of_last_batch <= texts(contents)
    head = fork.log().head
    assert head is not None
    elements = head.operators["everything"].operator_states["seen"].parts
    assert sum(map(len, elements)) == sum(len(place.made.orders(n)) for n in range(place.made.LAST + 1))

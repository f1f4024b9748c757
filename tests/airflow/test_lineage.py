"""What OpenLineage hears of a run: its provider's own listener, over its file transport."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState

from demo.table import Orders
from stateflow.airflow import StateflowRunOperator
from stateflow.airflow.operators.task_lineage import dataset_name, lineage_of
from stateflow.checkpoint.lineage import Dataset, Endpoint, RunLineage, report_lineage
from stateflow.driver.run_spec import RunSpec
from stateflow.errors import StateflowError
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.jobs.running import run_loaded
from stateflow.pipelines.loading import load_pipeline
from stateflow.spark.inputs.lineage import read_datasets
from stateflow.spark.sources.leaves import LeafDescription
from tests.airflow.conftest import Connect
from tests.airflow.runner import run_task
from tests.airflow.test_run_operator import Done, Method
from tests.jobs.builder import options_of
from tests.jobs.made import ORDERS, MadeJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = "scheduled__2026-01-31"
OWNER = Owner("r", dag_run=f"orders_dag/{RUN}", task="run")


@dataclass
class Lineage:
    """The provider's listener, and the events that it has sent."""

    file: Path
    listener: Any

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def of(self, kind: str) -> dict[str, Any]:
        return next(event for event in self.events if event["eventType"] == kind)


@pytest.fixture
def lineage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lineage]:
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener

    def forget() -> None:
        for value in vars(conf).values():
            getattr(value, "cache_clear", lambda: None)()

    transport = {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "here")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT", "60")
    forget()
    yield Lineage(tmp_path / "events", OpenLineageListener())
    forget()


class Here(Method):
    """Runs the pipeline in this process, on the tests' own session."""

    failing = False

    def launch(self, spec: RunSpec) -> Done:
        self.specs.append(spec)
        options = options_of(self.root, retained_checkpoints=1, progress=False)
        job = Job(str(self.root), spec.job)

        def batch_is_done(report: Any) -> None:
            if self.failing:
                raise StateflowError("the disk is full")

        try:
            run_loaded(
                load_pipeline(spec.pipeline, self.root), job, spec.parameters, options=options,
                owner=Owner("r", dag_run=spec.dag_run, task=spec.task), listener=batch_is_done,
            )  # fmt: skip
        except StateflowError as error:
            return Done(1, (f"stateflow: {error}",))
        return Done()


def dataset(event: Mapping[str, Any], side: str) -> dict[str, Any]:
    [only] = event[side]
    return dict(only)


@pytest.mark.slow
@pytest.mark.timeout(900)  # two runs of Spark, on a machine that may be busy
def test_a_run_tells_what_it_read_and_wrote_with_schemas_rows_and_versions(
    spark: SparkSession, tmp_path: Path, connect: Connect, lineage: Lineage
) -> None:
    connect(tmp_path / "root")
    orders = Orders(tmp_path / "orders")
    orders.add(2, 50)
    method = Here(tmp_path / "root")
    parameters = {"input": str(tmp_path / "orders"), "output": str(tmp_path / "totals")}

    def run() -> Any:
        operator = StateflowRunOperator(
            task_id="run", pipeline=f"{ORDERS}:orders", parameters=parameters, launcher=method, retries=1
        )
        return run_task(operator, listener=lineage.listener)

    # The first driver fails behind its first batch, which has committed. The retry reads the rest.
    method.failing = True
    assert run().state is TaskInstanceState.UP_FOR_RETRY
    failed = lineage.of("FAIL")
    assert dataset(failed, "inputs")["inputFacets"]["inputStatistics"]["rowCount"] == 50
    assert dataset(failed, "outputs")["facets"]["version"]["datasetVersion"] == "1"
    method.failing = False
    assert run().state is TaskInstanceState.SUCCESS

    done = lineage.of("COMPLETE")
    source, sink = dataset(done, "inputs"), dataset(done, "outputs")
    assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "orders"))
    assert (sink["namespace"], sink["name"]) == ("file", str(tmp_path / "totals"))
    assert [(f["name"], f["type"]) for f in sink["facets"]["schema"]["fields"]] == [
        ("user", "bigint"),
        ("orders", "bigint"),
        ("total", "double"),
    ]
    assert ("ts", "timestamp") in [(f["name"], f["type"]) for f in source["facets"]["schema"]["fields"]]
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 100, "of both tries"
    assert sink["outputFacets"]["outputStatistics"]["rowCount"] > 0
    newest = max(int(path.stem) for path in (tmp_path / "orders" / "_delta_log").glob("*.json"))
    assert source["facets"]["version"]["datasetVersion"] == str(newest)
    assert sink["facets"]["version"]["datasetVersion"] == "2"
    assert source["facets"]["storage"]["storageLayer"] == "delta"
    told = done["run"]["facets"]["stateflow"]
    assert (told["job"], told["batches"], told["epoch"]) == ("orders", 2, 2)
    assert told["sources"]["events"] == {"before": [], "after": [{"version": newest}]}


@pytest.fixture
def job(tmp_path: Path, connect: Connect) -> MadeJob:
    connect(tmp_path / "root")
    return MadeJob(tmp_path / "root", run="r")


def report(job: MadeJob, *inputs: Endpoint, owner: Owner = OWNER) -> None:
    report_lineage(job.store, job.layout, RunLineage(epoch=job.writer.epoch, owner=owner, inputs=inputs))


def test_topics_and_folders_have_the_names_that_other_producers_give_them(job: MadeJob) -> None:
    from stateflow.airflow.operators.openlineage import operator_lineage

    kafka = Dataset(kind="kafka", place="clicks", servers="broker:9092,other:9092")
    folder = Dataset(kind="file", place="s3a://lake/in")
    line = '{"clicks":{"0":17}}'
    report(
        job, Endpoint(uid="a", datasets=(kafka,), after=(line,)), Endpoint(uid="b", datasets=(kafka, folder))
    )
    found = lineage_of(Job(job.store.url, "orders"), OWNER)
    assert found is not None
    told = operator_lineage(found)
    assert [(d.namespace, d.name) for d in told.inputs] == [
        ("kafka://broker:9092", "clicks"),
        ("kafka://broker:9092", "clicks"),
        ("s3://lake", "in"),
    ]
    assert "inputStatistics" in told.inputs[0].inputFacets
    assert told.inputs[1].inputFacets == {}, "rows are counted by source, and this one reads two"
    assert told.run_facets["stateflow"].sources["a"] == {"before": [], "after": [{"clicks": {"0": 17}}]}


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/data/orders/", ("file", "/data/orders")),
        ("file:/data/orders", ("file", "/data/orders")),
        ("file:///data/orders", ("file", "/data/orders")),
        ("s3n://lake/a/b/", ("s3://lake", "a/b")),
        ("gs://lake/a", ("gs://lake", "a")),
        ("abfss://c@account.dfs.core.windows.net/a", ("abfss://c@account.dfs.core.windows.net", "a")),
        ("hdfs://name:8020/a", ("hdfs://name:8020", "a")),
        ("spark_catalog.db.orders", ("spark", "spark_catalog.db.orders")),
    ],
)
def test_a_place_has_the_name_of_openlineage_s_convention(place: str, name: tuple[str, str]) -> None:
    assert dataset_name(Dataset(kind="delta", place=place)) == name


def test_a_pattern_of_topics_is_told_as_the_topics_that_were_read() -> None:
    leaf = LeafDescription("kafka", "kafka", "cl.*", {"subscribepattern": "cl.*"}, None)
    assert [d.place for d in read_datasets(leaf, '{"clicks":{"0":1},"clocks":{"0":2}}')] == [
        "clicks",
        "clocks",
    ]
    named = LeafDescription("kafka", "kafka", "a, b", {"subscribe": "a, b"}, None)
    assert [d.place for d in read_datasets(named, "-")] == ["a", "b"]
    other = LeafDescription("other", "rate", "rate", {}, None)
    assert read_datasets(other, "") == []


def test_a_task_that_was_cleared_tells_nothing_of_what_it_had_done_before(job: MadeJob) -> None:
    from stateflow.checkpoint import scheduled

    slot = job.batch()
    report(job, Endpoint(uid="old"))
    mark = scheduled.begin(job.store, job.layout, OWNER.dag_run, OWNER.task, None, lambda: 1)
    scheduled.reopen(job.store, job.layout, mark, slot, mark.began_from)
    assert lineage_of(Job(job.store.url, "orders"), OWNER) is None


def test_what_another_task_reads_is_not_told(job: MadeJob) -> None:
    report(job, Endpoint(uid="theirs"), owner=Owner("x", dag_run="other/run", task="run"))
    assert lineage_of(Job(job.store.url, "orders"), OWNER) is None


def test_nothing_is_read_where_airflow_sends_no_lineage(
    job: MadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: Any) -> Any:
        raise AssertionError("nobody asked")

    monkeypatch.setattr("stateflow.airflow.operators.task_lineage.lineage_of", read)
    operator = StateflowRunOperator(
        task_id="run",
        pipeline=f"{ORDERS}:orders",
        launcher=Method(Path(job.store.url.removeprefix("file://"))),
    )
    assert run_task(operator).state is TaskInstanceState.SUCCESS
    assert operator.get_openlineage_facets_on_complete(None) is None


def test_spark_s_listener_is_told_which_task_it_belongs_to_and_where_lineage_goes(
    job: MadeJob, lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.openlineage.utils import spark

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    monkeypatch.setattr(spark, "get_openlineage_listener", lambda: lineage.listener)
    method = Method(Path(job.store.url.removeprefix("file://")))

    def conf(**arguments: Any) -> dict[str, str]:
        operator = StateflowRunOperator(
            task_id="run", pipeline=f"{ORDERS}:orders", launcher=method, **arguments
        )
        done = run_task(operator, listener=lineage.listener, run_id=f"manual__{len(method.specs)}")
        assert done.state is TaskInstanceState.SUCCESS
        return dict(method.specs[-1].conf)

    told = conf(openlineage_inject_transport_info=True, conf={"spark.x": "1"})
    start = lineage.of("START")
    assert told["spark.openlineage.parentJobNamespace"] == "here"
    assert told["spark.openlineage.parentJobName"] == "orders_dag.run"
    assert told["spark.openlineage.parentRunId"] == start["run"]["runId"]
    assert told["spark.x"] == "1"
    assert conf(openlineage_inject_parent_job_info=False) == {}
    own = {"spark.openlineage.parentJobName": "mine"}
    assert conf(conf=own) == own


def test_a_key_for_the_lineage_server_never_stands_on_a_command_line() -> None:
    from stateflow.masking import is_secret

    assert is_secret("spark.openlineage.transport.auth.apiKey")


@pytest.mark.slow
def test_without_the_provider_a_run_is_what_it_was(tmp_path: Path) -> None:
    """As on a worker that has no package of OpenLineage."""
    code = """
import sys
from stateflow.airflow import StateflowRunOperator
from stateflow.airflow.operators.lineage import is_wanted
operator = StateflowRunOperator(task_id="run", pipeline="a.py:a")
assert not [name for name in sys.modules if name.startswith("openlineage")]
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("openlineage", "airflow.providers.openlineage")):
            raise ModuleNotFoundError(name)
for name in [name for name in sys.modules if name.startswith("airflow.providers.openlineage")]:
    del sys.modules[name]  # Airflow has asked the provider what it is
sys.meta_path.insert(0, Gone())
assert not is_wanted()
assert operator.get_openlineage_facets_on_complete(None) is None
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "AIRFLOW_HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

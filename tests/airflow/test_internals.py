"""What is used of Airflow without a public name: each is held against the Airflow that is installed."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset

import stateflow.airflow.internals
from stateflow.airflow.internals import (
    asset_references,
    spark_contexts,
    submit_commands,
    task_instances,
    xcoms,
)
from tests.airflow.runner import Supervisor, supervised

ROOMS = Path(stateflow.airflow.internals.__file__).parents[1]
PUBLIC = {
    "airflow.sdk",
    "airflow.sdk.bases.decorator",
    "airflow.sdk.configuration",
    "airflow.sdk.exceptions",
    "airflow.sdk.log",
    "airflow.sdk.types",
    "airflow.triggers.base",
}
"""Modules that Airflow's documentation names for providers."""


def test_nothing_else_of_the_package_imports_what_is_not_public() -> None:
    wrong = [
        f"{path.relative_to(ROOMS)}:{node.lineno} imports {node.module}"
        for path in ROOMS.rglob("*.py")
        if path.parent.name != "internals"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "airflow"
        and node.module not in PUBLIC
        and not (node.module or "").startswith("airflow.providers.")
    ]
    assert not wrong


@pytest.mark.slow
def test_the_spark_provider_gives_its_command_line() -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    hook = SparkSubmitHook.__new__(SparkSubmitHook)
    assert list(inspect.signature(hook._build_spark_submit_command).parameters) == ["application"]
    assert callable(submit_commands.submit_command)


def test_an_xcom_is_read_by_its_tasks_key() -> None:
    from airflow.sdk.execution_time.xcom import XCom

    assert {"ti_key", "key"} <= set(inspect.signature(XCom.get_value).parameters)
    assert callable(xcoms.xcom_of)


def test_references_to_assets_are_what_airflow_makes_of_them() -> None:
    assert isinstance(Asset.ref(name="orders"), asset_references.AssetRef)


def test_a_running_task_knows_its_bundle() -> None:
    from airflow.dag_processing.bundles.base import BaseDagBundle
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    assert "bundle_instance" in RuntimeTaskInstance.model_fields
    assert {"name", "version"} <= set(inspect.signature(BaseDagBundle.__init__).parameters)


@pytest.mark.parametrize(("map_index", "key"), [(-1, "run"), (2, "run_2")])
def test_the_state_of_a_task_is_asked_of_airflow(map_index: int, key: str) -> None:
    ti = SimpleNamespace(dag_id="orders_dag", run_id="one", task_id="run", map_index=map_index)
    with supervised(Supervisor(states={"one": {key: "deferred"}})):
        assert task_instances.state_of(ti) == "deferred"


def test_the_revision_of_a_pipeline_is_that_of_the_bundle_it_lies_in(tmp_path: Path) -> None:
    def running(version: str | None) -> SimpleNamespace:
        return SimpleNamespace(bundle_instance=SimpleNamespace(name="team", version=version, path=tmp_path))

    inside = tmp_path / "pipelines" / "orders.py"
    assert task_instances.code_revision(running("1a2b"), inside) == "team@1a2b"
    assert task_instances.code_revision(running("1a2b"), Path("/opt/pipelines/orders.py")) == ""
    assert task_instances.code_revision(running(None), inside) == ""
    assert task_instances.code_revision(SimpleNamespace(), inside) == ""


def test_a_process_tells_its_spark_context_without_importing_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.core import context

    assert "_active_spark_context" in vars(context.SparkContext)
    monkeypatch.setattr(context.SparkContext, "_active_spark_context", "the context")
    assert spark_contexts.active_context() == "the context"
    monkeypatch.delitem(sys.modules, "pyspark.core.context")
    assert spark_contexts.active_context() is None

"""Operators whose work is done by a driver, which a launcher starts."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.launchers.base import LaunchMethod
from stateflow.airflow.launchers.spark_submit import SparkSubmit
from stateflow.airflow.operators.arguments import Argument, Name, Table, launch_method
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.pipelines.parameters import as_texts

if TYPE_CHECKING:
    from airflow.sdk import Context

Launch = Annotated[
    LaunchMethod | None,
    Argument(launch_method, when_none=SparkSubmit),
    "how the driver is started: `SparkSubmit(...)`, or `InProcess()` for a small job",
]
SparkPlace = Annotated[Name, "where Spark is: local[n], spark://, yarn, k8s://"]
SparkSettings = Annotated[Table, "settings of Spark"]
DriverOptions = Annotated[
    Table, "any option of docs/configuration.md, apart from credentials: those belong into the connection"
]


class DriverOperator(StateflowOperator):
    """An operator with a pipeline and a launcher."""

    launcher: Any

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Renders the templates of this task, with a copy of the launcher: Airflow renders a launcher in place, and tasks may
        share one."""
        self.launcher = deepcopy(self.launcher)
        super().render_template_fields(context, jinja_env)

    def file_of(self, context: Context) -> str:
        """`FILE:PIPELINE`; a relative file lies beside the DAG's."""
        return beside_dag(context, self.given("pipeline"))

    def errand(self, context: Context) -> dict[str, Any]:
        """The fields that the errand of every driver has."""
        owner = self.acts_as(context)
        return {
            "pipeline": self.file_of(context),
            "job": self.given("job"),
            "dag_run": owner.dag_run,
            "task": owner.task,
            "note": owner.note,
            "parameters": self._texts(context),
            "options": as_texts(self.given("options")),
            "conf": as_texts(self._conf(context)),
            "allow_non_restored_state": self.given("allow_non_restored_state"),
            "environment": self.hook.environment(),
        }

    def _texts(self, context: Context) -> dict[str, str]:
        """The pipeline's parameters."""
        return as_texts(self.given("parameters"))

    def _conf(self, context: Context) -> dict[str, Any]:
        """Spark's settings."""
        conf: dict[str, Any] = self.given("conf")
        return conf


def beside_dag(context: Context, pipeline: str) -> str:
    """`FILE:PIPELINE` with an absolute file: a relative one lies beside the DAG's."""
    folder = getattr(context["dag"], "folder", "") or "."
    return str(Path(folder).absolute() / Path(pipeline).expanduser())


def name_of(pipeline: Any) -> str:
    """The pipeline's name in `FILE:PIPELINE`."""
    _, colon, name = str(pipeline).rpartition(":")
    if not colon or "/" in name or "}" in name:
        raise ValueError(
            f"pipeline={pipeline!r} names no pipeline after its file: write FILE:PIPELINE, or give job="
        )
    return name

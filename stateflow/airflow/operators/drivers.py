"""Operators whose work is done by a driver, which a launcher starts."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.launchers.base import LaunchMethod
from stateflow.airflow.launchers.spark_submit import SparkSubmit
from stateflow.airflow.operators.arguments import Argument, launch_method
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

Launch = Annotated[LaunchMethod | None, Argument(launch_method, when_none=SparkSubmit)]


class DriverOperator(StateflowOperator):
    """An operator with a pipeline and a launcher."""

    launcher: Any

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Renders the templates of this task, with a copy of the launcher: Airflow renders a launcher in place, and tasks may
        share one."""
        self.launcher = copy(self.launcher)
        super().render_template_fields(context, jinja_env)

    def file_of(self, context: Context) -> str:
        """`FILE:PIPELINE`; a relative file lies beside the DAG's."""
        pipeline: str = self.given("pipeline")
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

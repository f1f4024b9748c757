"""What a run of a pipeline would find, told without Spark: its state, and the tables that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.compatibility.flows import Check, compare, folders
from stateflow.errors import StateflowError
from stateflow.format.records import Record
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from stateflow.spark.sinks.lacking import lacking


def checked(flow: Flow, job: str, record: Record | None, **given: Any) -> Check:
    """`given` are the further arguments of `compare`."""
    return compare(flow, job, record, misfits=lacking(flow), **given)


def folders_read(pipeline: Pipeline, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Which folders of files the pipeline reads with these parameters, if it can be built with them alone."""
    try:
        return folders(pipeline.build(parameters))
    except StateflowError:
        return {}

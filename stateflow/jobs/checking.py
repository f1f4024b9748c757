"""Finds without Spark what a run of a pipeline would meet: its state, the tables that it writes, the folders that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stateflow.compatibility.flows import Check, compare, folders, renamed_targets
from stateflow.errors import StateflowError
from stateflow.format.records import Prepared, Record
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.needs import unmet_needs
from stateflow.pipelines.pipeline import Pipeline
from stateflow.spark.inputs.absent_inputs import absent_inputs
from stateflow.spark.inputs.lost_messages import lost_messages
from stateflow.spark.sinks.lacking import unreadable, unwritable
from stateflow.spark.sources import subfolders


def checked(
    flow: Flow,
    job: str,
    record: Record | None,
    written: Mapping[str, Prepared] | None = None,
    shared: Sequence[str] = (),
    **given: Any,
) -> Check:
    """`written` is what the job has written last, by sink; `shared` says why a new one does not begin at its outputs; `given` are the
    further arguments of `compare`."""
    misfits = {**unwritable(flow), **renamed_targets(flow, written or {})}
    # Warnings: where `check` runs there need not be the data.
    check = compare(flow, job, record, misfits=misfits, written=written, **given)
    lost = lost_messages(flow.sources, record.sources) if record is not None else ()
    inputs = (*absent_inputs(flow), *unreadable(flow), *map(str, unmet_needs(flow)), *_unread(flow), *lost)
    return replace(check, warnings=(*check.warnings, *shared, *inputs))


def _unread(flow: Flow) -> Iterator[str]:
    for source in flow.sources:
        files = source.factory
        if isinstance(files, Files) and (name := subfolders.unread(files.path, files.options)):
            yield subfolders.sentence(source.uid, files.path, name)


def folders_read(pipeline: Pipeline, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Which folders of files the pipeline reads with these parameters, if it can be built with them alone."""
    try:
        return folders(pipeline.build(parameters))
    except StateflowError:
        return {}

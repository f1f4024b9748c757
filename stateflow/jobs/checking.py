"""What a run of a pipeline would find, told without Spark: its state, and the tables that it writes."""

from __future__ import annotations

from typing import Any

from stateflow.compatibility.flows import Check, compare
from stateflow.format.records import Record
from stateflow.pipelines.flow import Flow
from stateflow.spark.sinks.lacking import lacking


def checked(flow: Flow, job: str, record: Record | None, **given: Any) -> Check:
    """`given` are the further arguments of `compare`."""
    return compare(flow, job, record, misfits=lacking(flow), **given)

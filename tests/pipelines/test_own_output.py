"""A source that reads what a sink of its own pipeline writes would double the rows with each run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from tests.refusals.refusal import refused

ALL = {"recursiveFileLookup": "true"}


@dataclass
class Order:
    user: int


def pipeline(read: Any, written: str) -> Pipeline:
    def declare(flow: Flow) -> None:
        flow.source("in", read, Order).append("out", sf.delta(written))

    return Pipeline("job", declare)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (sf.delta("/data/t"), "/data/t"),
        (sf.delta("/data/t"), "file:///data/t/"),
        (sf.delta("file:/data/t"), "/data/x/../t"),
        (sf.delta("t"), "./t"),
        (sf.delta("s3://b/t"), "s3a://b/t/"),
        (sf.files("/data/in/", "json"), "/data/in"),
        (sf.files("/data/in", "json"), "/data/in/day=1"),
        (sf.files("/data/in", "json", options=ALL), "/data/in/out"),
        (sf.files("/data/out/day=1", "parquet"), "/data/out"),
    ],
)
def test_a_source_that_reads_what_a_sink_writes_is_refused(read: Any, written: str) -> None:
    with refused(
        UsageError, f"source 'in' reads {read.path},", f"sink 'out' writes to {written},", "another path"
    ):
        pipeline(read, written).build()
    pipeline(read, "/elsewhere").build()


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (sf.files("/data/in", "json"), "/data/in2"),
        (sf.files("/data/in", "json"), "/data/in/out"),  # Spark does not read it, and a run says so
        (sf.delta("/data/t"), "/data/t/out"),
        (sf.delta("/data/t/in"), "/data/t"),
        (lambda spark: None, "/data/t"),
    ],
)
def test_what_no_source_reads_is_no_reason_to_refuse(read: Any, written: str) -> None:
    pipeline(read, written).build()


def test_a_link_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    with refused(UsageError, "every row would come in again"):
        pipeline(sf.delta(str(tmp_path / "table")), str(tmp_path / "link")).build()


def test_a_source_that_is_declared_after_the_sink_is_seen_too() -> None:
    def declare(flow: Flow) -> None:
        flow.source("first", sf.delta("/data/a"), Order).append("out", sf.delta("/data/b"))
        flow.source("second", sf.delta("/data/b/"), Order).append("other", sf.delta("/data/c"))

    with refused(UsageError, "source 'second'", "/data/b/", "sink 'out' writes to /data/b"):
        Pipeline("job", declare).build()

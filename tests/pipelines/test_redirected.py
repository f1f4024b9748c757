"""A pipeline that is only tried writes nowhere but into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.redirected import RedirectedPipeline
from tests.refusals.refusal import refused

called: list[Any] = []


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, tidy: str = "off") -> None:
    files = sf.files("/real/in", "json", options={"CleanSource": tidy})
    rows = flow.source("orders", files, "user long, n long")
    rows.append("all", sf.delta("/real/all", partition_by=["user"], options={"delta.appendOnly": "true"}))
    rows.upsert("newest", sf.delta("/real/newest"), keys="user", order_by="n")
    rows.collect("listed", sf.memory("listed"))
    rows.for_each_batch("mailed", lambda frame, delivery: called.append(frame))


def redirected(pipeline: Pipeline, folder: Path) -> RedirectedPipeline:
    return RedirectedPipeline(pipeline.name, pipeline.function, pipeline.versions, folder=folder)


def test_every_sink_is_a_table_of_the_folder_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    flow = redirected(orders, tmp_path).build({})
    plain = orders.build({})
    assert [type(node) for node in flow.nodes] == [type(node) for node in plain.nodes]
    sinks = {sink.uid: sink for sink in flow.sinks}
    assert all(isinstance(sink.target, DeltaTable) for sink in sinks.values())
    assert {sink.target.path for sink in sinks.values()} == {str(tmp_path / uid) for uid in sinks}
    assert {uid: sink.mode for uid, sink in sinks.items()} == {
        "all": "append", "newest": "upsert", "listed": "append", "mailed": "append",
    }  # fmt: skip
    assert sinks["all"].target.partition_by == ("user",)
    assert sinks["all"].target.properties == {"delta.appendOnly": "true"}
    assert sinks["newest"].options == {s.uid: s for s in plain.sinks}["newest"].options
    assert str(flow.sources[0].factory) == str(plain.sources[0].factory)
    assert "/real/all" in str(plain.sinks[0].target), "the pipeline itself has not changed"
    assert called == []


def test_a_source_that_deletes_what_it_has_read_is_refused(tmp_path: Path) -> None:
    with refused(UsageError, "source 'orders'", "deletes or moves the files", "CleanSource=delete"):
        redirected(orders, tmp_path).build({"tidy": "delete"})

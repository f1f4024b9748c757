"""Sinks of a replay stage rows as the sinks that they stand for do."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import IncompatibleError
from stateflow.pipelines.graph import SinkNode
from stateflow.pipelines.sink_kinds import kind_of
from stateflow.replay.captured import CapturedSink
from stateflow.spark.sinks.staging import staged_schema
from stateflow.testing.sink_log import SinkLog


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [sf.delta("/lake/t"), sf.postgres("public.t"), sf.iceberg("shop.t"), sf.kafka("t", bootstrap="b:9092")],
    ids=str,
)
def test_rows_that_delete_are_marked_whatever_the_upsert_writes_to(
    spark: SparkSession, tmp_path: Path, target: Any
) -> None:
    options = {"keys": ("id",), "delete_when": "v = 'gone'"}
    sink = CapturedSink(SinkNode("totals", (), target, kind_of("upsert", target), options))
    log = SinkLog(spark, tmp_path)
    prepared = log.prepare(sink, spark.createDataFrame([(1, "a"), (2, "gone")], "id long, v string"))
    rows = log.stage.read(spark, prepared.files, staged_schema(prepared))
    assert {(row.id, row._sf_op) for row in rows.collect()} == {(1, "upsert"), (2, "delete")}


def test_what_the_upsert_refuses_is_refused_in_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, "a"), (1, "b")], "id long, v string")
    for target, options, named in (
        (sf.delta("/lake/t"), {"keys": ("id",)}, "have the key id=1"),
        (sf.delta("/lake/t"), {"keys": ("id",), "order_by": "v"}, ""),
        (sf.kafka("t", bootstrap="b:9092"), {"keys": ("id",)}, ""),
    ):
        sink = CapturedSink(SinkNode("totals", (), target, kind_of("upsert", target), options))
        with pytest.raises(IncompatibleError, match=named) if named else nullcontext():
            SinkLog(spark, tmp_path).prepare(sink, rows)

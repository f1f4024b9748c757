"""Tables of state whose job and savepoints are in an object store, reached by every task on its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateflow.savepoints.format import verify_savepoint
from stateflow.spark.state_tables.load import canonical_frames
from stateflow.spark.state_tables.source import register
from stateflow.storage.roots import open_store
from tests.servers import ObjectServer, s3_server
from tests.spark.holding import Holding, plain
from tests.spark.test_canonical import canonical
from tests.spark.test_load import entries, load
from tests.spark.test_state_tables import USER, bulky


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with s3_server() as running:
        yield running


@pytest.mark.slow
def test_checkpoint_savepoint_and_what_is_loaded_from_it_are_one(
    spark: SparkSession, server: ObjectServer, tmp_path: Path
) -> None:
    register(spark)
    holding = Holding(tmp_path, root=server.new_root("team/checkpoints"), storage_options=server.options)
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100))))
    url, made = canonical(
        spark, holding, record, split_bytes=1, max_tasks=3, target_url=server.new_root("team/savepoint")
    )
    assert verify_savepoint(open_store(url, server.options), deep=True) == []
    place = {k: v for k, v in holding.given.items() if k != "checkpoint_dir"}
    expected = [(user, user * 10) for user in range(100)]
    for options in ({**holding.given, "job": "orders"}, {**place, "path": url}):
        frame = spark.read.format("stateflow").options(**options, operator="totals", state="count").load()
        assert plain(frame.collect(), "user", "value") == expected
        one = (
            spark.read.format("stateflow")
            .options(**options, operator="totals", state="count", key="7")
            .load()
        )
        assert plain(one.collect(), "user", "value") == [(7, 70)]
    frames = canonical_frames(spark, made, url, holding.options())
    loaded = load(spark, holding, frames["totals"], made.record.operators["totals"], parallelism=3)
    assert entries(holding, loaded) == entries(holding, record.operators["totals"])
    assert any(f.path for shards in loaded.shards for s in shards for f in s.files)

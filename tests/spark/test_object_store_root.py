"""A whole pipeline whose checkpoint root is an object store: the protocols of S3, Google and Azure, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.verification import verify
from stateflow.config.options import load
from stateflow.format.layout import JobLayout
from stateflow.spark.runner import RunRequest, run
from stateflow.storage.roots import open_store
from tests.refusals.refusal import refused
from tests.servers import ObjectServer, azure_server, gcs_server, s3_server

pytestmark = pytest.mark.system

USERS = 500
SERVERS = {"s3": s3_server, "gcs": gcs_server, "azure": azure_server}


@dataclass
class Order:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    orders: int
    total: float


class Balance(sf.KeyedProcess[int, Order, Total]):
    orders = sf.ValueState(int, default=0)
    total = sf.ValueState(float, default=0.0)

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        for row in rows:
            self.orders.value += 1
            self.total.value += row.amount
        yield Total(key, self.orders.value, self.total.value)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    started: AbstractContextManager[ObjectServer] = SERVERS[request.param]()
    with started as running:
        yield running


def add(spark: SparkSession, table: Path, first: int, count: int) -> None:
    rows = spark.range(first, first + count).selectExpr(
        f"id % {USERS} as user", "cast(id as double) as amount"
    )
    rows.coalesce(1).write.format("delta").mode("append").save(str(table))


def test_state_on_an_object_store_carries_on_and_leaves_no_litter(
    spark: SparkSession, server: ObjectServer, tmp_path: Path
) -> None:
    root, source, out = server.new_root("team/checkpoints"), tmp_path / "in", tmp_path / "out"
    options = load(
        code={
            "checkpoint_dir": root,
            "storage_options": server.options,
            "inline_threshold": "0 B",
            "cache_dir": str(tmp_path / "cache"),
        },
        folder=tmp_path,
    )

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(source), options={"maxFilesPerTrigger": "1"}), Order)
        totals = events.key_by("user").process("balance", Balance)
        totals.append("totals", sf.delta(str(out)))

    add(spark, source, 0, 1_000)
    add(spark, source, 1_000, 1_000)
    first = run(RunRequest(orders, options))
    assert first.batches == 2
    add(spark, source, 2_000, 1_000)
    second = run(RunRequest(orders, options))
    assert (second.epoch, second.batches) == (2, 1)

    last = spark.read.format("delta").load(str(out)).groupBy("user").agg({"orders": "max", "total": "max"})
    expected = (
        spark.read.format("delta").load(str(source)).groupBy("user").agg({"*": "count", "amount": "sum"})
    )
    assert sorted(map(tuple, last.select("user", "max(orders)", "max(total)").collect())) == sorted(
        map(tuple, expected.select("user", "count(1)", "sum(amount)").collect())
    )
    store = open_store(root, server.options)
    layout = JobLayout("orders")
    head = read_log(store, layout).head
    assert head is not None
    assert any(f.path for tasks in head.operators["balance"].shards for s in tasks for f in s.files)
    assert verify(store, layout, deep=True) == []


def test_a_second_run_is_refused_while_the_first_one_lives(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    add(spark, source, 0, 10)
    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "root"),
            "trigger": "until-stopped",
            "heartbeat_interval": "200 ms",
        },
        folder=tmp_path,
    )

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(source)), Order)
        events.key_by("user").process("balance", Balance).collect("totals", sf.memory("second-run"))

    stop, seen = threading.Event(), threading.Event()
    living = RunRequest(orders, options, stop=stop, listener=lambda batch: seen.set())
    reports = []
    thread = threading.Thread(target=lambda: reports.append(run(living)))
    thread.start()
    try:
        assert seen.wait(120)
        with refused(sf.BusyError, "stateflow stop orders"):
            run(RunRequest(orders, options))
    finally:
        stop.set()
        thread.join(60)
    assert reports[0].stopped == "a stop was requested"
    assert (
        run(
            RunRequest(orders, load(code={"checkpoint_dir": str(tmp_path / "root")}, folder=tmp_path))
        ).batches
        == 0
    )

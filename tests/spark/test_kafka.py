"""Pipelines that read from a real Kafka broker: totals, a bound in time, batches of the right size, and topics that are days apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scripts import internals_page
from stateflow.internals import owner_of
from tests.spark.java_members import Java
from tests.spark.kafka_broker import broker, connector_jars

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
KAFKA = "Spark's Kafka source"
ROOT = Path(__file__).resolve().parents[2]

# A process of its own: the connector's jars have to be there when the JVM starts.
SCRIPT = """
import json, sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import stateflow as sf
from stateflow.config.options import load
from stateflow.spark.inputs import batch_size
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import build_session

server, jars, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
conf = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
spark = build_session("kafka", master="local[2]", conf=conf)
jvm = spark._jvm
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@dataclass
class Order:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    orders: int
    total: float


@dataclass
class Event:
    number: int
    at: datetime


class Balance(sf.KeyedProcess[int, Order, Total]):
    orders = sf.ValueState(int, default=0)
    total = sf.ValueState(float, default=0.0)

    def process(self, key, rows, ctx):
        for row in rows:
            self.orders.value += 1
            self.total.value += row.amount
        yield Total(key, self.orders.value, self.total.value)


def topic(name, *columns, **limit):
    def opened(spark):
        options = {"kafka.bootstrap.servers": server, "subscribe": name, "startingOffsets": "earliest", **limit}
        return spark.readStream.format("kafka").options(**options).load().selectExpr(*columns)

    return opened


def totals_of(name, of, **limit):
    columns = "cast(cast(key as string) as bigint) as user", "cast(cast(value as string) as double) as amount"

    @sf.pipeline(name)
    def made(flow):
        totals = flow.source("events", topic(of, *columns, **limit), Order).key_by("user").process("balance", Balance)
        totals.append("totals", sf.delta(str(folder / f"{name}-totals")))

    return made


@sf.pipeline("apart")
def apart(flow):
    for name in ("behind", "ahead"):
        events = topic(name, "cast(cast(value as string) as double) as number", "timestamp as at", maxOffsetsPerTrigger="10")
        rows = flow.source(
            name, lambda spark, events=events: events(spark).selectExpr("cast(number as bigint) as number", "at"), Event,
            event_time="at", watermark="0 seconds",
        )
        rows.append(f"{name}-out", sf.delta(str(folder / name)))


def settings(**more):
    made = jvm.java.util.Properties()
    for name, value in {"bootstrap.servers": server, **more}.items():
        made.setProperty(name, value)
    return made


def make_topic(name, partitions=2):
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings())
    topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
    admin.createTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
    admin.close()


def produce(name, first, last, partitions=2, step=SECOND):
    text = "org.apache.kafka.common.serialization.StringSerializer"
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
        settings(**{"key.serializer": text, "value.serializer": text, "acks": "all"})
    )
    for n in range(first, last):
        at = int((BEGIN + n * step).timestamp() * 1000)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord(name, n % partitions, at, str(n % 7), f"{n}.0")
        producer.send(record)
    producer.flush()
    producer.close()


def ran(pipeline, until=None, **more):
    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", **more}
    reports = []
    rows = run(RunRequest(pipeline, load(code=code, folder=folder), listener=reports.append, until=until)).rows
    return rows, [report.record.statistics for report in reports]


def bounded():
    make_topic("orders")
    produce("orders", 0, 100)
    orders = totals_of("orders", "orders", maxOffsetsPerTrigger="20")
    half = BEGIN + timedelta(seconds=49, milliseconds=500)
    rows = [ran(orders, until)[0] for until in (half, half, None)]
    produce("orders", 100, 110)
    rows.append(ran(orders)[0])
    frame = spark.read.format("delta").load(str(folder / "orders-totals"))
    last = {}
    for row in sorted(map(tuple, frame.select("orders", "user", "total").collect())):
        last[row[1]] = [row[0], row[2]]
    job = sf.Job(str(folder / "root"), "orders")
    positions = [source.position for source in job.status().sources]
    return {"rows": rows, "last": last, "written": frame.count(), "positions": positions}


def sizes():
    batch_size.FIRST = {**batch_size.FIRST, "rows": 20}
    make_topic("backlog")
    jobs = {"free": totals_of("free", "backlog"), "limited": totals_of("limited", "backlog", maxOffsetsPerTrigger="100")}
    told = {name: [] for name in jobs}
    for first, last in ((0, 1000), (1000, 1200)):
        produce("backlog", first, last)
        for name, pipeline in jobs.items():
            _, batches = ran(pipeline, target_batch_duration="2 minutes")
            streams = [each["batch_size"]["streams"][0] for each in batches]
            rows = [sum(each["source_rows"].values()) for each in batches]
            told[name].append([[count, stream["most"], stream["took"]] for count, stream in zip(rows, streams)])
    for name in jobs:
        written = spark.read.format("delta").load(str(folder / f"{name}-totals"))
        told[name].append(written.groupBy("user").max("orders").agg({"max(orders)": "sum"}).first()[0])
    return told


def drift():
    # Ten messages of one are ten days, ten of the other an hour and a half.
    batch_size.FIRST = {**batch_size.FIRST, "rows": 10}
    for name, step in (("ahead", timedelta(days=1)), ("behind", timedelta(minutes=10))):
        make_topic(name, 1)
        produce(name, 0, 60, 1, step)
    _, batches = ran(apart, target_batch_duration="2 minutes", max_source_drift="5 days")
    names = ("ahead", "behind")
    rows = {name: [each["source_rows"].get(name, 0) for each in batches] for name in names}
    return {"rows": rows, "out": [spark.read.format("delta").load(str(folder / name)).count() for name in names]}


print(json.dumps({"bounded": bounded(), "sizes": sizes(), "drift": drift()}))
spark.stop()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each part of the script says: one broker, and one start of Spark."""
    folder = tmp_path_factory.mktemp("kafka")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with broker(folder / "broker") as server:
        done = subprocess.run(
            [sys.executable, script, server, ",".join(connector_jars()), folder],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            name
            for found in internals_page.entries().values()
            for entry in found
            for name in entry.names
            if owner_of(name) == KAFKA
        }
    ),
)
def test_the_connector_has_the_names_that_are_used_of_it(spark: SparkSession, name: str) -> None:
    assert not Java(spark, connector_jars()).lacks(name)


def test_a_pipeline_reads_each_record_once_and_no_further_than_it_was_told(told: dict[str, Any]) -> None:
    bounded = told["bounded"]
    # Record n bears second n: the bound lies behind record 49, whatever its partition.
    assert bounded["rows"] == [50, 0, 50, 10]
    expected = {str(user): [0, 0.0] for user in range(7)}
    for n in range(110):
        expected[str(n % 7)][0] += 1
        expected[str(n % 7)][1] += n
    assert bounded["last"] == expected
    assert bounded["positions"] == ["orders[0]@55, orders[1]@55"]


def test_a_backlog_of_a_topic_comes_in_batches_that_grow(told: dict[str, Any]) -> None:
    """Each partition moves, and nothing is lost or read twice."""
    backlog, later, orders = told["sizes"]["free"]
    assert [rows for rows, _, _ in backlog] == [20, 40, 80, 160, 320, 380]
    assert [most for _, most, _ in backlog] == [20, 40, 80, 160, 320, 640]
    assert [rows for rows, _, _ in later] == [200]
    assert all(rows == took for rows, _, took in [*backlog, *later])
    assert orders == 1200


def test_they_grow_up_to_the_sources_own_limit(told: dict[str, Any]) -> None:
    backlog, later, orders = told["sizes"]["limited"]
    assert [rows for rows, _, _ in backlog] == [20, 40, 80, *[100] * 8, 60]
    assert [rows for rows, _, _ in later] == [100, 100]
    assert all(rows == took for rows, _, took in [*backlog, *later])
    assert orders == 1200


def test_a_topic_that_is_days_ahead_of_another_one_waits(told: dict[str, Any]) -> None:
    drift = told["drift"]
    assert drift["rows"] == {"ahead": [10] + [0] * 5 + [10] * 5, "behind": [10] * 6 + [0] * 5}
    assert drift["out"] == [60, 60]

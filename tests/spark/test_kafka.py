"""A pipeline that reads from a real Kafka broker: totals, a bound in time, and records that were appended meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import build_session

server, jars, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
conf = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
spark = build_session("kafka", master="local[2]", conf=conf)
jvm = spark._jvm
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


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

    def process(self, key, rows, ctx):
        for row in rows:
            self.orders.value += 1
            self.total.value += row.amount
        yield Total(key, self.orders.value, self.total.value)


def stream(spark):
    options = {"kafka.bootstrap.servers": server, "subscribe": "orders", "startingOffsets": "earliest",
               "maxOffsetsPerTrigger": "20"}
    frame = spark.readStream.format("kafka").options(**options).load()
    return frame.selectExpr("cast(cast(key as string) as bigint) as user", "cast(cast(value as string) as double) as amount")


@sf.pipeline("orders")
def orders(flow):
    totals = flow.source("events", stream, Order).key_by("user").process("balance", Balance)
    totals.append("totals", sf.delta(str(folder / "totals")))


def settings(**more):
    made = jvm.java.util.Properties()
    for name, value in {"bootstrap.servers": server, **more}.items():
        made.setProperty(name, value)
    return made


def make_topic():
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings())
    topic = jvm.org.apache.kafka.clients.admin.NewTopic("orders", 2, 1)
    admin.createTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
    admin.close()


def produce(first, last):
    text = "org.apache.kafka.common.serialization.StringSerializer"
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
        settings(**{"key.serializer": text, "value.serializer": text, "acks": "all"})
    )
    for n in range(first, last):
        at = int((BEGIN + timedelta(seconds=n)).timestamp() * 1000)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord("orders", n % 2, at, str(n % 7), f"{n}.0")
        producer.send(record)
    producer.flush()
    producer.close()


def ran(until=None):
    options = load(code={"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s"}, folder=folder)
    report = run(RunRequest(orders, options, until=until))
    return report.rows


make_topic()
produce(0, 100)
half = BEGIN + timedelta(seconds=49, milliseconds=500)
rows = [ran(half), ran(half), ran()]
produce(100, 110)
rows.append(ran())
frame = spark.read.format("delta").load(str(folder / "totals"))
last = {}
for row in sorted(map(tuple, frame.select("orders", "user", "total").collect())):
    last[row[1]] = [row[0], row[2]]
job = sf.Job(str(folder / "root"), "orders")
positions = [source.position for source in job.status().sources]
print(json.dumps({"rows": rows, "last": last, "written": frame.count(), "positions": positions}))
spark.stop()
"""


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


def test_a_pipeline_reads_each_record_once_and_no_further_than_it_was_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    jars = ",".join(connector_jars())
    with broker(tmp_path / "kafka") as server:
        done = subprocess.run(
            [sys.executable, script, server, jars, tmp_path],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    # Record n bears second n: the bound lies behind record 49, whatever its partition.
    assert told["rows"] == [50, 0, 50, 10]
    expected = {str(user): [0, 0.0] for user in range(7)}
    for n in range(110):
        expected[str(n % 7)][0] += 1
        expected[str(n % 7)][1] += n
    assert told["last"] == expected
    assert told["positions"] == ["orders[0]@55, orders[1]@55"]

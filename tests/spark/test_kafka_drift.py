"""Two topics of a real broker that are days apart: the one ahead waits, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.kafka_broker import broker, connector_jars
from tests.spark.test_kafka import ROOT, SCRIPT

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PIPELINE, _, _ = SCRIPT.partition("make_topic()\nproduce(0")

DAYS = """
from stateflow.spark.inputs import batch_size

batch_size.FIRST = {**batch_size.FIRST, "rows": 10}


@dataclass
class Event:
    number: int
    at: datetime


def topic(name):
    def opened(spark):
        options = {"kafka.bootstrap.servers": server, "subscribe": name, "startingOffsets": "earliest",
                   "maxOffsetsPerTrigger": "10"}
        frame = spark.readStream.format("kafka").options(**options).load()
        return frame.selectExpr("cast(cast(value as string) as double) as number", "timestamp as at").selectExpr(
            "cast(number as bigint) as number", "at")
    return opened


@sf.pipeline("apart")
def apart(flow):
    for name in ("payments", "orders"):
        rows = flow.source(name, topic(name), Event, event_time="at", watermark="0 seconds")
        rows.append(f"{name}-out", sf.delta(str(folder / name)))


def fill(name, count, step):
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings())
    admin.createTopics(jvm.java.util.Collections.singletonList(
        jvm.org.apache.kafka.clients.admin.NewTopic(name, 1, 1))).all().get()
    admin.close()
    text = "org.apache.kafka.common.serialization.StringSerializer"
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
        settings(**{"key.serializer": text, "value.serializer": text, "acks": "all"}))
    for n in range(count):
        at = int((BEGIN + n * step).timestamp() * 1000)
        producer.send(jvm.org.apache.kafka.clients.producer.ProducerRecord(name, 0, at, str(n), f"{n}.0"))
    producer.flush()
    producer.close()


# Ten messages of orders are ten days, ten of payments an hour and a half.
fill("orders", 60, timedelta(days=1))
fill("payments", 60, timedelta(minutes=10))
code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "target_batch_duration": "2 minutes",
        "max_source_drift": "5 days"}
reports = []
run(RunRequest(apart, load(code=code, folder=folder), listener=reports.append))
rows = [report.record.statistics["source_rows"] for report in reports]
out = [spark.read.format("delta").load(str(folder / name)).count() for name in ("orders", "payments")]
print(json.dumps([[each.get("orders", 0) for each in rows], [each.get("payments", 0) for each in rows], out]))
spark.stop()
"""


def test_a_topic_that_is_days_ahead_of_another_one_waits(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PIPELINE + DAYS)
    with broker(tmp_path / "kafka") as server:
        done = subprocess.run(
            [sys.executable, script, server, ",".join(connector_jars()), tmp_path],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    orders, payments, out = json.loads(done.stdout.splitlines()[-1])
    assert payments == [10] * 6 + [0] * 5
    assert orders == [10] + [0] * 5 + [10] * 5
    assert out == [60, 60]

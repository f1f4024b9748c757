"""A topic that is deleted and made anew while a run reads it: Spark would go on at the old offset of the new one, and leave out what lies before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.kafka_broker import told_by

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

# A process of its own: the library brings the connector's jars when it starts Spark, and not later.
SCRIPT = """
import json, sys, threading
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.spark.runner import RunRequest, run
from tests.connectors.kafka_server import Topics

server, folder = sys.argv[1], Path(sys.argv[2])
topics = Topics(server)


@dataclass
class Order:
    number: int


def produce(topic, numbers):
    producer = Producer({"bootstrap.servers": server, "acks": "all"})
    for number in numbers:
        producer.produce(topic, json.dumps({"number": number}), partition=0)
    assert producer.flush(30) == 0


def remade(name, after, **given):
    '''What a run says whose topic of ten messages is made anew behind its first batch, with so many messages.'''
    topics.make(name, 1)
    produce(name, range(10))
    stop, batches = threading.Event(), []

    @sf.pipeline(name)
    def orders(flow):
        rows = flow.source("events", sf.kafka(name, bootstrap=server, **given), Order)
        rows.append("out", sf.delta(str(folder / name)))

    def ended(report):
        if report.rows:
            batches.append(report.rows)
        if len(batches) == 1:
            topics.delete(name)
            topics.make(name, 1)
            produce(name, range(1000, 1000 + after))
        else:
            stop.set()

    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "trigger": "1 second"}
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
    request = RunRequest(orders, load(code=code, env={}, folder=folder), master="local[2]", conf=conf, listener=ended, stop=stop)
    try:
        said, code = " ".join(run(request).warnings), 0
    except StateflowError as error:
        said, code = str(error), error.exit_code
    return {"batches": batches, "said": said, "code": code}


told = {"longer": remade("longer", 20), "shorter": remade("shorter", 5)}
@sf.pipeline("shorter")
def anew(flow):
    rows = flow.source("events-2", sf.kafka("shorter", bootstrap=server), Order)
    rows.append("out", sf.delta(str(folder / "shorter")))


# What the refusal advises: a new uid, and once the option.
told["advised"] = sf.Job(str(folder / "root"), "shorter").run(anew, master="local[2]", allow_non_restored_state=True).rows
told["accepted"] = remade("accepted", 20, options={"failOnDataLoss": "false"})
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run of the script said."""
    return told_by(SCRIPT, tmp_path_factory.mktemp("kafka"))


@pytest.mark.parametrize("case", ["longer", "shorter"])
def test_a_batch_of_a_topic_that_was_made_anew_under_the_run_is_not_decided(
    told: dict[str, Any], case: str
) -> None:
    found = told[case]
    assert (found["batches"], found["code"]) == ([10], 7), found
    for named in ("'events'", f"'{case}'", "made anew", "new uid"):
        assert named in found["said"], found


def test_a_new_uid_reads_the_new_topic_from_its_beginning(told: dict[str, Any]) -> None:
    assert told["advised"] == 5


def test_a_source_that_accepts_a_loss_goes_on_with_the_new_topic_and_says_so(told: dict[str, Any]) -> None:
    found = told["accepted"]
    assert (found["batches"], found["code"]) == ([10, 10], 0), found
    for named in ("'events'", "failOnDataLoss=false", "'accepted'", "made anew"):
        assert named in found["said"], found

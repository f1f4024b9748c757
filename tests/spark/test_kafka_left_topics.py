"""A topic that a source names no more, and one that comes back to it: it goes on where it stood, and nobody calls it gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.kafka_broker import told_by

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

# A process of its own: the library brings the connector's jars when it starts Spark, and not later.
SCRIPT = """
import json, sys
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import stateflow as sf
from stateflow.checkpoint.statistics import POSITIONS
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import running_session
from tests.connectors.kafka_server import Topics

server, folder = sys.argv[1], Path(sys.argv[2])
topics, admin = Topics(server), AdminClient({"bootstrap.servers": server})


@dataclass
class Sale:
    number: int


def produce(topic, *numbers):
    producer = Producer({"bootstrap.servers": server, "acks": "all"})
    for number in numbers:
        producer.produce(topic, json.dumps({"number": number}), partition=0)
    assert producer.flush(30) == 0


def cut_off(topic, offset):
    for answer in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        answer.result(30)


def pipeline(*names, **given):
    @sf.pipeline("named")
    def made(flow):
        rows = flow.source("events", sf.kafka(*names, bootstrap=server, **given), Sale)
        rows.append("out", sf.delta(str(folder / "out")))

    return made


def ran(made):
    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "retained_checkpoints": 20}
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
    try:
        ended = run(RunRequest(made, load(code=code, env={}, folder=folder), master="local[2]", conf=conf))
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"
    return [ended.rows, ended.warnings]


for name in ("here", "there", "third"):
    topics.make(name, 1)
produce("here", 0, 1, 2)
produce("there", 10, 11)
told = {"both": ran(pipeline("here", "there")), "left": ran(pipeline("there"))}
produce("here", 3)
produce("there", 12)
told["without"] = ran(pipeline("there"))
job = sf.Job(str(folder / "root"), "named")


def replayed(made, *span):
    try:
        return job.replay(made, *span, master="local[2]").is_same
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"


slots = [record.slot for record in job.log().checkpoints if POSITIONS not in record.statistics]
first, last = slots[0], slots[-1]
both = replayed(pipeline("there"), first, last)
on = int(both.partition("from checkpoint ")[2].split()[0])
told["replayed"] = [first, both, replayed(pipeline("there"), first, first), replayed(pipeline("there"), on, last)]
told["replayed"].append(replayed(pipeline("here", "there"), first, first))
told["back"] = ran(pipeline("here", "there"))
produce("third", 20, 21)
cut_off("third", 1)
told["swapped"] = ran(pipeline("third"))
meant = replace(pipeline("third"), allow_non_restored_state=True)
told["meant"] = ran(meant)
produce("third", 22)
told["after"] = ran(pipeline("third"))
told["positions"] = job.status().sources[0].position
told["same"] = job.replay(pipeline("third"), "latest", master="local[2]").is_same
produce("here", 4, 5)
cut_off("here", 5)
told["too late"] = ran(pipeline("here", "third"))
told["accepted"] = ran(pipeline("here", "third", options={"failOnDataLoss": "false"}))
told["rows"] = sorted(row["number"] for row in running_session().read.format("delta").load(str(folder / "out")).collect())
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run of the script said."""
    return told_by(SCRIPT, tmp_path_factory.mktemp("kafka"))


def test_a_topic_that_comes_back_to_a_source_goes_on_where_it_stood(told: dict[str, Any]) -> None:
    assert (told["both"], told["without"], told["back"]) == ([5, []], [1, []], [1, []])
    rows, [warning] = told["left"]
    assert rows == 0
    for named in ("'events'", "'here'", "does not name any more", "goes on there"):
        assert named in warning, warning


def test_a_topic_in_the_place_of_others_is_read_where_that_is_meant(told: dict[str, Any]) -> None:
    for named in (
        "IncompatibleError",
        "'events'",
        "'here', 'there'",
        "'third'",
        "--allow-non-restored-state",
    ):
        assert named in told["swapped"], told["swapped"]
    assert told["meant"][0] == 1
    assert (told["after"], told["positions"], told["same"]) == ([1, []], "third[0]@3", True)


def test_what_retention_takes_of_a_topic_while_it_is_left_is_a_loss(told: dict[str, Any]) -> None:
    for named in ("DisagreementError", "offset 4 of topic 'here' partition 0", "before offset 5"):
        assert named in told["too late"], told["too late"]
    rows, [warning] = told["accepted"]
    assert (rows, "1 offsets are lost" in warning) == (1, True)
    assert told["rows"] == [0, 1, 2, 3, 5, 10, 11, 12, 21, 22]


def test_a_replay_by_code_that_does_not_name_a_topic_says_so(told: dict[str, Any]) -> None:
    first, both, alone, behind, named = told["replayed"]
    why = f"checkpoint {first} cannot be read again: source 'events' read topic 'here', which this code does not name any more"
    for refusal in (both, alone):
        for each in ("DisagreementError", why, "take code that names the topic"):
            assert each in refusal, refusal
    assert "batches that ran since" in alone, alone
    # What both advise.
    assert (behind, named) == (True, True)

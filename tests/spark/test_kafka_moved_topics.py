"""Topics that go from one stream of a source to another, on a real broker: no message is read twice, unless somebody has accepted that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.kafka_broker import told_by

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

# A process of its own: Spark's connector has to be there when Spark starts.
SCRIPT = """
import json, sys, time
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import running_session
from tests.connectors.kafka_server import Topics
from tests.spark.kafka_broker import connector_jars

server, folder = sys.argv[1], Path(sys.argv[2])
topics = Topics(server)
jars = ",".join(connector_jars())


def produce(topic, *values, partition=0):
    producer = Producer({"bootstrap.servers": server, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def pipeline(name, *streams):
    def read(spark):
        opened = [
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", server)
            .option("startingOffsets", "earliest").options(**each).load().selectExpr("cast(value as string) v")
            for each in streams
        ]
        both = opened[0]
        for each in opened[1:]:
            both = both.unionAll(each)
        return both

    @sf.pipeline(name)
    def made(flow):
        flow.source("events", read).append("out", sf.delta(str(folder / name)))

    return made


def reading(name, *streams):
    '''A stream of each list of topics.'''
    return pipeline(name, *({"subscribe": each} for each in streams))


def ran(made, allow=False):
    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s"}
    conf = {
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.jars": jars,
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    made = replace(made, allow_non_restored_state=True) if allow else made
    try:
        ended = run(RunRequest(made, load(code=code, env={}, folder=folder), master="local[2]", conf=conf))
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"
    return [ended.rows, list(ended.warnings)]


def rows(name):
    return sorted(row["v"] for row in running_session().read.format("delta").load(str(folder / name)).collect())


for name in "abc":
    topics.make(name, 1)
produce("a", "a0", "a1")
produce("b", "b0")
produce("c", "c0")
told = {}

told["swapped"] = [ran(reading("swapped", "a", "b")), ran(reading("swapped", "b", "a"))]
produce("a", "a2")
told["swapped"] += [ran(reading("swapped", "b", "a")), ran(reading("swapped", "a", "b")), rows("swapped")]

told["moved"] = [ran(reading("moved", "a,b", "c")), ran(reading("moved", "a", "b,c"))]
told["left"] = [ran(reading("moved", "a", "c")), ran(reading("moved", "a,b", "c"))]
produce("b", "b1")
told["left"] += [ran(reading("moved", "a,b", "c")), rows("moved")]

as_read, by_pattern = reading("unsure", "a,c", "b"), pipeline("unsure", {"subscribe": "c"}, {"subscribePattern": "[ab]"})
told["unsure"] = [ran(as_read), ran(by_pattern), ran(as_read), ran(by_pattern, allow=True), ran(by_pattern)]

told["replaced"] = [ran(reading("replaced", each)) for each in ("a", "b", "a", "a,b")]
told["replaced"] += [ran(reading("meant", "a")), ran(reading("meant", "b"), allow=True), ran(reading("meant", "b"))]


def assigning(name, *numbers):
    '''A stream of each list of partitions.'''
    return pipeline(name, *({"assign": json.dumps({"p": each})} for each in numbers))


topics.make("p", 2)
produce("p", "p0")
produce("p", "p1", partition=1)
told["assigned"] = [ran(assigning("assigned", each)) for each in ([0, 1], [0])]
produce("p", "p0 later")
produce("p", "p1 later", partition=1)
told["assigned"] += [ran(assigning("assigned", each)) for each in ([0], [0, 1])] + [rows("assigned")]
told["across"] = [ran(assigning("across", [0], [1])), ran(assigning("across", [1], [0]))]


def kept(name, numbers, **more):
    return ran(pipeline(name, {"assign": json.dumps({"q": numbers}), **more}))


topics.make("q", 2)
produce("q", "q0")
produce("q", "q1", partition=1)
told["remade"] = [kept("remade", [0, 1]), kept("remade", [0])]
topics.delete("q")
deadline = time.monotonic() + 60
while "q" in topics.names and time.monotonic() < deadline:
    time.sleep(0.1)
topics.make("q", 2)
produce("q", "Q0", "Q0 later")
produce("q", "Q1", "Q1 later", partition=1)
accepts = {"failOnDataLoss": "false"}
told["remade"] += [kept("remade", [0], **accepts), kept("remade", [0, 1]), kept("remade", [0])]
told["remade"] += [kept("remade", [0, 1], **accepts), kept("remade", [0, 1]), rows("remade")]

alone = pipeline("alone", {"subscribePattern": "z.*"})
beside = pipeline("beside", {"subscribe": "c"}, {"subscribePattern": "z.*"})
told["unmatched"] = [[ran(made), ran(made)] for made in (alone, beside)]
produce("c", "c1")
topics.make("z", 1)
produce("z", "z0", "z1")
told["unmatched"] += [[ran(made), rows(made.name)] for made in (alone, beside)]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run of the script said."""
    return told_by(SCRIPT, tmp_path_factory.mktemp("kafka"))


def test_topics_that_change_streams_go_on_where_they_stood(told: dict[str, Any]) -> None:
    assert told["swapped"] == [[3, []], [0, []], [1, []], [0, []], ["a0", "a1", "a2", "b0"]]
    assert told["moved"] == [[5, []], [0, []]]


def test_a_topic_that_no_stream_names_is_left_and_goes_on_when_it_comes_back(told: dict[str, Any]) -> None:
    (rows, [warning]), *after = told["left"]
    assert rows == 0
    for named in ("'events'", "'b'", "does not name any more", "goes on there"):
        assert named in warning, warning
    assert after == [[0, []], [1, []], ["a0", "a1", "a2", "b0", "b1", "c0"]]


def test_a_topic_that_another_stream_may_not_have_read_has_to_be_accepted(told: dict[str, Any]) -> None:
    first, refusal, as_read, accepted, after = told["unsure"]
    assert (first, as_read, after) == ([6, []], [0, []], [0, []])
    for named in ("IncompatibleError", "'events'", "stream 1", "'a'", "--allow-non-restored-state"):
        assert named in refusal, refusal
    rows, [warning] = accepted
    assert rows == 3
    for named in ("'events'", "stream 1", "'a'", "--allow-non-restored-state"):
        assert named in warning, warning


def test_a_topic_in_the_place_of_another_one_in_a_stream_of_spark_s_has_to_be_accepted(
    told: dict[str, Any],
) -> None:
    first, refusal, *after, _, meant, then = told["replaced"]
    for named in ("IncompatibleError", "'events'", "'a'", "'b'", "--allow-non-restored-state"):
        assert named in refusal, refusal
    assert (first, after) == ([3, []], [[0, []], [2, []]])
    assert (meant[0], "'a'" in meant[1][0], then) == (2, True, [0, []])


def test_a_partition_that_is_assigned_no_more_is_left_and_goes_on_when_it_comes_back(
    told: dict[str, Any],
) -> None:
    first, (none, [warning]), *after = told["assigned"]
    assert (first, none) == ([2, []], 0)
    for named in ("'events'", "partition 1 of Kafka topic 'p'", "does not name any more", "goes on there"):
        assert named in warning, warning
    assert after == [[1, []], [1, []], ["p0", "p0 later", "p1", "p1 later"]]


def test_partitions_that_change_streams_go_on_where_they_stood(told: dict[str, Any]) -> None:
    assert told["across"] == [[4, []], [0, []]]


def test_a_partition_does_not_come_back_in_a_topic_that_was_made_anew_without_a_word(
    told: dict[str, Any],
) -> None:
    first, (left, _), (others, [loss]), refusal, without, (back, [lost]), *after = told["remade"]
    assert (first, left, others, without) == ([2, []], 0, 1, [0, []])
    assert "'q' partition 0, which was made anew: 1 offsets" in loss, loss
    for named in ("DisagreementError", "'events'", "'q'", "made anew", "failOnDataLoss=false"):
        assert named in refusal, refusal
    assert back == 1
    assert "'q' partition 1, which was made anew: 1 offsets" in lost, lost
    assert after == [[0, []], ["Q0 later", "Q1 later", "q0", "q1"]]


def test_a_pattern_that_matches_no_topic_yet_reads_the_first_one_from_its_beginning(
    told: dict[str, Any],
) -> None:
    alone, beside, alone_then, beside_then = told["unmatched"]
    assert (alone, beside) == ([[0, []], [0, []]], [[1, []], [0, []]])
    assert alone_then == [[2, []], ["z0", "z1"]]
    assert beside_then == [[3, []], ["c0", "c1", "z0", "z1"]]

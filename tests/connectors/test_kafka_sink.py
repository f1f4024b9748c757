"""Messages in a topic of a real broker: once, or not at all, with a sentence."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import (
    DisagreementError,
    IncompatibleError,
    NotFoundError,
    Prepared,
    Sink,
    UnavailableError,
    UsageError,
    tries,
)
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.ends import ends_of
from stateflow.replay.delivered import delivered_rows
from stateflow.spark.sinks.kinds import delivered
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.decided import UNAVAILABLE
from tests.connectors.fed import FedJob
from tests.connectors.kafka_committer import Records
from tests.connectors.kafka_server import Topics
from tests.refusals.refusal import refused
from tests.spark.kafka_broker import Broker
from tests.spark.standalone import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
PAIR = "id long, v string"
LONG = bool(os.environ.get("STATEFLOW_LONG"))
KILLS = 50 if LONG else 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("broker"), 300)
    running.format()
    running.start()
    yield running
    running.end()


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker.address)


@pytest.fixture
def topic(topics: Topics, request: pytest.FixtureRequest) -> str:
    return topics.make(re.sub("[^A-Za-z0-9_]", "-", request.node.name)[:200])


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> SinkLog:
    return SinkLog(spark, tmp_path, job=request.node.name)


def opened(
    log: SinkLog,
    topics: Topics,
    topic: str,
    schema: str = PAIR,
    mode: str = "append",
    last: Prepared | None = None,
    **options: Any,
) -> Sink:
    """`last`: what the log says that was prepared for it last."""
    of_topic = {name: options.pop(name) for name in ("value", "key", "options") if name in options}
    delivery = options.pop("delivery", "exactly_once")
    sink = make_sink("totals", mode, sf.kafka(topic, bootstrap=topics.address, **of_topic), options, delivery)
    sink.last_prepared = last
    sink.open(log.spark, log.spark.createDataFrame([], schema).schema)
    return sink


def rows(log: SinkLog, schema: str, *values: tuple[Any, ...]) -> DataFrame:
    return log.spark.createDataFrame(list(values), schema).coalesce(1)


def pairs(topics: Topics, topic: str) -> list[tuple[str | None, str | None]]:
    return sorted(((m.key, m.value) for m in topics.read(topic)), key=str)


def test_messages_of_each_slot_come_once_however_often_they_are_committed(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic)
    first = log.prepare(sink, rows(log, PAIR, (1, "a"), (2, None)))
    assert topics.read(topic, "read_uncommitted") == []
    assert [log.commit(first), log.commit(first)] == ["committed", "already"]
    assert delivered(log.spark, log.recorded(first), log.name) == {"totals": True}
    assert log.deliver(sink, rows(log, PAIR, (3, "ü"))) == "committed"
    assert log.deliver(sink, rows(log, PAIR)) == "none"
    found = topics.read(topic)
    assert sorted(str(m.value) for m in found) == [
        '{"id":1,"v":"a"}',
        '{"id":2,"v":null}',
        '{"id":3,"v":"ü"}',
    ]
    assert {m.headers["stateflow.slot"]: m.headers["stateflow.job"] for m in found} == {
        "1": log.job,
        "2": log.job,
    }
    waiting = log.recorded(log.prepare(sink, rows(log, PAIR, (4, "d"))))
    assert delivered(log.spark, waiting, log.name) == {"totals": False}


def test_a_replay_has_the_rows_of_messages_of_json_that_were_appended(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    schema = "id long, v string, at timestamp, tags array<decimal(5,2)>"
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
    one = (1, "a", at, [Decimal("1.50")])
    sink = opened(log, topics, topic, schema, keys=["id"])
    prepared = log.prepare(sink, rows(log, schema, one, (2, None, None, None)))
    found = delivered_rows(log.spark, prepared, log.stage)
    assert found is not None
    assert found.column_names == ["id", "v", "at", "tags"]
    assert [tuple(row.values()) for row in found.to_pylist()] == [one, (2, None, None, None)]
    # Of an upsert it would have the last row of each key alone.
    upsert = opened(log, topics, topic, PAIR, "upsert", keys=["id"])
    kept = delivered_rows(log.spark, log.prepare(upsert, rows(log, PAIR, (1, "a"))), log.stage)
    assert kept is not None
    assert "value" in kept.column_names


@pytest.mark.parametrize(
    ("schema", "options", "keys", "some"),
    [
        ("v string", {"value": "string"}, [], [("a",), ('{"v": 1}',)]),
        ("`a b` string, v binary", {"value": "bytes"}, ["a b"], [("a", b"\xff"), ("ü", b"x")]),
        (
            "id long, `a b` string, v string",
            {"value": "string"},
            ["id", "a b"],
            [(1, "x", "a"), (2, '"', "")],
        ),
        ("id long, v string", {"value": "string"}, ["id"], [(1, "a")]),
        ("k string, v string", {"value": "string", "key": "json"}, ["k"], [("a", "b")]),
    ],
)
def test_a_replay_has_the_rows_of_messages_of_text_and_of_bytes_that_were_appended(
    log: SinkLog,
    topics: Topics,
    topic: str,
    schema: str,
    options: dict[str, str],
    keys: list[str],
    some: list[tuple[Any, ...]],
) -> None:
    sink = opened(log, topics, topic, schema, **options, **({"keys": keys} if keys else {}))
    found = delivered_rows(log.spark, log.prepare(sink, rows(log, schema, *some)), log.stage)
    assert found is not None
    names = log.spark.createDataFrame([], schema).columns
    assert sorted(tuple(row[name] for name in names) for row in found.to_pylist()) == sorted(some)


def test_a_slot_that_the_brokers_forgot_is_still_known(log: SinkLog, topics: Topics, topic: str) -> None:
    sink = opened(log, topics, topic)
    first = log.prepare(sink, rows(log, PAIR, (1, "a")))
    log.commit(first)
    topics.forget_group(f"stateflow-{log.job}-totals")
    assert log.commit(first) == "already"
    assert log.deliver(sink, rows(log, PAIR, (2, "b"))) == "committed"
    assert len(topics.read(topic)) == 2


def test_a_topic_that_was_made_anew_is_refused(log: SinkLog, topics: Topics, topic: str) -> None:
    sink = opened(log, topics, topic)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    topics.delete(topic)
    time.sleep(1)
    topics.make(topic)
    with refused(DisagreementError, f"Kafka topic {topic} ", "made anew", "a new uid") as caught:
        log.prepare(sink, rows(log, PAIR, (2, "b")))
    assert "abandon" not in str(caught.value), "nothing is decided"


def test_a_topic_that_a_decided_record_is_for_is_not_to_be_made_anew_alone(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    waiting = log.prepare(sink, rows(log, PAIR, (2, "b")))
    topics.delete(topic)
    with refused(
        DisagreementError, f"Kafka topic {topic} ", "'totals' a new uid", "`stateflow abandon orders 2`"
    ):
        log.commit(waiting)
    sink.last_commit = log.at(1)
    with refused(DisagreementError, f"Kafka topic {topic} ", "slot 1", "a new sink uid"):
        sink.open(log.spark, log.spark.createDataFrame([], PAIR).schema)
    topics.make(topic)
    log.sink, log.last = "anew", None
    assert log.deliver(opened(log, topics, topic), rows(log, PAIR, (3, "c"))) == "committed"


def test_a_deleted_topic_of_slots_is_made_for_a_first_slot_and_named_behind_it(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic)
    waiting = log.prepare(sink, rows(log, PAIR, (1, "a")))
    topics.delete("stateflow-slots")
    assert log.commit(waiting) == "committed"
    waiting = log.prepare(sink, rows(log, PAIR, (2, "b")))
    topics.delete("stateflow-slots")
    for act in (lambda: log.commit(waiting), lambda: log.prepare(sink, rows(log, PAIR, (3, "c")))):
        with refused(DisagreementError, topic, "stateflow-slots", "a new sink uid"):
            act()


def test_an_upsert_writes_the_last_of_each_key_and_tombstones_for_deletes(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    schema = "id long, v string, at int, op string"
    sink = opened(log, topics, topic, schema, "upsert", keys=["id"], order_by="at", delete_when="op = 'd'")
    log.deliver(
        sink,
        rows(
            log,
            schema,
            (1, "a", 1, "u"),
            (1, "b", 2, "u"),
            (2, "", 9, "d"),
            (2, "late", 4, "u"),
            (3, "y", None, "u"),
        ),
    )
    assert pairs(topics, topic) == [
        ('{"id":1}', '{"id":1,"v":"b","at":2,"op":"u"}'),
        ('{"id":2}', None),
        ('{"id":3}', '{"id":3,"v":"y","at":null,"op":"u"}'),
    ]


def test_a_key_goes_to_the_partition_that_javas_clients_and_librdkafka_choose(
    topics: Topics, topic: str
) -> None:
    """The last three keys are those of Kafka's own test, with what it expects of the hash."""
    wide = topics.make(f"{topic}-wide", 7)
    cluster = Cluster(sf.kafka(wide, bootstrap=topics.address))
    cluster.make_slots()
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    keys = [random.randbytes(length) for length in range(40)] + [*known]
    for chosen in (cluster.chosen(None), cluster.chosen(7)):
        with cluster.without_transaction("stateflow-x") as transaction:
            transaction.produce([(key, b"") for key in keys], [], chosen=chosen)
            transaction.keep("{}")
    places: dict[str | None, set[int]] = {}
    for message in topics.read(wide):
        places.setdefault(message.key, set()).add(message.partition)
    assert [len(found) for found in places.values()] == [1] * len(keys)
    for key, hashed in known.items():
        assert places[key.decode()] == {(hashed & 0x7FFFFFFF) % 7}


def test_the_keys_of_an_upsert_stay_in_their_partitions_when_the_topic_grows(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    schema, upsert = "id long, op string", {"mode": "upsert", "keys": ["id"], "delete_when": "op = 'd'"}
    sink = opened(log, topics, topic, schema, **upsert)
    log.deliver(sink, rows(log, schema, *((n, "u") for n in range(40))))
    waiting = log.prepare(sink, rows(log, schema, *((n, "d") for n in range(20))))
    topics.grow(topic, 6)
    assert log.commit(waiting) == "committed"
    assert log.deliver(sink, rows(log, schema, *((n, "d") for n in range(20, 30)))) == "committed"

    assert sink.warning == ""
    later = opened(log, topics, topic, schema, last=waiting, **upsert)
    kept = log.prepare(later, rows(log, schema, *((n, "d") for n in range(30, 40))))
    assert log.commit(kept) == "committed"
    for named in (topic, "6 partitions", "first 2", "a new topic", "a new sink uid"):
        assert named in later.warning
    places: dict[str | None, set[int]] = {}
    for message in topics.read(topic):
        places.setdefault(message.key, set()).add(message.partition)
    assert set().union(*places.values()) == {0, 1}
    assert [len(found) for found in places.values()] == [1] * 40

    other = SinkLog(log.spark, log.root / "other", job=f"{log.job}-other")
    other.deliver(
        opened(other, topics, topic, schema, **upsert),
        rows(log, schema, *((n, "u") for n in range(100, 140))),
    )
    assert {message.partition for message in topics.read(topic)} == set(range(6))
    unknown = msgspec.structs.replace(kept, payload={"topic_id": kept.payload["topic_id"]})
    without = opened(log, topics, topic, schema, last=unknown, **upsert)
    assert log.prepare(without, rows(log, schema)).payload["partitions"] == 6


def test_a_key_twice_or_without_value_is_refused_before_anything_is_written(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic, mode="upsert", keys=["id", "v"])
    with refused(IncompatibleError, "2 rows of one batch", """the key '{"id":1,"v":"a"}'"""):
        log.prepare(sink, rows(log, PAIR, (1, "a"), (1, "a")))
    with refused(IncompatibleError, "1 of the rows", "a null in the key id, v"):
        log.prepare(sink, rows(log, PAIR, (1, None), (1, "a")))
    assert topics.read(topic, "read_uncommitted") == []


@pytest.mark.parametrize(
    ("value", "key", "schema", "row", "message"),
    [
        ("json", None, "user string, n int", ("ann", 1), ("ann", '{"user":"ann","n":1}')),
        ("json", "json", "user string, n int", ("ann", 1), ('{"user":"ann"}', '{"user":"ann","n":1}')),
        ("string", "string", "user string, n string", ("ann", "plain"), ("ann", "plain")),
        ("bytes", "bytes", "user binary, n binary", (b"ann", b"plain"), ("ann", "plain")),
    ],
)
def test_key_and_value_are_written_as_the_topic_says(
    log: SinkLog, topics: Topics, topic: str, value: str, key: str | None, schema: str, row: Any, message: Any
) -> None:
    sink = opened(log, topics, topic, schema, value=value, key=key, keys="user")
    log.deliver(sink, rows(log, schema, row))
    assert pairs(topics, topic) == [message]


def test_sparks_reader_of_json_takes_every_type_back_as_it_was(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    schema = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h string, i date, j timestamp, k timestamp_ntz, l binary, "
        "m decimal(12,3), n struct<x: int, y: array<string>>, o map<string, int>"
    )
    when = datetime.datetime(2025, 3, 1, 12, 30, 5, 123456)
    values = (
        1, 2, 3, 4, 1.5, float("inf"), True, 'a,"b"\n\\ \t€', datetime.date(2025, 1, 2), when.replace(tzinfo=datetime.UTC), when, b"\x00\xff",
        Decimal("12.345"), (1, ["x", None]), {"k": 1},
    )  # fmt: skip
    given = rows(log, schema, values, (None,) * 15)
    log.deliver(opened(log, topics, topic, schema), given)
    told = [str(message.value) for message in topics.read(topic)]
    back = log.spark.read.schema(schema).json(
        log.spark.createDataFrame([(t,) for t in told], "t string").rdd.map(lambda r: r[0])
    )
    assert sorted(map(str, back.collect())) == sorted(map(str, given.collect()))
    assert set(json.loads(told[0])) == set(given.columns)


@pytest.mark.parametrize(
    ("options", "schema", "why"),
    [
        ({"value": "string"}, PAIR, "a value of string is one column of the type string, and here it is id bigint, v string"),
        ({"key": "string", "keys": "id"}, PAIR, "a key of string is one column of the type string, and here it is id bigint"),
        ({"keys": "user"}, PAIR, "the output has no column 'user'; it has id, v"),
        ({"options": {"kafka.no.such.property": "1"}}, PAIR, "No such configuration property"),
    ],
)  # fmt: skip
def test_rows_that_are_no_such_messages_are_refused_at_the_start(
    log: SinkLog, topics: Topics, topic: str, options: dict[str, Any], schema: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        opened(log, topics, topic, schema, **options)


def test_a_topic_that_is_not_there_is_told_with_the_command(log: SinkLog, topics: Topics) -> None:
    with refused(NotFoundError, "Kafka topic nowhere", "kafka-topics.sh --create --topic nowhere"):
        opened(log, topics, "nowhere")


def test_brokers_that_are_not_there_are_told_after_a_bounded_time(
    log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "PAUSES", (0.01,))
    monkeypatch.setattr("stateflow.connectors.kafka.cluster.PATIENCE", 0.5)
    with refused(UnavailableError, "Kafka topic x", "run again when the brokers are well"):
        opened(log, Topics(f"127.0.0.1:{free_port()}"), "x")


def test_a_message_that_is_too_large_fails_the_batch_before_its_record(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    topics.make(f"{topic}-small", max_message_bytes="2000")
    sink = opened(log, topics, f"{topic}-small")
    with refused(IncompatibleError, "a message of ", "takes 2000", "no message was"):
        log.prepare(sink, rows(log, PAIR, (1, "x" * 2000)))
    assert (
        log.deliver(sink, rows(log, PAIR, *((k, random.randbytes(700).hex()) for k in range(50))))
        == "committed"
    )
    assert len(topics.read(f"{topic}-small")) == 50
    large, log.job = topics.make(f"{topic}-large", max_message_bytes="3000000"), f"{log.job}-large"
    log.last = None
    assert log.deliver(opened(log, topics, large), rows(log, PAIR, (1, "x" * 2_000_000))) == "committed"


def test_a_null_that_readers_take_for_a_delete_is_refused(log: SinkLog, topics: Topics, topic: str) -> None:
    sink = opened(log, topics, topic, PAIR.replace("long", "string"), value="string", keys="id")
    with refused(IncompatibleError, "a null for a value", "take for a delete"):
        log.prepare(sink, rows(log, "id string, v string", ("1", None)))


@pytest.mark.parametrize("value", ["string", "bytes"])
def test_so_is_one_beside_rows_that_do_delete(log: SinkLog, topics: Topics, topic: str, value: str) -> None:
    schema = f"id string, v {'string' if value == 'string' else 'binary'}"
    sink = opened(log, topics, topic, schema, "upsert", value=value, keys="id", delete_when="id like 'd%'")
    with refused(IncompatibleError, "1 of the rows", "a null for a value", "take for a delete"):
        log.prepare(
            sink, rows(log, schema, ("d1", None), ("2", None), ("3", b"c" if value == "bytes" else "c"))
        )
    log.slot -= 1
    log.deliver(sink, rows(log, schema, ("d1", None), ("d2", b"b" if value == "bytes" else "b")))
    assert pairs(topics, topic) == [("d1", None), ("d2", None)]


@pytest.mark.parametrize("delete_when", [None, "id = 9"])
def test_a_row_of_which_nobody_knows_whether_it_deletes_is_refused(
    log: SinkLog, topics: Topics, topic: str, delete_when: str | None
) -> None:
    schema = "id long, op string"
    sink = opened(log, topics, topic, schema, "upsert", keys="id", operation="op", delete_when=delete_when)
    with refused(IncompatibleError, "1 of the rows", "'op'", topic, "transform()"):
        log.prepare(sink, rows(log, schema, (1, "upsert"), (2, None)))
    log.slot -= 1
    log.deliver(sink, rows(log, schema, (1, "upsert"), (2, "delete")))
    assert pairs(topics, topic) == [('{"id":1}', '{"id":1}'), ('{"id":2}', None)]


def test_messages_without_a_key_are_refused_by_a_compacted_topic_before_a_record_is_decided(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    compacted = topics.make(f"{topic}-c"[-200:], cleanup_policy="compact,delete")
    command = f"kafka-configs.sh --alter --entity-type topics --entity-name {compacted} --add-config cleanup.policy=delete"
    named = (compacted, "cleanup.policy=compact,delete", "keys='user'", command)
    with refused(IncompatibleError, *named):
        opened(log, topics, compacted)
    opened(log, topics, compacted, keys="id")
    sink = opened(log, topics, topic)
    topics.set(topic, "cleanup.policy", "compact")
    with refused(IncompatibleError, topic, "cleanup.policy=compact", "keys='user'"):
        log.prepare(sink, rows(log, PAIR, (1, "a")))


def test_a_topic_that_is_compacted_after_the_decision_is_told_and_holds_up_nobody_else(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic)
    waiting = log.prepare(sink, rows(log, PAIR, (1, "a")))
    topics.set(topic, "cleanup.policy", "compact")
    command = f"--entity-name {topic} --add-config cleanup.policy=delete"
    with refused(
        DisagreementError, topic, "cleanup.policy=compact", command, f"stateflow abandon {log.name} 1"
    ):
        log.commit(waiting)
    other = SinkLog(log.spark, log.root / "other", job=f"{log.job}-other")
    begun = time.monotonic()
    keyed = opened(other, topics, topic, keys="id")
    assert other.deliver(keyed, rows(other, PAIR, (2, "b"))) == "committed"
    assert time.monotonic() - begun < 10
    topics.set(topic, "cleanup.policy", "delete")
    assert log.commit(waiting) == "committed"
    assert len(topics.read(topic)) == 2


def test_without_transactions_a_slot_comes_once_while_nothing_crashes(
    log: SinkLog, topics: Topics, topic: str
) -> None:
    sink = opened(log, topics, topic, delivery="at_least_once")
    first = log.prepare(sink, rows(log, PAIR, (1, "a")))
    assert [log.commit(first), log.commit(first)] == ["committed", "already"]
    assert len(topics.read(topic)) == 1


def test_a_batch_that_fills_the_producers_queue_to_the_last_message_is_sent_in_one_try(
    log: SinkLog, topics: Topics, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Ten wait, half of them go, five fill the queue again: then the slot finds no room.
    sink = opened(log, topics, topic, options={"kafka.queue.buffering.max.messages": "10"})
    assert log.deliver(sink, rows(log, PAIR, *((k, "v") for k in range(15)))) == "committed"
    # Other tests may have had other packages say more.
    said = [record.getMessage() for record in caplog.records if record.name.startswith("stateflow")]
    assert (len(topics.read(topic)), said) == (15, [])


def test_who_opens_the_sinks_transaction_shuts_out_all_others(topics: Topics, topic: str) -> None:
    first, second = (Cluster(sf.kafka(topic, bootstrap=topics.address)) for _ in range(2))
    first.make_slots()

    def write(cluster: Cluster, value: bytes, between: Callable[[], object] = lambda: None) -> None:
        with cluster.transaction("stateflow-x", 10) as transaction:
            transaction.begin()
            transaction.produce([(b"1", value)], [])
            between()
            transaction.keep("{}")
            transaction.commit()

    with refused(UnavailableError, "fenced"):
        write(first, b"old", lambda: write(second, b"new"))
    assert [message.value for message in topics.read(topic)] == ["new"]


def test_a_topic_says_where_its_next_messages_will_stand(log: SinkLog, topics: Topics, topic: str) -> None:
    sink = opened(log, topics, topic)
    assert log.deliver(sink, rows(log, PAIR, (1, "a"), (2, "b"))) == "committed"
    # The markers of a transaction, which are counted, come after its answer, and before anybody reads it.
    until = time.monotonic() + 30
    while len(topics.read(topic)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    before = ends_of([topic], topics.address)[topic]
    assert sum(before.values()) > 2
    assert ends_of([topic], topics.address)[topic] == before
    assert log.deliver(sink, rows(log, PAIR, (3, "c"))) == "committed"
    assert sum(ends_of([topic], topics.address)[topic].values()) > sum(before.values())
    with refused(NotFoundError, "Kafka topic nobody-has-made-it"):
        ends_of(["nobody-has-made-it"], topics.address)


def test_kills_of_the_run_at_any_moment_leave_every_message_once(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    records = Records(root=tmp_path / "root", topic=topic, address=topics.address, slots=24, messages=20_000)
    records.decide()
    seed = random.randrange(10**6)
    moments, kills = random.Random(seed), 0
    while kills < 10 and records.finished < records.slots:
        with records.carry_on() as process:
            time.sleep(0.7 + moments.random() * 0.8)
            assert process.poll() in (None, 0)
            kills += process.poll() is None
            process.kill()
    with records.carry_on() as process:
        assert process.wait(60) == 0
    assert kills >= 3
    assert sorted(str(m.value) for m in topics.read(topic)) == records.wanted, f"seed {seed}, {kills} kills"


@pytest.mark.timeout(3000 if LONG else 300)
def test_brokers_that_are_killed_and_slow_in_the_middle_of_commits_leave_every_message_once(
    broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """STATEFLOW_LONG=1 kills fifty."""
    records = Records(
        root=tmp_path / "root", topic=topic, address=topics.address, slots=20 * KILLS, messages=2_000
    )
    records.decide()
    seed = random.randrange(10**6)
    moments, kills = random.Random(seed), 0
    while kills < KILLS and records.finished < records.slots:
        with records.carry_on() as process:
            begun, deadline = records.finished, time.monotonic() + 20
            while records.finished == begun and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(moments.random() / 3)
            if moments.random() < 0.3:
                with broker.stopped():
                    time.sleep(moments.random())
            broker.kill()
            kills += 1
            broker.start()
            process.kill() if moments.random() < 0.5 else time.sleep(0.3)
            process.kill()
    assert kills == KILLS, f"all was committed after {kills} kills"
    code = UNAVAILABLE
    while code == UNAVAILABLE:
        with records.carry_on() as process:
            code = process.wait(1200 if LONG else 120)
    assert code == 0
    assert sorted(str(m.value) for m in topics.read(topic)) == records.wanted, f"seed {seed}"


def test_a_feed_is_in_the_topic_once_and_tells_a_restore(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    job = FedJob(spark, tmp_path, sf.kafka(topic, bootstrap=topics.address), "append", keys="user")
    first = job.batch(1, 2)
    second = job.batch(2, 3)
    plan = job.restored(first, rewind_sinks=True)
    assert [sink.note.partition(":")[0] for sink in plan.sinks] == [
        f"cannot be taken back and keeps its rows of the feed up to slot {second}"
    ]
    restored = int(plan.apply().checkpoint)
    job.forget_input()
    third = job.batch(3)
    found = [json.loads(m.value or "{}") for m in topics.read(topic)]
    rows = [(row["user"], row["slot"], row["kind"], row["before"], row["after"]) for row in found]
    assert sorted(rows, key=lambda row: (row[1], row[0])) == [
        (1, first, "put", None, 1.0), (2, first, "put", None, 2.0),
        (2, second, "put", 2.0, 4.0), (3, second, "put", None, 3.0),
        (2, restored, "restore", 4.0, 2.0), (3, restored, "delete", 3.0, None),
        (3, third, "put", None, 3.0),
    ]  # fmt: skip

"""Topics of Kafka as users name them: what is refused, what a connection says, and that no password comes into a record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.connectors import UnavailableError, UsageError
from stateflow.connectors.kafka.settings import (
    java_settings,
    registry_settings,
    settings_of,
)
from stateflow.jobs.checking import checked
from stateflow.masking import hidden
from stateflow.pipelines.inputs.connection import parsed
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.sources.kafka_topics import refusal

BROKER = {"bootstrap": "broker:9092"}
REGISTRY = "http://registry:8081"


def test_a_topic_has_one_place_however_its_brokers_are_written() -> None:
    topic = sf.kafka("orders", bootstrap="two:9092, ONE:9092")
    assert topic.place == sf.kafka("orders", bootstrap="one:9092,two:9092").place
    assert topic.place == "kafka://one:9092,two:9092/orders"
    assert sf.kafka("orders", connection="env:KAFKA").place == "kafka://env:KAFKA/orders"
    assert str(topic) == "Kafka topic orders"
    assert str(sf.kafka("orders", "returns", **BROKER)) == "Kafka topics orders, returns"


def test_several_topics_are_named_one_by_one_or_in_a_list() -> None:
    assert sf.kafka("a", "b", **BROKER) == sf.kafka(("a", "b"), **BROKER) == sf.kafka(["a", "b"], **BROKER)
    assert sf.kafka("a", **BROKER).topic == "a"
    with pytest.raises(UsageError, match="Kafka topics a, b are several, and a sink writes to one topic"):
        _ = sf.kafka("a", "b", **BROKER).topic


@pytest.mark.parametrize(
    ("topics", "arguments", "sentence"),
    [
        ((), BROKER, r"names no topic: write kafka\('orders'"),
        (("orders,returns",), BROKER, r"write kafka\('orders', 'returns', ...\)"),
        (("orders-*",), BROKER, "'orders-\\*' is no name of a topic"),
        (("a", "a"), BROKER, "names a topic twice"),
        ((7,), BROKER, "a topic is a name, not 7"),
        (("a",), {}, "does not say where its brokers are: write bootstrap='broker:9092'"),
        (("a",), {"bootstrap": "broker"}, "bootstrap has 'broker', and a broker is a host and a port"),
        (("a",), {"bootstrap": "me:hunter2@broker:9092"}, "bootstrap has a user or password in it"),
        (("a",), {"bootstrap": ["broker:9092"]}, "bootstrap is one text, with commas between"),
        (("a",), {"connection": "sasl.password=hunter2"}, "is the path of a properties file or 'env:NAME'"),
        (("a",), {"connection": "env:"}, "the connection names no variable"),
        (("a",), {**BROKER, "value": "xml"}, "cannot read or write the value 'xml': say one of json, avro"),
        (("a",), {**BROKER, "key": "xml"}, "cannot read or write the key 'xml'"),
        (("a",), {**BROKER, "value": "avro"}, "the value is Avro, and nothing says its schema"),
        (("a",), {**BROKER, "key": "avro"}, "the key is Avro, and nothing says its schema"),
        (
            ("a",),
            {**BROKER, "registry": REGISTRY},
            "registry would do nothing, as neither value nor key is Avro or Protobuf",
        ),
        (
            ("a",),
            {**BROKER, "value": "avro", "registry": REGISTRY, "schema": "a.avsc"},
            "a registry and a schema",
        ),
        (("a",), {**BROKER, "value": "avro", "registry": "registry"}, "the registry is found at a URL"),
        (
            ("a",),
            {**BROKER, "value": "avro", "registry": "http://me:hunter2@registry:8081"},
            "the URL of the registry has a user or password in it",
        ),
        (("a",), {**BROKER, "since": "yesterday"}, "say 'earliest', 'latest' or a datetime with a time zone"),
        (("a",), {**BROKER, "since": datetime(2026, 1, 1)}, "the time since=.* has no time zone"),
        (("a",), {**BROKER, "per_batch": 0}, "per_batch is a number of messages, 1 or more, not 0"),
        (("a",), {**BROKER, "per_batch": True}, "per_batch is a number of messages"),
        (
            ("a",),
            {**BROKER, "options": {"kafka.bootstrap.servers": "b:9092"}},
            "bootstrap and the option .* are the same",
        ),
        (
            ("a",),
            {**BROKER, "options": {"kafka.sasl.jaas.config": "password=hunter2"}},
            "option 'kafka.sasl.jaas.config' is called like a secret, .* put it into the connection",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence_without_a_secret(
    topics: tuple[Any, ...], arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        sf.kafka(*topics, **arguments)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("startingOffsets", "say since='earliest' or since='latest'"),
        ("startingtimestamp", "say since=datetime("),
        ("subscribePattern", "say each topic by its name"),
        ("includeHeaders", "say kafka_headers: "),
    ],
)
def test_what_an_argument_says_is_no_option(option: str, instead: str) -> None:
    topic = sf.kafka("a", **BROKER, options={option: "x"})
    with pytest.raises(UsageError, match=re.escape(f"instead of option {option!r} {instead}")):
        topic.declared("orders", row_type("user long"))


def test_a_connection_gives_properties_and_the_pipeline_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# for the driver\n"
        "bootstrap.servers = other:9092\n"
        "security.protocol: SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=me\n"
        'sasl.password=hun"ter\\\\2\n'
        "fetch.max.bytes=1\n"
        "ssl.truststore.location=/etc/\\\n    store.jks\n"
        "schema.registry.basic.auth.user.info=me:pass2\n"
    )
    topic = sf.kafka("a", **BROKER, connection=str(file), options={"kafka.fetch.max.bytes": 2})
    assert java_settings(topic) == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="hun\\"ter\\\\2";',
        "fetch.max.bytes": "2",
        "ssl.truststore.location": "/etc/store.jks",
    }
    assert settings_of(topic)["sasl.username"] == "me"
    assert registry_settings(topic) == {"basic.auth.user.info": "me:pass2"}
    assert "hun" not in f"{topic!r} {topic} {topic.place}"


def test_a_variable_holds_properties_as_lines_or_as_json() -> None:
    topic = sf.kafka("a", connection="env:KAFKA")
    text = '{"bootstrap.servers": "one:9092", "enable.idempotence": true, "retries": 3}'
    assert settings_of(topic, {"KAFKA": text}) == parsed(
        "bootstrap.servers=one:9092\nenable.idempotence=true\nretries=3"
    )


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "stands in the variable KAFKA, which this process does not have"),
        ({"KAFKA": "hunter2"}, r"has no properties \(line 1 has no name and value\)"),
        ({"KAFKA": '{"a": "hunter2"'}, r"has no properties \(it begins like JSON and is none\)"),
        ({"KAFKA": '{"a": ["hunter2"]}'}, r"\(a value of its JSON is no text\)"),
        ({"KAFKA": "security.protocol=SSL"}, "neither bootstrap nor the connection env:KAFKA says where"),
        (
            {"KAFKA": "bootstrap.servers=a:1\nsasl.username=me\nsasl.mechanism=GSSAPI"},
            "goes with sasl.mechanism PLAIN, .* not GSSAPI",
        ),
    ],
)
def test_a_connection_that_says_nothing_is_refused_without_its_text(
    environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        java_settings(sf.kafka("a", connection="env:KAFKA"), environment)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.properties cannot be read \(No such file or directory\)"):
        settings_of(sf.kafka("a", connection=str(tmp_path / "none.properties")))


def test_errors_of_others_are_shown_without_the_secrets_of_the_connection() -> None:
    settings = {"sasl.jaas.config": 'x required username="me" password="hun\\"ter2";', "group.id": "orders"}
    assert hidden('login as orders with hun\\"ter2 failed', settings) == "login as orders with *** failed"


def test_a_time_with_a_zone_is_where_a_source_begins() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert sf.kafka("a", **BROKER, since=at).since == at


def test_a_flow_says_which_jars_its_sources_need_and_is_checked_without_them() -> None:
    @dataclass
    class Order:
        user: int

    flow = sf.Flow("orders")
    orders = flow.source("orders", sf.kafka("orders", **BROKER), Order)
    assert flow.jars == ("kafka",)
    orders.append("out", sf.delta("/out"))
    assert checked(flow, "orders", None).warnings == ()
    plain = sf.Flow("plain")
    plain.source("in", sf.delta("/in"))
    assert plain.jars == ()


def test_a_flow_with_a_table_or_a_folder_on_s3_says_so() -> None:
    written = sf.Flow("written")
    written.source("in", sf.delta("/in")).append("out", sf.delta("S3A://lake/out"))
    assert written.jars == ("s3",)
    read = sf.Flow("read")
    read.source("in", sf.delta("s3://lake/in"))
    assert read.jars == ("s3",)
    named = sf.Flow("named")
    named.source("in", sf.delta("/in")).append("out", sf.table("main.out", location="s3a://lake/out"))
    assert named.jars == ("s3",)


@pytest.mark.parametrize(
    ("classes", "error", "sentence"),
    [
        ({"SaslAuthenticationException"}, UsageError, "the Kafka brokers b:1 refuse the login: correct user, password"),
        ({"TopicAuthorizationException"}, UsageError, "the login may not read Kafka topic 'orders' of b:1: .*READ and DESCRIBE"),
        ({"TimeoutException"}, UnavailableError, "no Kafka broker answers at b:1 within 15 s"),
        (
            {"KafkaException"},
            UsageError,
            r"Kafka's client does not start with these settings \(No resolvable bootstrap urls",
        ),
    ],
)  # fmt: skip
def test_what_the_brokers_answer_is_one_sentence(
    classes: set[str], error: type[Exception], sentence: str
) -> None:
    said = (
        "org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient\n\tat x\n"
        "Caused by: org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers\n"
    )
    with pytest.raises(error, match=sentence):
        raise refusal("orders", "orders", "b:1", classes, said)

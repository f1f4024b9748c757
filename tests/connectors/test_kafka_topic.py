"""Topics of Kafka as users name them: what is refused, what a connection says, and that no password comes into a record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaError

import stateflow as sf
from stateflow.connectors.kafka import slots
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.settings import java_settings, registry_settings, settings_of
from stateflow.jobs.checking import checked
from stateflow.masking import hidden
from stateflow.pipelines.inputs.connection import parsed

BROKER = {"bootstrap": "broker:9092"}


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


def test_a_property_has_javas_escapes() -> None:
    text = r"""sasl.password=p\u00fcss\tw\\n\=x"""
    assert parsed(text) == {"sasl.password": "p\u00fcss\tw\\n=x"}


def test_a_variable_holds_properties_as_lines_or_as_json() -> None:
    topic = sf.kafka("a", connection="env:KAFKA")
    text = '{"bootstrap.servers": "one:9092", "enable.idempotence": true, "retries": 3}'
    assert settings_of(topic, {"KAFKA": text}) == parsed(
        "bootstrap.servers=one:9092\nenable.idempotence=true\nretries=3"
    )


def test_errors_of_others_are_shown_without_the_secrets_of_the_connection() -> None:
    settings = {"sasl.jaas.config": 'x required username="me" password="hun\\"ter2";', "group.id": "orders"}
    assert hidden('login as orders with hun\\"ter2 failed', settings) == "login as orders with *** failed"


def test_a_topic_that_brokers_do_not_know_is_the_one_that_was_asked_about() -> None:
    """A cluster of a sink has the topic of slots, too."""
    cluster, unknown = (
        Cluster(sf.kafka("orders", **BROKER)),
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
    )
    told = cluster.told(unknown, "orders")
    assert isinstance(told, sf.NotFoundError)
    assert "--topic orders" in str(told)
    assert {type(cluster.told(unknown, topic)) for topic in (slots.TOPIC, "")} == {sf.UnavailableError}


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

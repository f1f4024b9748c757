"""Topics of Kafka, as a pipeline names them, and what their brokers answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

import stateflow as sf
from stateflow.connectors.kafka.settings import java_settings
from stateflow.errors import UnavailableError, UsageError
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.sources.kafka_topics import refusal
from tests.refusals.refusal import Refusal, raised

REGISTRY = "http://registry:8081"
SAID = (
    "org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient\n\tat x\n"
    "Caused by: org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers\n"
)
OUT = sf.kafka("out", bootstrap="broker:9092")
a_topic = partial(sf.kafka, "a", bootstrap="broker:9092")
of_avro = partial(a_topic, value="avro")


@dataclass
class Order:
    user: str
    amount: float


def declared(mode: str, target: Any, *others: Any, **options: Any) -> sf.Flow:
    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        getattr(orders, mode)("out", target, **options)
        for number, other in enumerate(others):
            orders.append(f"other-{number}", other)

    return sf.pipeline("shop")(shop).build()


def read_with(option: str) -> object:
    return a_topic(options={option: "x"}).declared("orders", row_type("user long"))


def connected(**environment: str) -> object:
    return java_settings(sf.kafka("a", connection="env:KAFKA"), environment)


def answered(kind: str) -> object:
    return raised(refusal("orders", "orders", "b:1", {kind}, SAID))


REFUSALS = [
    # topics
    Refusal(UsageError, ("names no topic", "kafka('orders'"), lambda: sf.kafka(bootstrap="b:1")),
    Refusal(UsageError, ("'orders,returns'", "kafka('orders', 'returns', ...)"), lambda: sf.kafka("orders,returns", bootstrap="b:1")),
    Refusal(UsageError, ("'orders-*'", "no name of a topic"), lambda: sf.kafka("orders-*", bootstrap="b:1")),
    Refusal(UsageError, ("names a topic twice",), lambda: sf.kafka("a", "a", bootstrap="b:1")),
    Refusal(UsageError, ("a topic is a name", "not 7"), lambda: sf.kafka(7, bootstrap="b:1")),  # type: ignore[arg-type]
    Refusal(UsageError, ("where its brokers are", "bootstrap='broker:9092'"), lambda: sf.kafka("a")),
    Refusal(UsageError, ("bootstrap", "'broker'", "a host and a port"), lambda: sf.kafka("a", bootstrap="broker")),
    Refusal(UsageError, ("bootstrap", "user or password"), lambda: sf.kafka("a", bootstrap="me:hunter2@broker:9092"),
            hidden="hunter2"),
    Refusal(UsageError, ("bootstrap", "one text"), lambda: sf.kafka("a", bootstrap=["broker:9092"])),  # type: ignore[arg-type]
    Refusal(UsageError, ("is the path of a properties file", "'env:NAME'"), lambda: sf.kafka("a", connection="sasl.password=hunter2"),
            hidden="hunter2"),
    Refusal(UsageError, ("the connection names no variable",), lambda: sf.kafka("a", connection="env:")),
    Refusal(UsageError, ("the value 'xml'", "json, avro"), lambda: a_topic(value="xml")),
    Refusal(UsageError, ("the key 'xml'",), lambda: a_topic(key="xml")),
    Refusal(UsageError, ("the value is Avro", "nothing says its schema"), lambda: of_avro()),
    Refusal(UsageError, ("the key is Avro", "nothing says its schema"), lambda: a_topic(key="avro")),
    Refusal(UsageError, ("registry", "neither value nor key is Avro or"), lambda: a_topic(registry=REGISTRY)),
    Refusal(UsageError, ("a registry and a schema",), lambda: of_avro(registry=REGISTRY, schema="a.avsc")),
    Refusal(UsageError, ("registry", "at a URL"), lambda: of_avro(registry="registry")),
    Refusal(UsageError, ("the URL of the registry", "user or password"),
            lambda: of_avro(registry="http://me:hunter2@registry:8081"), hidden="hunter2"),
    Refusal(UsageError, ("'earliest'", "'latest'", "datetime with a time zone"), lambda: a_topic(since="yesterday")),
    Refusal(UsageError, ("since=", "no time zone"), lambda: a_topic(since=datetime(2026, 1, 1))),
    Refusal(UsageError, ("per_batch", "number of messages", "not 0"), lambda: a_topic(per_batch=0)),
    Refusal(UsageError, ("per_batch", "number of messages", "True"), lambda: a_topic(per_batch=True)),
    Refusal(UsageError, ("bootstrap", "kafka.bootstrap.servers", "the same"),
            lambda: a_topic(options={"kafka.bootstrap.servers": "b:9092"})),
    Refusal(UsageError, ("'kafka.sasl.jaas.config'", "a secret", "put it into the connection"),
            lambda: a_topic(options={"kafka.sasl.jaas.config": "password=hunter2"}), hidden="hunter2"),
    Refusal(UsageError, ("Kafka topics a, b", "one topic"), lambda: sf.kafka("a", "b", bootstrap="b:1").topic),
    Refusal(UsageError, ("none.avsc cannot be read", "No such file or directory"),
            lambda: of_avro(schema="/nowhere/none.avsc").declared("a", None)),
    Refusal(UsageError, ("the value is Protobuf", "nothing says its schema", "schema='orders.desc'"), lambda: a_topic(value="protobuf")),
    Refusal(UsageError, ("no message of Protobuf", "protoc"), lambda: a_topic(value="protobuf", schema=Order)),
    Refusal(UsageError, ("schema is a class", "not Protobuf"), lambda: a_topic(schema=Timestamp)),
    Refusal(UsageError, ("message would do nothing", "not Protobuf"), lambda: a_topic(message="shop.Order")),
    # options that are arguments
    Refusal(UsageError, ("'startingOffsets'", "since='earliest'", "since='latest'"), lambda: read_with("startingOffsets")),
    Refusal(UsageError, ("'startingtimestamp'", "since=datetime("), lambda: read_with("startingtimestamp")),
    Refusal(UsageError, ("'subscribePattern'", "each topic by its name"), lambda: read_with("subscribePattern")),
    Refusal(UsageError, ("'includeHeaders'", "kafka_headers: "), lambda: read_with("includeHeaders")),
    # connections
    Refusal(UsageError, ("the variable KAFKA", "this process does not have"), lambda: connected()),
    Refusal(UsageError, ("none.properties cannot be read", "No such file or directory"),
            lambda: java_settings(sf.kafka("a", connection="/nowhere/none.properties"), {})),
    Refusal(UsageError, ("no properties", "line 1"), lambda: connected(KAFKA="hunter2"), hidden="hunter2"),
    Refusal(UsageError, ("no properties", "JSON and is none"), lambda: connected(KAFKA='{"a": "hunter2"'),
            hidden="hunter2"),
    Refusal(UsageError, ("a value of its JSON is no text",), lambda: connected(KAFKA='{"a": ["hunter2"]}'),
            hidden="hunter2"),
    Refusal(UsageError, ("neither bootstrap nor", "env:KAFKA"), lambda: connected(KAFKA="security.protocol=SSL")),
    Refusal(UsageError, ("sasl.mechanism PLAIN", "not GSSAPI"),
            lambda: connected(KAFKA="bootstrap.servers=a:1\nsasl.username=me\nsasl.mechanism=GSSAPI")),
    # answers of the brokers
    Refusal(UsageError, ("b:1", "refuse the login", "password"), lambda: answered("SaslAuthenticationException")),
    Refusal(UsageError, ("topic 'orders'", "b:1", "READ and DESCRIBE"), lambda: answered("TopicAuthorizationException")),
    Refusal(UnavailableError, ("b:1", "within 15 s"), lambda: answered("TimeoutException")),
    Refusal(UsageError, ("these settings", "No resolvable bootstrap urls"), lambda: answered("KafkaException")),
    # topics as targets
    Refusal(UsageError, ("Kafka topics a, b", "one topic"), lambda: declared("append", sf.kafka("a", "b", bootstrap="b:1"))),
    Refusal(UsageError, ("since of Kafka topic a", "for reading it"), lambda: declared("append", a_topic(since="latest"))),
    Refusal(UsageError, ("per_batch of Kafka topic a", "for reading it"), lambda: declared("append", a_topic(per_batch=5))),
    Refusal(UsageError, ("'failOnDataLoss' of Kafka topic a", "for reading"),
            lambda: declared("append", a_topic(options={"failOnDataLoss": "false"}))),
    Refusal(UsageError, ("Kafka topic a", "no key of Avro", "key='json'"),
            lambda: declared("append", a_topic(key="avro", registry="http://r:1"), keys="user")),
    Refusal(UsageError, ("of which columns", "keys='user'"), lambda: declared("append", a_topic(key="string"))),
    Refusal(UsageError, ("one column of the type string", "user string, amount double"),
            lambda: declared("append", a_topic(value="string"))),
    Refusal(UsageError, ("a value of string", "here it is amount double", "value='json'"),
            lambda: declared("append", a_topic(value="string"), keys="user")),
    Refusal(UsageError, ("a key of bytes", "the type binary", "here it is user"),
            lambda: declared("upsert", a_topic(key="bytes"), keys="user")),
    Refusal(UsageError, ("Order", "no column 'nobody' for keys"), lambda: declared("append", OUT, keys="nobody")),
    Refusal(UsageError, ("does not take order_by",), lambda: declared("append", OUT, order_by="amount")),
    Refusal(UsageError, ("no key columns", "keys="), lambda: declared("upsert", OUT)),
    Refusal(UsageError, ("delete_when", "gone"), lambda: declared("upsert", OUT, keys="user", delete_when="gone")),
    Refusal(UsageError, ("'out' and 'other-0'", "one place", "Kafka topic out"),
            lambda: declared("append", sf.kafka("out", bootstrap="b:9092,a:9092"), sf.kafka("out", bootstrap="A:9092, b:9092"))),
]  # fmt: skip

"""Kafka's own client for questions about topics, which its connector's jars bring into the driver's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from stateflow.spark.internals.gateway import failure_classes, failure_text
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_ID = "A" * 22
"""Zeros, as Kafka writes an id."""
PATIENCE = 15
"""Seconds that a broker has to answer in."""


class KafkaRefusal(Exception):
    """An answer of the client that is none: the simple names of its exceptions, and its words."""

    def __init__(self, error: Py4JJavaError) -> None:
        super().__init__(failure_text(error))
        self.classes = {name.rpartition(".")[2] for name in failure_classes(error)}


class KafkaAdmin:
    """A client of a cluster. Its errors are `KafkaRefusal`."""

    def __init__(self, spark: SparkSession, client: Any) -> None:
        self._names = java_names(spark)
        self._client = client

    def topic_id(self, topic: str) -> str:
        """What the brokers call a topic; empty if they are older than such ids."""
        one = self._names.java.util.Collections.singletonList(topic)
        told = _asked(lambda: self._client.describeTopics(one).topicNameValues().get(topic).get())
        found = str(told.topicId())
        return "" if found == _NO_ID else found

    def topics(self) -> Sequence[str]:
        """The names of those that may be seen."""
        found = _asked(lambda: self._client.listTopics().names().get())
        return sorted(str(name) for name in found)


def topic_matches(spark: SparkSession, pattern: str, topic: str) -> bool:
    """Whether a pattern of topics matches one, as Spark's source takes it."""
    return bool(java_names(spark).java.util.regex.Pattern.matches(pattern, topic))


@contextmanager
def kafka_admin(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[KafkaAdmin]:
    """A client with these properties."""
    names = java_names(spark)
    properties = names.java.util.Properties()
    patience = {
        "request.timeout.ms": f"{PATIENCE * 500}",
        "default.api.timeout.ms": f"{PATIENCE * 1000}",
        "retries": "3",
    }
    for name, value in {**settings, **patience}.items():
        properties.setProperty(name, value)
    client = _asked(lambda: names.org.apache.kafka.clients.admin.AdminClient.create(properties))
    try:
        yield KafkaAdmin(spark, client)
    finally:
        client.close(names.java.time.Duration.ofSeconds(1))


def _asked(question: Any) -> Any:
    try:
        return question()
    except Py4JJavaError as error:
        raise KafkaRefusal(error) from None

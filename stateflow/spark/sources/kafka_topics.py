"""Whether the topics of a Kafka source can be read, before anything is: Spark itself would wait for minutes, and tell it in a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyspark.sql import SparkSession

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.masking import hidden
from stateflow.names import suggestion
from stateflow.spark.internals.kafka_admin import (
    PATIENCE,
    KafkaAdmin,
    KafkaRefusal,
    kafka_admin,
    topic_matches,
)
from stateflow.spark.sources.leaves import LeafDescription

_PREFIX = "kafka."
_LOGIN = {
    "SaslAuthenticationException",
    "SslAuthenticationException",
    "AuthenticationException",
    "LoginException",
}
_RIGHTS = {"TopicAuthorizationException", "ClusterAuthorizationException", "AuthorizationException"}


def ids_of_topics(spark: SparkSession, uid: str, leaf: LeafDescription) -> dict[str, str]:
    """By name the ids of the topics that a stream names. NotFoundError for a topic that is not there, UnavailableError for brokers that do not answer, UsageError for a login without rights."""
    settings = {
        name.removeprefix(_PREFIX): value for name, value in leaf.options.items() if name.startswith(_PREFIX)
    }
    servers = settings.get("bootstrap.servers", "")
    topic = ""
    try:
        with kafka_admin(spark, settings) as admin:
            ids = {}
            for topic in topics_of(leaf.options):
                ids[topic] = _id_of(admin, uid, topic, servers)
            if not topic:
                admin.topics()
            return {topic: each for topic, each in ids.items() if each}
    except KafkaRefusal as refused:
        raise refusal(uid, topic, servers, refused.classes, hidden(str(refused), settings)) from None


def topics_of(options: Mapping[str, str]) -> Sequence[str]:
    """The topics that a source names; none for a pattern."""
    if "subscribe" in options:
        return [name.strip() for name in options["subscribe"].split(",") if name.strip()]
    return list(json.loads(options["assign"])) if "assign" in options else []


def assigned(options: Mapping[str, str]) -> set[tuple[str, int]]:
    """The partitions that a source names; none for one of whole topics."""
    return {
        (topic, int(number))
        for topic, numbers in json.loads(options.get("assign", "{}")).items()
        for number in numbers
    }


def names_topic(spark: SparkSession, options: Mapping[str, str], topic: str) -> bool:
    """Whether a source names a topic, or its pattern matches it."""
    pattern = options.get("subscribepattern")
    return topic in topics_of(options) if pattern is None else topic_matches(spark, pattern, topic)


def not_named(spark: SparkSession, options: Mapping[str, str], partitions: Iterable[tuple[str, int]]) -> str:
    """The first of these that a source does not name, in words; empty if it names all."""
    parts = assigned(options)
    for topic, number in sorted(partitions):
        if not names_topic(spark, options, topic):
            return f"topic {topic!r}"
        if parts and (topic, number) not in parts:
            return f"topic {topic!r} partition {number}"
    return ""


def refusal(uid: str, topic: str, servers: str, classes: set[str], said: str) -> StateflowError:
    """What the client's exceptions mean, in a sentence."""
    source = f"source {uid!r}"
    if classes & _LOGIN:
        return UsageError(
            f"{source}: the Kafka brokers {servers} refuse the login: correct user, password or certificate in the connection"
        )
    if classes & _RIGHTS:
        return UsageError(
            f"{source}: the login may not read Kafka topic {topic!r} of {servers}: let somebody grant it READ and DESCRIBE"
        )
    if "TimeoutException" in classes:
        return UnavailableError(
            f"{source}: no Kafka broker answers at {servers} within {PATIENCE} s: check that it runs and that this is its address; one that wants TLS "
            "or a login does not answer a client without (security.protocol in the connection)"
        )
    first = next(iter(_reasons(said)), "no reason was told")
    return UsageError(
        f"{source}: Kafka's client does not start with these settings ({first}): correct bootstrap, connection or options"
    )


def _id_of(admin: KafkaAdmin, uid: str, topic: str, servers: str) -> str:
    try:
        return admin.topic_id(topic)
    except KafkaRefusal as refused:
        if "UnknownTopicOrPartitionException" not in refused.classes:
            raise
        meant = suggestion(topic, admin.topics()) or ": make it, or correct its name"
        raise NotFoundError(
            f"source {uid!r}: there is no Kafka topic {topic!r} at {servers}{meant}"
        ) from None


def _reasons(said: str) -> Iterator[str]:
    """The words of the innermost exception first."""
    causes = [line.strip() for line in said.splitlines() if "Caused by:" in line or "Exception:" in line]
    for line in reversed(causes):
        yield line.removeprefix("Caused by:").strip().partition(": ")[2] or line

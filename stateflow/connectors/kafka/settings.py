"""What a connection says: properties of Kafka's clients and of a registry's, with secrets. They live in the process that needs them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stateflow.connectors import UsageError, properties_of
from stateflow.connectors.kafka.topic import KafkaTopic

SERVERS = "bootstrap.servers"
_REGISTRY = ("schema.registry.", "basic.auth.")
"""How the names begin that a registry's client has."""
_JAAS = "sasl.jaas.config"
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def settings_of(topic: KafkaTopic, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All properties of the client, by Kafka's names: the connection's, then those of the pipeline."""
    found = {**connection_of(topic, environment), **topic.client_options}
    if topic.bootstrap:
        found[SERVERS] = topic.bootstrap
    if not found.get(SERVERS):
        raise UsageError(
            f"{topic}: neither bootstrap nor the connection {topic.connection} says where the brokers are: write bootstrap='broker:9092', or the line "
            f"{SERVERS}=broker:9092 into the connection"
        )
    return {name: value for name, value in found.items() if not name.startswith(_REGISTRY)}


def java_settings(topic: KafkaTopic, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The same for a client in Java, which knows no `sasl.username` and no `sasl.password`."""
    found = settings_of(topic, environment)
    user, password = found.pop("sasl.username", None), found.pop("sasl.password", None)
    if "sasl.mechanisms" in found:
        found.setdefault("sasl.mechanism", found.pop("sasl.mechanisms"))
    if user is not None and _JAAS not in found:
        mechanism = found.setdefault("sasl.mechanism", "PLAIN")
        if mechanism not in _LOGINS:
            raise UsageError(
                f"{topic}: sasl.username goes with sasl.mechanism {', '.join(_LOGINS)}, not {mechanism}: write {_JAAS} into the connection"
            )
        found[_JAAS] = (
            f"{_LOGINS[mechanism]} required username={_quoted(user)} password={_quoted(password or '')};"
        )
    return found


def registry_settings(topic: KafkaTopic) -> dict[str, str]:
    """Properties of the registry's client, by their names without `schema.registry.`."""
    return {
        name.removeprefix("schema.registry."): value
        for name, value in connection_of(topic).items()
        if name.startswith(_REGISTRY)
    }


def connection_of(topic: KafkaTopic, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What stands in the file or the variable."""
    return properties_of(str(topic), topic.connection, "security.protocol=SASL_SSL", environment)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""What a connection says: properties of Kafka's clients and of a registry's, with secrets. They live in the process that needs them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stateflow.connectors import UsageError
from stateflow.connectors.kafka.topic import KafkaTopic

SERVERS = "bootstrap.servers"
_REGISTRY = ("schema.registry.", "basic.auth.")
"""How the names begin that a registry's client has."""
_JAAS = "sasl.jaas.config"
_LINE = re.compile(r"((?:\\.|[^\\\s=:])+)\s*[=:\s]\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
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


def registry_settings(topic: KafkaTopic, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Properties of the registry's client, by their names without `schema.registry.`."""
    return {
        name.removeprefix("schema.registry."): value
        for name, value in connection_of(topic, environment).items()
        if name.startswith(_REGISTRY)
    }


def connection_of(topic: KafkaTopic, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What stands in the file or the variable."""
    if not topic.connection:
        return {}
    if topic.connection.startswith("env:"):
        name = topic.connection.removeprefix("env:")
        if not (text := environment.get(name, "")):
            raise UsageError(
                f"{topic}: the connection stands in the variable {name}, which this process does not have: set it where the driver runs"
            )
    else:
        try:
            text = Path(topic.connection).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"{topic}: the connection {topic.connection} cannot be read ({reason}): give the path of a properties file that the driver can read, or "
                "'env:NAME'"
            ) from None
    try:
        return parsed(text)
    except ValueError as error:
        raise UsageError(
            f"{topic}: the connection {topic.connection} has no properties ({error}): write lines such as security.protocol=SASL_SSL"
        ) from None


def parsed(text: str) -> dict[str, str]:
    """Properties as Java writes them, or as an object of JSON. ValueError, without any of the text, for something else."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError("it begins like JSON and is none") from None
        if not all(isinstance(value, str | int | float | bool) for value in found.values()):
            raise ValueError("a value of its JSON is no text")
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }
    return dict(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_whole_lines(text), 1):
        if not line or line[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has no name and value")
        yield _ESCAPE.sub(r"\1", match[1]), _ESCAPE.sub(r"\1", match[2]).strip()


def _whole_lines(text: str) -> Iterator[str]:
    """The lines; one that ends in a backslash goes on in the next."""
    begun = ""
    for line in text.splitlines():
        line = line.lstrip()
        if not begun and line[:1] in ("#", "!"):
            yield line
        elif (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
        else:
            yield (begun + line).rstrip()
            begun = ""
    if begun:
        yield begun


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

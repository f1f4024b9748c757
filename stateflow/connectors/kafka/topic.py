"""Topics of Kafka as users name them, without a password: the source of a flow, or the target of `append`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stateflow.connectors import Declarable, UsageError, check_connection, is_secret

if TYPE_CHECKING:
    from stateflow.connectors import RowType

VALUES = ("json", "avro", "protobuf", "string", "bytes")
KEYS = ("string", "bytes", "json", "avro")
DESCRIBED = {"avro": "orders.avsc", "protobuf": "orders.desc"}
"""Formats whose values mean nothing without a schema, and a file that may have one."""
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class KafkaTopic(Declarable):
    """Topics of one cluster, and what stands in their messages."""

    topics: tuple[str, ...]
    """A source reads all of them; a sink writes to one."""
    bootstrap: str = ""
    """`host:port`, several with commas between them; empty if the connection says it."""
    value: str = "json"
    key: str | None = None
    """How the key of a message is written; None for a sink without keys, and for a source whose row class says it."""
    registry: str = ""
    """The URL of a schema registry."""
    schema: str = ""
    """The file of an Avro schema or of Protobuf's descriptors, where there is no registry."""
    connection: str = ""
    """The path of a file with client properties, or `env:NAME` for a variable that holds them. See `settings.py`."""
    since: str | datetime = "earliest"
    """Where a source begins that has read nothing yet."""
    per_batch: int | None = None
    """How many messages a batch of a source takes at most."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`kafka.*` are properties of the client."""
    message: str = ""
    """The full name of a message of Protobuf."""
    descriptors: bytes = field(default=b"", repr=False)
    """Of the class of a message, where there is neither a registry nor a file."""

    def declared(self, uid: str, rows: RowType | None) -> Any:
        """What a source reads, with the columns that it declares: `KafkaMessages`. A sink needs nothing of it."""
        return import_module("stateflow.connectors.kafka.source").messages_of(uid, self, rows)

    @property
    def topic(self) -> str:
        """The only topic. UsageError for several, as a sink writes to one."""
        if len(self.topics) > 1:
            raise UsageError(
                f"{self} are several, and a sink writes to one topic: give each its own append, of the rows that it gets"
            )
        return self.topics[0]

    @property
    def servers(self) -> str:
        """Its cluster in one spelling; where the connection says it, by the connection's name."""
        return ",".join(sorted(part.strip().lower() for part in self.bootstrap.split(","))) or self.connection

    @property
    def place(self) -> str:
        """Cluster and topics."""
        return self._at(",".join(sorted(self.topics)))

    def holds(self, place: str) -> bool:
        """Whether it is the place of one of the topics."""
        return any(place == self._at(name) for name in self.topics)

    def _at(self, names: str) -> str:
        return f"kafka://{self.servers}/{names}"

    @property
    def client_options(self) -> dict[str, str]:
        """Properties of the client that stand in the pipeline, by Kafka's names."""
        return {
            name[len("kafka.") :]: value
            for name, value in self.options.items()
            if name.lower().startswith("kafka.")
        }

    def __str__(self) -> str:
        return f"Kafka topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"


def kafka(
    *topics: str | Sequence[str],
    bootstrap: str = "",
    value: str = "json",
    key: str | None = None,
    registry: str = "",
    schema: str | type = "",
    message: str = "",
    connection: str = "",
    since: str | datetime = "earliest",
    per_batch: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaTopic:
    """Topics of Kafka, such as `kafka("orders", bootstrap="broker:9092")`: a source of a flow, or one topic as the target of `append`.

    `value` says what a message is: "json", "avro", "protobuf", "string" or "bytes"; `key` the same of its key. Avro and Protobuf have
    their schemas from the `registry` at a URL, or one from the file `schema`, which of Protobuf may be the class of a message, too.
    `message` is the full name of the message of Protobuf that a source reads. `connection` is the path of a properties file of Kafka's client, or "env:NAME"
    with a variable that holds such properties: passwords stand there and nowhere else.

    A source begins at `since`: "earliest", "latest" or a time; a batch takes at most `per_batch` messages. `options` of the name `kafka.*`
    are properties of the client.
    """
    names: tuple[Any, ...] = topics
    if len(topics) == 1 and isinstance(topics[0], list | tuple):
        names = tuple(topics[0])
    what = f"kafka({', '.join(map(repr, names))})"
    given = {str(name): _text(each) for name, each in (options or {}).items()}
    file, descriptors = ("", b"") if isinstance(schema, type) else (str(schema), b"")
    if isinstance(schema, type):
        message, descriptors = _class_of_message(what, value, message, schema)
    topic = KafkaTopic(
        names, bootstrap, value, key, registry, file, str(connection), since, per_batch, given, message, descriptors
    )  # fmt: skip
    _check_names(what, topic)
    _check_servers(what, topic)
    _check_formats(what, topic)
    _check_start(what, topic)
    if secret := [name for name in given if is_secret(name)]:
        raise UsageError(
            f"{what}: option {secret[0]!r} is called like a secret, which would stand in the pipeline: leave it out, and put it into the connection, "
            "a properties file or a variable that holds one (connection='/etc/kafka/orders.properties' or connection='env:NAME')"
        )
    return topic


def _text(value: Any) -> str:
    # Java writes booleans in small letters.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(what: str, topic: KafkaTopic) -> None:
    if not topic.topics:
        raise UsageError("kafka() names no topic: write kafka('orders', bootstrap='broker:9092')")
    for name in topic.topics:
        if not isinstance(name, str):
            raise UsageError(
                f"{what}: a topic is a name, not {name!r}: write kafka('orders', 'returns', ...)"
            )
        if "," in name:
            parts = ", ".join(repr(part.strip()) for part in name.split(","))
            raise UsageError(f"{what}: topics are named one by one: write kafka({parts}, ...)")
        if _NAME.fullmatch(name) is None or name in (".", ".."):
            raise UsageError(
                f"{what}: {name!r} is no name of a topic, which has letters of ASCII, digits, '.', '_' and '-', and no pattern: write each "
                "topic by its name"
            )
    if len(set(topic.topics)) < len(topic.topics):
        raise UsageError(f"{what} names a topic twice, whose messages would be read once: leave one out")


def _check_servers(what: str, topic: KafkaTopic) -> None:
    check_connection(what, topic.connection, "KAFKA_PROPERTIES")
    if not topic.bootstrap and not topic.connection:
        raise UsageError(f"{what} does not say where its brokers are: write bootstrap='broker:9092'")
    if not isinstance(topic.bootstrap, str):
        raise UsageError(
            f"{what}: bootstrap is one text, with commas between several brokers: write 'one:9092,two:9092'"
        )
    if "@" in topic.bootstrap:
        raise UsageError(
            f"{what}: bootstrap has a user or password in it, which would stand in records: leave it out, and put it into the connection"
        )
    for server in topic.bootstrap.split(",") if topic.bootstrap else ():
        if _SERVER.fullmatch(server.strip()) is None:
            raise UsageError(
                f"{what}: bootstrap has {server.strip()!r}, and a broker is a host and a port: write bootstrap='broker:9092'"
            )
    own = {name.lower() for name in topic.options}
    if "kafka.bootstrap.servers" in own:
        raise UsageError(
            f"{what}: bootstrap and the option 'kafka.bootstrap.servers' are the same: leave the option out"
        )
    if topic.registry:
        url = urlsplit(topic.registry)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise UsageError(
                f"{what}: the registry is found at a URL: write registry='http://registry:8081', without a user or password"
            )
        if url.username or url.password or url.query:
            raise UsageError(
                f"{what}: the URL of the registry has a user or password in it, which would stand in records: leave it out, and write the line "
                "schema.registry.basic.auth.user.info=USER:PASSWORD into the connection"
            )


def _check_formats(what: str, topic: KafkaTopic) -> None:
    if topic.value not in VALUES:
        raise UsageError(
            f"{what} cannot read or write the value {topic.value!r}: say one of {', '.join(VALUES)}"
        )
    if topic.key is not None and topic.key not in KEYS:
        raise UsageError(f"{what} cannot read or write the key {topic.key!r}: say one of {', '.join(KEYS)}")
    described = [name for name in ("value", "key") if getattr(topic, name) in DESCRIBED]
    schema = topic.schema or topic.descriptors
    if described and not topic.registry and not schema:
        form = getattr(topic, described[0])
        raise UsageError(
            f"{what}: the {described[0]} is {form.capitalize()}, and nothing says its schema: give registry='http://registry:8081', or "
            f"schema={DESCRIBED[form]!r}"
        )
    if topic.registry and schema:
        raise UsageError(f"{what} has a registry and a schema: leave one of them out")
    if (topic.registry or schema) and not described:
        given = "registry" if topic.registry else "schema"
        raise UsageError(
            f"{what}: {given} would do nothing, as neither value nor key is Avro or Protobuf: leave it out, or say value='avro'"
        )
    if topic.message and topic.value != "protobuf":
        raise UsageError(
            f"{what}: message would do nothing, as the value is not Protobuf: leave it out, or say value='protobuf'"
        )


def _class_of_message(what: str, value: str, message: str, given: type[Any]) -> tuple[str, bytes]:
    """The full name of a class's message, and its descriptors."""
    if value != "protobuf":
        raise UsageError(f"{what}: schema is a class, and the value is not Protobuf: say value='protobuf'")
    protobuf = import_module("stateflow.connectors.kafka.protobuf")
    if not issubclass(given, protobuf.runtime("message").Message):
        raise UsageError(
            f"{what}: schema is the class {given.__name__}, which is no message of Protobuf: give one that protoc has made, such as orders_pb2.Order"
        )
    name: str = given.DESCRIPTOR.full_name
    if message not in ("", name):
        raise UsageError(f"{what}: message is {message!r}, and schema the class of {name}: leave message out")
    return name, protobuf.set_of(given.DESCRIPTOR)


def _check_start(what: str, topic: KafkaTopic) -> None:
    since = topic.since
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise UsageError(
                f"{what}: the time since={since.isoformat()} has no time zone: say datetime(..., tzinfo=UTC)"
            )
    elif since not in ("earliest", "latest"):
        raise UsageError(f"{what}: since={since!r}: say 'earliest', 'latest' or a datetime with a time zone")
    many = topic.per_batch
    if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
        raise UsageError(f"{what}: per_batch is a number of messages, 1 or more, not {many!r}")

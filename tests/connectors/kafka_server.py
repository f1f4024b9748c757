"""Topics of a real broker for tests of its sinks, and what their readers see."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

MARKERS_WITHIN = 5.0
"""Seconds. A commit returns when the broker has decided it; that the partitions show it takes a moment more."""


@dataclass(frozen=True)
class Message:
    key: str | None
    value: str | None
    headers: dict[str, str]
    partition: int


@dataclass(frozen=True)
class Topics:
    """The topics of a broker at an address."""

    address: str
    _open: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict, compare=False, repr=False)
    """By topic, the ends of one that kept two apart for as long as a marker may take."""

    @property
    def names(self) -> set[str]:
        # By a client of its own: one that has seen a topic's partitions goes on with these for minutes.
        return set(AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=30).topics)

    def make(self, name: str, partitions: int = 2, **config: str) -> str:
        made = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
        self._admin.create_topics([made])[name].result(30)
        # A loaded broker answers for a moment that it does not know a topic which it has just made.
        until = time.monotonic() + 30
        while name not in self.names and time.monotonic() < until:
            time.sleep(0.05)
        return name

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def set(self, name: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)

    def forget_group(self, name: str) -> None:
        """What brokers do by themselves with a group that rests for seven days."""
        self._admin.delete_consumer_groups([name])[name].result(30)

    def read(self, name: str, isolation: str = "read_committed") -> list[Message]:
        """All messages, partition after partition, as a reader that trusts transactions sees them."""
        settings = {
            "bootstrap.servers": self.address, "group.id": uuid.uuid4().hex, "isolation.level": isolation,
            "enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10,
            "enable.sparse.connections": False,
        }  # fmt: skip
        found: dict[int, list[Message]] = {}
        consumer = Consumer(settings)
        try:
            places = [
                TopicPartition(name, number, OFFSET_BEGINNING)
                for number in consumer.list_topics(name, 10).topics[name].partitions
            ]
            if isolation == "read_committed":
                self._await_markers(name, places)
            consumer.assign(places)
            ended: set[int] = set()
            while len(ended) < len(places):
                message = consumer.poll(20)
                assert message is not None, "the topic has an end that no reader comes to"
                if message.error() is not None:
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(message.error())
                    ended.add(message.partition())
                    continue
                headers = {key: value.decode() for key, value in message.headers() or []}
                one = Message(_text(message.key()), _text(message.value()), headers, message.partition())
                found.setdefault(message.partition(), []).append(one)
        finally:
            consumer.close()
        return [message for _, messages in sorted(found.items()) for message in messages]

    def _await_markers(self, name: str, places: list[TopicPartition]) -> None:
        """Until readers see the ends of all partitions; a transaction that stays open is waited for as long as a marker may take, once."""
        until = time.monotonic() + MARKERS_WITHIN
        while True:
            seen = self._ends(places, IsolationLevel.READ_COMMITTED)
            written = self._ends(places, IsolationLevel.READ_UNCOMMITTED)
            if seen == written or self._open.get(name) == (seen, written):
                return
            if time.monotonic() > until:
                self._open[name] = seen, written
                return
            time.sleep(0.05)

    def _ends(self, places: list[TopicPartition], isolation: IsolationLevel) -> list[int]:
        wanted = {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in places}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=10)
        return [answer.result(20).offset for answer in answers.values()]

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})


def _text(value: Any) -> str | None:
    # Bytes that are no text can be had again.
    return None if value is None else bytes(value).decode(errors="surrogateescape")

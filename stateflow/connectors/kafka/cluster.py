"""A cluster, as far as a sink needs it: what a topic is, the slots, and one transaction at a time. librdkafka does the work.

Everything that goes wrong here is an error of the library's: what goes away by itself is an UnavailableError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stateflow.connectors import (
    IncompatibleError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
    hidden,
    required,
)
from stateflow.connectors.kafka import slots
from stateflow.connectors.kafka.settings import SERVERS, settings_of
from stateflow.connectors.kafka.spread import BY_KEY, Chosen, chosen

if TYPE_CHECKING:
    from types import ModuleType

    from stateflow.connectors.kafka.topic import KafkaTopic

PATIENCE = 10.0
"""Seconds for one request."""
LARGEST = 1_048_588
"""Bytes of a message: what a broker takes if nobody says anything else."""
_PARTITIONER = "murmur2_random"
"""As Java's clients do, so that a key is in the same partition whoever writes it."""
_WAITING = 500_000
"""Messages that librdkafka has at once. It needs some hundred bytes for each."""
_SHORTLY = 50
"""Milliseconds that a broker may wait for more before it says that this was all."""
SHORT, LONG = 60, 900
"""Seconds of a transaction. Readers wait as long for what follows a driver that was killed, if no other run comes. LONG is what a broker allows
at most if nobody says anything else (`transaction.max.timeout.ms`)."""
_SOON = 3.0
"""Seconds in which brokers that are well abort a transaction."""
_ROWS_PER_SECOND = 5_000
"""A transaction has time for that many messages, a tenth of what an idle machine and a broker beside it do."""
_JAVA_ONLY = (
    "sasl.jaas.config",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
)
_DENIED = ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")  # fmt: skip
_ABSENT = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_REFUSED = ("SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL", "_INVALID_ARG")
_OLD = ("UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as it is now."""

    id: str
    """One that is made anew has another."""
    largest: int
    """Bytes of a message."""
    partitions: int
    policy: str = ""
    """Its cleanup.policy; empty where nobody may ask."""

    @property
    def compacts(self) -> bool:
        """Whether it takes no message without a key."""
        return "compact" in self.policy


class Cluster:
    """The brokers of a topic."""

    def __init__(self, topic: KafkaTopic, patience: float = PATIENCE) -> None:
        """`patience`: seconds for the first answer of brokers."""
        self.topic = topic
        self._patience = patience
        self.what = f"Kafka topic {topic.topic}"
        self.what_by_slots = f"{self.what}, by the slots in the topic {slots.TOPIC},"
        self._driver: ModuleType = required("confluent_kafka", "kafka", self.what)
        self._operator: ModuleType = required("confluent_kafka.admin", "kafka", self.what)

    def facts(self) -> TopicFacts:
        """NotFoundError if the topic is not there, UsageError if it is not ours to write."""
        admin = self._operator
        names = self._driver.TopicCollection([self.topic.topic])
        with self._errors(self.topic.topic):
            asked = self._admin.describe_topics(
                names, include_authorized_operations=True, request_timeout=PATIENCE
            )
            told = asked[self.topic.topic].result(PATIENCE * 2)
        rights = told.authorized_operations
        if rights is not None and admin.AclOperation.WRITE not in rights:
            raise UsageError(
                f"{self.what}: the user of this connection has no right to write: {self._grant('topic', self.topic.topic, 'Write')}"
            )
        policy = self._set.get("cleanup.policy", "")
        return TopicFacts(str(told.topic_id), self._largest, len(told.partitions), policy)

    def ends(self) -> dict[int, int]:
        """Where the next message of each partition will stand that a source reads. NotFoundError if the topic is not there."""
        return self._offsets(self._operator.OffsetSpec.latest(), self._driver.IsolationLevel.READ_COMMITTED)

    def kept(self) -> dict[int, tuple[int, int]]:
        """The first offset of each partition and its end, behind transactions that are still open. NotFoundError if the topic is not there."""
        spec, level = self._operator.OffsetSpec, self._driver.IsolationLevel.READ_UNCOMMITTED
        ends = self._offsets(spec.latest(), level)
        firsts = self._offsets(spec.earliest(), level)
        return {number: (first, ends[number]) for number, first in firsts.items() if number in ends}

    def _offsets(self, spec: Any, level: Any) -> dict[int, int]:
        name = self.topic.topic
        if name not in (there := self._topics()):
            raise NotFoundError(f"{self.what} is not there")
        asked = {self._driver.TopicPartition(name, number): spec for number in there[name].partitions}
        with self._errors(name):
            told = self._admin.list_offsets(asked, isolation_level=level, request_timeout=PATIENCE)
            return {int(at.partition): int(each.result(PATIENCE * 2).offset) for at, each in told.items()}

    def make_slots(self) -> None:
        """Makes the compacted topic, if it is missing."""
        admin = self._operator
        if slots.TOPIC not in self._topics():
            made = admin.NewTopic(
                slots.TOPIC, 1, config={"cleanup.policy": "compact", "segment.ms": str(24 * 3600 * 1000)}
            )
            with self._errors():
                try:
                    self._admin.create_topics([made], request_timeout=PATIENCE)[slots.TOPIC].result(
                        PATIENCE * 2
                    )
                except self._driver.KafkaException as error:
                    name = error.args[0].name()
                    if name in _DENIED:
                        raise UsageError(
                            f"{self.what}: the topic {slots.TOPIC}, which keeps what came, is not there, and the user of this connection may not make "
                            f"it: {slots.MAKE_TOPIC}, and let the user write and read it"
                        ) from error
                    if name != "TOPIC_ALREADY_EXISTS":
                        raise
            # Brokers say for a moment that they do not know a topic which they have just made.
            until = time.monotonic() + PATIENCE
            while slots.TOPIC not in self._topics() and time.monotonic() < until:
                time.sleep(0.1)
            return
        policy = self._config(slots.TOPIC).get("cleanup.policy", "compact")
        if policy != "compact":
            raise UsageError(
                f"{self.what}: the topic {slots.TOPIC}, which keeps what came, has cleanup.policy={policy}, so that slots would be lost: "
                f"kafka-configs.sh --alter --entity-type topics --entity-name {slots.TOPIC} --add-config cleanup.policy=compact"
            )

    def group_slot(self, name: str) -> str | None:
        """What the sink's group keeps. Waits for a transaction of its own that is ending."""
        with self._errors(), self._consumer(name) as consumer:
            [found] = consumer.committed([self._driver.TopicPartition(slots.TOPIC, 0)], PATIENCE)
            if found.error is not None:
                raise self._driver.KafkaException(found.error)
            return str(found.metadata) if found.offset >= 0 and found.metadata else None

    def topic_slot(self, name: str) -> str | None:
        """What the compacted topic keeps, once all that is in it now is decided."""
        return self.topic_slots(name).get(name)

    def topic_slots(self, name: str) -> Mapping[str, str]:
        """The same of all sinks. `name` is of the group that reads."""
        kafka, found = self._driver, dict[str, str]()
        if slots.TOPIC not in self._topics():
            return found
        with self._errors():
            place = kafka.TopicPartition(slots.TOPIC, 0)
            with self._consumer(name, **{"isolation.level": "read_uncommitted"}) as consumer:
                begin, end = consumer.get_watermark_offsets(place, PATIENCE)
            with self._consumer(
                name,
                **{
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": _SHORTLY,
                },
            ) as consumer:
                consumer.assign([kafka.TopicPartition(slots.TOPIC, 0, begin)])
                until = time.monotonic() + 2 * PATIENCE
                while time.monotonic() < until:
                    message = consumer.poll(1.0)
                    if message is None:
                        continue
                    if message.error() is None:
                        key, value = (message.key() or b"").decode(), message.value()
                        found.pop(key, None)
                        if value is not None:
                            found[key] = value.decode()
                    elif message.error().name() != "_PARTITION_EOF":
                        raise kafka.KafkaException(message.error())
                    elif message.offset() >= end:
                        return found
        raise UnavailableError(
            f"{self.what}: the topic {slots.TOPIC} has a transaction that somebody has left open: run again; brokers end it within minutes"
        )

    @contextmanager
    def transaction(self, name: str, rows: int, attempt: int = 0) -> Iterator[TopicTransaction]:
        """A producer for one transaction. Whoever opened one of this name before can commit nothing any more, and what it had begun to commit
        is decided."""
        seconds = min(LONG, max(SHORT, rows // _ROWS_PER_SECOND * 2**attempt))
        producer = self._producer({"transactional.id": name, "transaction.timeout.ms": seconds * 1000})
        with self._errors():
            producer.init_transactions(PATIENCE)
        yield from self._producing(producer, name, seconds)

    @contextmanager
    def without_transaction(self, name: str) -> Iterator[TopicTransaction]:
        """The same for brokers that have no transactions: what is produced can be seen at once."""
        yield from self._producing(self._producer({"enable.idempotence": True}), name, LONG, transacts=False)

    def _producing(
        self, producer: Any, name: str, seconds: int, transacts: bool = True
    ) -> Iterator[TopicTransaction]:
        transaction = TopicTransaction(self, producer, name, seconds, transacts)
        try:
            with self._errors():
                try:
                    yield transaction
                except self._driver.KafkaException as error:
                    if transacts and error.args[0].name() == "_FATAL":
                        # Every call fails from here on, and this one says why: mostly, that another run has opened a transaction.
                        producer.abort_transaction(PATIENCE)
                    raise
        except Exception:
            # One that stays open holds up the readers of both topics. Where this fails, whoever opens the next one aborts it, or the brokers do.
            with suppress(self._driver.KafkaException):
                transaction.abort()
            raise
        finally:
            with suppress(self._driver.KafkaException):
                producer.purge()

    def chosen(self, partitions: int | None) -> Chosen:
        """Where a key goes in a topic of so many partitions; wherever the producer puts it if that is None."""
        return chosen(self._driver, self._settings.get("partitioner", _PARTITIONER), partitions)

    def _producer(self, more: Mapping[str, Any]) -> Any:
        try:
            largest = self._largest
        except NotFoundError:
            largest = LARGEST  # its slot can still be read, and `facts` says that the topic is gone
        settings = {
            "partitioner": _PARTITIONER,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": _WAITING,
            "queue.buffering.max.kbytes": 262_144,
            "delivery.report.only.error": True,
            **self._settings,
            "message.max.bytes": max(largest, 1_000),
            **more,
        }
        with self._errors():
            return self._driver.Producer(settings)

    @contextmanager
    def _consumer(self, group: str, **more: Any) -> Iterator[Any]:
        settings = {
            **self._settings,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **more,
        }
        consumer = self._driver.Consumer({**settings, "group.id": group})
        try:
            yield consumer
        finally:
            consumer.close()

    def _topics(self) -> Mapping[str, Any]:
        with self._errors():
            found: Mapping[str, Any] = self._admin.list_topics(timeout=self._patience).topics
        return found

    @cached_property
    def _largest(self) -> int:
        return int(self._set.get("max.message.bytes", LARGEST))

    @cached_property
    def _set(self) -> Mapping[str, str]:
        return self._config(self.topic.topic)

    def _config(self, name: str) -> dict[str, str]:
        """What a topic is set to; nothing where nobody may ask."""
        admin = self._operator
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name)
        with self._errors(name):
            try:
                told = self._admin.describe_configs([resource], request_timeout=PATIENCE)[resource].result(
                    PATIENCE * 2
                )
            except self._driver.KafkaException as error:
                if error.args[0].name() in _DENIED:
                    return {}
                raise
        return {each.name: each.value for each in told.values()}

    @cached_property
    def _admin(self) -> Any:
        with self._errors():
            return self._operator.AdminClient(self._settings)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        given = {name: value for name, value in settings_of(self.topic).items() if name not in _JAVA_ONLY}
        if "sasl.mechanism" in given:
            given.setdefault("sasl.mechanisms", given.pop("sasl.mechanism"))
        # librdkafka would tell every broken connection on stderr. What stops a run is an error here. Clients live for one question or one
        # transaction: one that connects only when it has to waits up to half a second, by a timer of its own, before it opens a transaction.
        return {"log_level": 0, "enable.sparse.connections": False, **given}

    @contextmanager
    def _errors(self, asked: str = "") -> Iterator[None]:
        """Kafka's errors as the library's. `asked`: the topic that is asked about."""
        try:
            yield
        except self._driver.KafkaException as error:
            raise self.told(error.args[0], asked) from error
        except (TimeoutError, BufferError) as error:
            raise UnavailableError(
                f"{self.what} cannot be reached: {self._settings[SERVERS]} did not answer; run again: nothing is lost"
            ) from error

    def told(self, error: Any, asked: str = "") -> StateflowError:
        """An error of Kafka's in a sentence that says what to do. `asked`: the topic that was asked about; else a topic that is not there may be that
        of the slots."""
        name, said = error.name(), hidden(error.str(), self._settings)
        if name in _ABSENT and asked == self.topic.topic:
            return NotFoundError(
                f"{self.what} is not there: kafka-topics.sh --create --topic {self.topic.topic} --partitions 6, or correct its name"
            )
        if name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            return UsageError(
                f"{self.what}: {said}: {self._grant('transactional-id', 'stateflow-', 'Write')} --resource-pattern-type prefixed"
            )
        if name == "GROUP_AUTHORIZATION_FAILED":
            return UsageError(
                f"{self.what}: {said}: {self._grant('group', 'stateflow-', 'Read')} --resource-pattern-type prefixed"
            )
        if name in _DENIED:
            return UsageError(
                f"{self.what}: {said}: {self._grant('topic', self.topic.topic, 'Write')}, and the same for {slots.TOPIC} with Read"
            )
        if name in _REFUSED:
            return UsageError(f"{self.what} cannot be reached: {said}; correct the connection")
        if name in _OLD:
            return UsageError(
                f"{self.what}: its brokers have no transactions ({said}): run with delivery='at_least_once', or write to newer brokers"
            )
        if name in ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
            return IncompatibleError(f"{self.what} refuses a message: {said}; raise its max.message.bytes")
        if name == "INVALID_RECORD":
            return IncompatibleError(
                f"{self.what} refuses a message: {said}; one with cleanup.policy=compact takes none without a key: {self.keep_all}"
            )
        if name == "INVALID_TRANSACTION_TIMEOUT":
            return UsageError(
                f"{self.what}: the brokers allow no transaction as long as this batch may need: raise their transaction.max.timeout.ms to {LONG * 1000}, "
                "or make smaller batches"
            )
        return UnavailableError(f"{self.what}: {said}; run again when the brokers are well: nothing is lost")

    @property
    def keep_all(self) -> str:
        """The command by which the topic takes messages without a key."""
        return f"kafka-configs.sh --alter --entity-type topics --entity-name {self.topic.topic} --add-config cleanup.policy=delete"

    def _grant(self, kind: str, name: str, right: str) -> str:
        return f"kafka-acls.sh --add --allow-principal User:NAME --operation {right} --{kind} {name}"


class TopicTransaction:
    """Messages that readers see all at once, with the slot that they are of."""

    def __init__(self, cluster: Cluster, producer: Any, name: str, seconds: int, transacts: bool) -> None:
        self._cluster = cluster
        self._producer = producer
        self._name = name
        self._seconds = seconds
        self._transacts = transacts
        self._begun = False
        self._failed: list[Any] = []

    def begin(self) -> None:
        if self._transacts:
            self._producer.begin_transaction()
            self._begun = True

    def abort(self) -> None:
        """Nothing, if it did not begin."""
        if self._begun:
            self._producer.abort_transaction(_SOON)

    def produce(
        self,
        messages: Iterable[tuple[bytes | None, bytes | None]],
        headers: list[tuple[str, bytes]],
        topic: str = "",
        chosen: Chosen = lambda key: BY_KEY,
    ) -> None:
        """Pairs of a key and a value, into the sink's own topic if no other is given."""
        topic = topic or self._cluster.topic.topic
        produce, report = self._producer.produce, self._report
        until = time.monotonic() + self._seconds
        for key, value in messages:
            while True:
                try:
                    produce(topic, value, key, chosen(key), on_delivery=report, headers=headers)
                    break
                except BufferError:
                    self._await_half(until)

    def _await_half(self, until: float) -> None:
        """Until half of what waits is out. Each time that this thread asks for it, it holds up the one that sends."""
        half = len(self._producer) // 2
        while True:
            if time.monotonic() > until or self._failed:
                self._raise(f"did not take a batch within {self._seconds} s")
            self._producer.poll(0.1)
            if len(self._producer) <= half:
                return

    def keep(self, text: str) -> None:
        """The slot, in both places."""
        kafka = self._cluster._driver
        self.produce([(self._name.encode(), text.encode())], [], slots.TOPIC, lambda key: 0)
        offset = kafka.TopicPartition(slots.TOPIC, 0, 0, metadata=text)
        with self._cluster._consumer(self._name) as consumer:
            if self._transacts:
                self._producer.send_offsets_to_transaction(
                    [offset], consumer.consumer_group_metadata(), self._seconds
                )
            else:
                self._flush()
                consumer.commit(offsets=[offset], asynchronous=False)

    def commit(self) -> None:
        if self._transacts:
            self._producer.commit_transaction(self._seconds)

    def _flush(self) -> None:
        if self._producer.flush(self._seconds) or self._failed:
            self._raise(f"did not take a batch within {self._seconds} s")

    def _raise(self, otherwise: str) -> None:
        if self._failed:
            raise self._cluster.told(self._failed[0])
        raise UnavailableError(
            f"{self._cluster.what} {otherwise}; run again when the brokers are well: nothing is lost"
        )

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)

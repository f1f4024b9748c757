"""Appends to and upserts into a topic: staged messages are produced in one transaction with the slot that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.connectors import (
    CommitRequest,
    Committed,
    FileRef,
    IncompatibleError,
    NotFoundError,
    Prepared,
    Sink,
    SinkKind,
    SinkSlot,
    Staged,
    Stager,
    first_duplicate,
    trying_again,
)
from stateflow.connectors.kafka import avro_values, messages, protobuf_values, slots, spread
from stateflow.connectors.kafka.cluster import Cluster, TopicFacts
from stateflow.connectors.kafka.kinds import APPEND, UPSERT
from stateflow.connectors.kafka.topic import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NOBODY = slots.name_of(SinkSlot("", "", "", 0, 0))
"""The group that asks before there is a sink's."""


class KafkaAppend(Sink):
    """The sink `stream.append(uid, kafka(topic))`."""

    declared: ClassVar[SinkKind] = APPEND
    target: KafkaTopic

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.upsert.deletion(schema)
        _, values = self._columns(schema)
        self._encoder(schema, values)
        try:
            facts = trying_again(lambda: _may_write(Cluster(self.target)))
        except NotFoundError:
            self.refuse_gone(str(self.target))
            raise
        self._refuse_compacted(facts)
        self.identity = facts.id
        self._spread(facts)

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        keys, values = self._columns(frame.schema)
        frame, upsert = self.upsert.marked(frame)

        def asked() -> TopicFacts:
            cluster = Cluster(self.target)
            facts = cluster.facts()
            kept = slots.read(at, cluster.what, cluster.group_slot, cluster.topic_slot)
            if kept is not None:
                slots.refuse_made_anew(kept.topic_id, facts.id, cluster.what, at)
            at.refuse_disagreement(cluster.what_by_slots, kept.slot if kept is not None else None)
            return facts

        facts = trying_again(asked)
        self._refuse_compacted(facts)
        encoder = self._encoder(frame.schema, values)
        rows = messages.messages(frame, self.target, keys, values, upsert.operation, upsert.order_by, encoder)
        staged = stager.write(rows, at, [messages.SIZE])
        if staged.files:
            operations = {upsert.operation: staged.nulls.get(messages.OPERATION, 0)}
            replace(upsert, keys=()).refuse(replace(staged, nulls=operations), rows, at, stager)
            self._refuse(staged, facts, at, deletes=upsert.deletes)
            staged = self._last_of_keys(frame.sparkSession, staged, rows.schema, at, stager)
        return Prepared(
            kind=self.declared.name,
            target=self.target.place,
            payload={
                "topic": self.target.topic,
                "bootstrap": self.target.bootstrap,
                "connection": self.target.connection,
                "options": dict(self.target.options),
                "topic_id": facts.id,
                "exactly_once": self.delivery == "exactly_once",
                **self._spread(facts),
                **self._columns_kept(frame.schema, keys, values),
            },
            files=staged.files,
            rows=staged.rows,
        )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        if not request.prepared.files:
            return "none"
        attempts = count()
        try:
            return trying_again(lambda: _committed(request, next(attempts)))
        except IncompatibleError as error:
            raise request.stuck(f"{error}; then run again") from error

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        cluster = Cluster(_topic_of(prepared))
        kept = slots.read(at, cluster.what, cluster.group_slot, cluster.topic_slot)
        return kept.slot if kept is not None else None

    @classmethod
    def put_out(cls, prepared: Prepared) -> str:
        return messages.put_out(prepared.payload)

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        def asked() -> Mapping[str, str]:
            cluster = Cluster(self.target)
            return slots.writers(cluster.topic_slots(_NOBODY), cluster.facts().id)

        return trying_again(asked)

    def _columns(self, schema: StructType) -> tuple[list[str], list[str]]:
        # A key that is not there is refused with the column that says what is deleted.
        replace(self.upsert, keys=()).refuse_unknown(schema.names)
        return messages.check(str(self.target), self.target, schema, self.upsert.keys, self.upsert.operation)

    def _encoder(
        self, schema: StructType, values: Sequence[str]
    ) -> avro_values.AvroValues | protobuf_values.ProtobufValues | None:
        """What makes the values that Spark cannot make. The registry has their schema from then on; it is asked once by each process."""
        columns = [(name, schema[name].dataType.simpleString()) for name in values]
        if self.target.value == "avro":
            return avro_values.registered(self.target, columns)
        if self.target.value == "protobuf":
            return protobuf_values.registered(self.target, columns)
        return None

    def _refuse_compacted(self, facts: TopicFacts) -> None:
        """IncompatibleError for a topic that takes no message without a key, if these have none."""
        if facts.compacts and not self.upsert.keys:
            raise IncompatibleError(
                f"{self.target} has cleanup.policy={facts.policy}, and takes no message without a key: say keys='user', with columns of the rows, or "
                f"let it keep all messages: {Cluster(self.target).keep_all}"
            )

    def _refuse(self, staged: Staged, facts: TopicFacts, at: SinkSlot, deletes: bool) -> None:
        """IncompatibleError for messages that the topic would not take, or that would mean something else."""
        topic, after = (
            self.target,
            "no message was written; leave such rows out where the operator puts them out",
        )
        if self.upsert.keys and (absent := staged.nulls.get(messages.KEY)):
            raise IncompatibleError(
                f"{absent} of the rows of {at} have a null in the key {', '.join(self.upsert.keys)} of {topic}: {after}"
            )
        if absent := staged.nulls.get(messages.MEANT if deletes else messages.VALUE):
            raise IncompatibleError(
                f"{absent} of the rows of {at} have a null for a value, which readers of {topic} take for a delete: {after}"
            )
        largest = int((staged.bounds.get(messages.SIZE) or (0, 0))[1])
        if largest > facts.largest:
            raise IncompatibleError(
                f"a row of {at} becomes a message of {largest} bytes, and {topic} takes {facts.largest}: {after}, or raise its max.message.bytes"
            )

    def _spread(self, facts: TopicFacts) -> dict[str, int]:
        """What a record keeps of how its keys are spread."""
        return {}

    def _columns_kept(self, schema: StructType, keys: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
        """What a record keeps so that a replay makes rows of the messages."""
        return messages.kept(schema, self.target, keys, values)

    def _last_of_keys(
        self, spark: SparkSession, staged: Staged, schema: StructType, at: SinkSlot, stager: Stager
    ) -> Staged:
        """One message per key of an upsert: staged anew where a key has several."""
        return staged


class KafkaUpsert(KafkaAppend):
    """The sink `stream.upsert(uid, kafka(topic), keys=[...], order_by=..., delete_when=...)`."""

    declared: ClassVar[SinkKind] = UPSERT
    _partitions: int | None = None
    """How many the keys began with."""

    def _spread(self, facts: TopicFacts) -> dict[str, int]:
        if self._partitions is None:
            self._partitions = spread.begun_with(self.last_prepared, facts.id, facts.partitions)
            self.warning = spread.grown(str(self.target), self._partitions, facts.partitions)
        return {spread.PARTITIONS: self._partitions}

    def _columns_kept(self, schema: StructType, keys: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
        # It stages the last row of each key, and none of those that delete.
        return {}

    def _last_of_keys(
        self, spark: SparkSession, staged: Staged, schema: StructType, at: SinkSlot, stager: Stager
    ) -> Staged:
        duplicate = first_duplicate(spark, staged, schema, [messages.KEY], stager)
        if duplicate is None:
            return staged
        if not self.upsert.order_by:
            key = bytes(duplicate[0][0]).decode(errors="replace")
            raise IncompatibleError(
                f"{duplicate[1]} rows of one batch of {at} have the key {key!r}, and readers of {self.target} keep one: give upsert an order_by, of "
                "which the highest wins, or make one row per key; no message was written"
            )
        rows = stager.read(spark, staged.files, schema)
        return stager.write(messages.newest(rows, self.upsert.order_by), at)


def _may_write(cluster: Cluster) -> TopicFacts:
    """Asks for all that a commit needs, of a slot that nobody has."""
    facts = cluster.facts()
    cluster.make_slots()
    cluster.group_slot(_NOBODY)
    return facts


def _topic_of(prepared: Prepared) -> KafkaTopic:
    kept = prepared.payload
    return KafkaTopic(
        (kept["topic"],), bootstrap=kept["bootstrap"], connection=kept["connection"], options=kept["options"]
    )


def _committed(request: CommitRequest, attempt: int) -> Committed:
    """One try. A later one finds the slot, if this one came through after all."""
    prepared, at = request.prepared, request.at
    cluster, name = Cluster(_topic_of(prepared)), slots.name_of(at)
    topic_id = prepared.payload["topic_id"]
    begun = (
        cluster.transaction(name, prepared.rows, attempt)
        if prepared.payload["exactly_once"]
        else cluster.without_transaction(name)
    )
    # Whoever opened a transaction of this sink before can commit nothing from here on: the slot that is read now stays.
    with begun as transaction:
        kept = slots.read(at, cluster.what, cluster.group_slot, cluster.topic_slot)
        slot, mark = (kept.slot, kept.mark) if kept is not None else (None, None)
        if request.is_in(cluster.what_by_slots, slot, mark):
            return "already"
        try:
            facts = cluster.facts()  # nothing else can tell that the topic is gone
        except NotFoundError as error:
            raise slots.lost_topic(
                f"{cluster.what} was deleted", at, "make it anew, ", decided=True
            ) from error
        slots.refuse_made_anew(topic_id, facts.id, cluster.what, at, decided=True)
        if kept is None:
            cluster.make_slots()  # somebody may have deleted it since the run began
        # Asked after the transaction was opened: a run that replaces this one opens its own after it has claimed the job.
        request.still_owner()
        transaction.begin()
        where = cluster.chosen(prepared.payload.get(spread.PARTITIONS))
        transaction.produce(_pairs(request.stager, prepared.files), _headers(at), chosen=where)
        transaction.keep(slots.TopicSlot(at.slot, at.mark, topic_id).text(at.job_name))
        transaction.commit()
    return "committed"


def _pairs(stager: Stager, files: Sequence[FileRef]) -> Iterator[tuple[bytes | None, bytes | None]]:
    for batch in stager.batches(files):
        yield from zip(batch[messages.KEY].to_pylist(), batch[messages.VALUE].to_pylist(), strict=True)


def _headers(at: SinkSlot) -> list[tuple[str, bytes]]:
    return [("stateflow.job", at.job.encode()), ("stateflow.slot", str(at.slot).encode())]

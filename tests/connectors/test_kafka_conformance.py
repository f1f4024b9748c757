"""The sinks into Kafka keep what every sink promises, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import stateflow as sf
from stateflow.connectors import tries
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.topic import KafkaTopic
from stateflow.pipelines.rows.row_type import row_type
from stateflow.testing import SinkConformance
from tests.connectors.kafka_server import Topics
from tests.connectors.promises import only
from tests.connectors.schema_registry import registry
from tests.spark.kafka_broker import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with broker(tmp_path_factory.mktemp("broker")) as address:
        # A broker that was never asked for a group first makes itself a topic for them.
        cluster = Cluster(sf.kafka("any", bootstrap=address))
        tries.trying_again(lambda: cluster.group_slot("any"))
        yield Topics(address)


class LostError(KafkaException):
    def __init__(self, said: str) -> None:
        super().__init__(KafkaError(KafkaError._TRANSPORT, said))


class TestKafkaAppend(SinkConformance):
    failure = LostError
    any_columns = ordered = True
    makes_target = False
    every = 5
    lag = 20.0
    topics: Topics
    names = "append"

    @pytest.fixture(autouse=True)
    def _broker(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = topics
        monkeypatch.setattr(tries, "PAUSES", (0.0,) * 3)

    def target(self, folder: Path, name: str) -> KafkaTopic:
        topic = f"{self.names}-{name}"
        if topic not in self.topics.names:
            self.topics.make(topic, 1)
        return sf.kafka(topic, bootstrap=self.topics.address)

    def rows(self, target: KafkaTopic) -> Iterable[Mapping[str, Any]]:
        return self.parsed(target, [str(message.value) for message in self.topics.read(target.topic)])

    def parsed(self, target: KafkaTopic, texts: list[str]) -> list[dict[str, Any]]:
        if not target.topic.endswith("-values"):
            return [json.loads(text) for text in texts]
        # Values that JSON has no type for, as somebody reads them who knows the columns.
        columns = ", ".join(f"c{k} {type_}" for k, type_ in enumerate(self.types))
        frame = self.spark().createDataFrame([(text,) for text in texts], "value string")
        read = frame.selectExpr(f"from_json(value, 'id long, {columns}', map('timeZone', 'UTC')) AS row")
        return read.selectExpr("row.*").toArrow().to_pylist()


class TestKafkaAvro(TestKafkaAppend):
    names = "avro"
    form = "avro"

    @pytest.fixture(autouse=True)
    def _registry(self) -> Iterator[None]:
        with registry() as served:
            self.registry = served.url
            yield

    def target(self, folder: Path, name: str) -> KafkaTopic:
        return replace(super().target(folder, name), value=self.form, registry=self.registry)

    def rows(self, target: KafkaTopic) -> Iterable[Mapping[str, Any]]:
        """As a source of ours reads them, without the jars of its reader."""
        values = [
            (message.value or "").encode(errors="surrogateescape")
            for message in self.topics.read(target.topic)
        ]
        when = datetime(2026, 1, 1, tzinfo=UTC)
        messages = self.spark().createDataFrame(
            [(None, value, target.topic, 0, number, when, 0) for number, value in enumerate(values)],
            "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int",
        )
        source = target.declared("rows", row_type("id long, slot long, at long, v string, op string"))
        return source.parsed(messages.coalesce(1)).toArrow().to_pylist()


class TestKafkaProtobuf(TestKafkaAvro):
    names = "protobuf"
    form = "protobuf"


class TestKafkaUpsert(TestKafkaAppend):
    mode = "upsert"
    names = "upsert"
    ordered = False

    def rows(self, target: KafkaTopic) -> Iterable[Mapping[str, Any]]:
        newest: dict[str | None, str | None] = {}
        for message in self.topics.read(target.topic):
            newest[message.key] = message.value
        return self.parsed(target, [text for text in newest.values() if text is not None])


_OF_UPSERTS = {
    "test_rows_are_seen_when_their_record_is_committed_and_not_before",
    "test_a_record_that_is_committed_again_is_in_once",
    "test_an_accident_in_prepare_leaves_nothing_to_be_seen",
    "test_of_a_key_the_newest_row_stays_and_deletes_delete",
}
_OF_AVRO = {"test_rows_are_seen_when_their_record_is_committed_and_not_before"}
# Behind the bytes of a value it is the same code.
only(TestKafkaAvro, _OF_AVRO)
# An upsert prepares other messages. From there on it is the code of an append.
only(TestKafkaUpsert, _OF_UPSERTS)

"""Fields that no message of Avro or Protobuf has: the schemas of their writers say what may have been meant, and a run tells of it once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.kafka_broker import told_by

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

# A process of its own: the library brings the connector's jars when it starts Spark, and not later.
SCRIPT = """
import json, sys
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from google.protobuf import descriptor_pb2

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.spark.runner import RunRequest, run
from tests.connectors.kafka_server import Topics
from tests.connectors.schema_registry import file, framed, framed_message, number, registry, text, value

server, folder = sys.argv[1], Path(sys.argv[2])
topics = Topics(server)
NOTE = 'message_type {{ name: "Note" field {{ name: "id" number: 1 type: TYPE_INT64 }} field {{ name: "{0}" number: {1} type: TYPE_STRING {2} }} {3} }}'
OPTIONAL = ("proto3_optional: true oneof_index: 0", 'oneof_decl { name: "_it" }')


@dataclass
class Note:
    id: int
    note: str | None = None


@dataclass
class Wanted:
    id: int
    note: str
    broken: str | None = None


def produce(topic, *values):
    topics.make(topic, 1)
    producer = Producer({"bootstrap.servers": server, "acks": "all"})
    for each in values:
        producer.produce(topic, each, partition=0)
    assert producer.flush(30) == 0


def ran(topic, rows=Note, **given):
    @sf.pipeline(topic)
    def made(flow):
        read = flow.source("notes", sf.kafka(topic, bootstrap=server, **given), rows)
        read.append("out", sf.delta(str(folder / topic)))

    code = {"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s"}
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
    try:
        ended = run(RunRequest(made, load(code=code, env={}, folder=folder), master="local[2]", conf=conf))
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"
    return [ended.rows, ended.warnings]


told = {}
with registry() as served:
    fields = [{"name": "id", "type": "long"}, {"name": "notes", "type": "string"}]
    served.under("avro-value", 1, {"type": "record", "name": "Note", "fields": fields})
    one = framed(1, number(1) + text("x"))
    produce("avro", one, one)
    told["avro"] = ran("avro", value="avro", registry=served.url)
    misspelt = file(NOTE.format("notes", 2, *OPTIONAL))
    served.under("protobuf-value", 2, misspelt)
    produce("protobuf", framed_message(2, value(misspelt, "shop.Note", id=1, notes="x")))
    told["protobuf"] = ran("protobuf", value="protobuf", registry=served.url)
    # All of its messages are bad ones, which is no reason to fail the batch.
    produce("kept", one)
    told["kept"] = ran("kept", Wanted, value="avro", registry=served.url, options={"columnNameOfCorruptRecord": "broken"})

moved, known = file(NOTE.format("note", 7, *OPTIONAL)), file(NOTE.format("note", 2, *OPTIONAL))
for name, each in (("known", known), ("moved", moved)):
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(each)
    (folder / f"{name}.desc").write_bytes(files.SerializeToString())
produce("moved", *[value(moved, "shop.Note", id=1, note="x")] * 3)
told["moved"] = ran("moved", value="protobuf", schema=str(folder / "known.desc"))
produce("mended", value(moved, "shop.Note", id=1, note="x"))
told["mended"] = ran("mended", value="protobuf", schema=str(folder / "moved.desc"))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run of the script said."""
    return told_by(SCRIPT, tmp_path_factory.mktemp("kafka"))


@pytest.mark.parametrize(("form", "rows"), [("avro", 2), ("protobuf", 1)])
def test_a_field_that_is_called_otherwise_in_the_schema_is_a_warning(
    told: dict[str, Any], form: str, rows: int
) -> None:
    read, [warning] = told[form]
    assert read == rows
    for named in ("'notes'", f"{rows} rows have no 'note' at all", "they have 'notes', which Note lacks"):
        assert named in warning, warning


def test_messages_that_are_bad_for_the_lack_of_a_field_are_kept_as_before(told: dict[str, Any]) -> None:
    assert told["kept"] == [1, []]


def test_a_field_whose_number_may_have_moved_is_a_warning_that_counts(told: dict[str, Any]) -> None:
    read, [warning] = told["moved"]
    assert read == 3
    for named in (
        "'notes'",
        "3 rows have no 'note' at all",
        "a field 7 that shop.Note does not know",
        "schema=",
    ):
        assert named in warning, warning
    # As it advises.
    assert told["mended"] == [1, []]

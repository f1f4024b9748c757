"""Rows as values of Protobuf: what the source of topics reads back, what numbers columns have, and what is refused before a row is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import IncompatibleError, UnavailableError, UsageError
from stateflow.connectors.kafka import messages, protobuf_values
from stateflow.connectors.kafka.protobuf import ProtobufFile
from stateflow.connectors.kafka.protobuf_schema import file_for, name_of
from stateflow.connectors.kafka.protobuf_values import registered
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.sinks.kinds import make_sink
from stateflow.spark.task.failures import translated
from stateflow.testing.conformance import ODD_VALUES
from tests.connectors.schema_registry import Registry, registry

NOT_HELD = ("date", "decimal(12,3)", "timestamp_ntz", "map<string, timestamp_ntz>")
MESSAGE = "'shop.orders' AS topic, 0 AS partition, 0L AS offset, TIMESTAMP'2026-01-01 00:00:00Z' AS timestamp, 0 AS timestampType"


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def topic(served: Registry) -> Any:
    return sf.kafka("shop.orders", bootstrap="broker:9092", value="protobuf", registry=served.url)


def written(served: Registry, rows: DataFrame, keys: list[str], operation: str = "") -> DataFrame:
    own, values = messages.check("the topic", topic(served), rows.schema, keys, operation)
    encoder = registered(
        topic(served), [(name, rows.schema[name].dataType.simpleString()) for name in values]
    )
    return messages.messages(rows, topic(served), own, values, operation, [], encoder)


def read_back(served: Registry, made: DataFrame, schema: str) -> list[dict[str, Any]]:
    source = topic(served).declared("orders", row_type(schema))
    frame = source.parsed(made.selectExpr("key", "value", *MESSAGE.split(", ")))
    rows: list[dict[str, Any]] = frame.orderBy("id").toArrow().to_pylist()
    return rows


def test_every_value_comes_back_as_it_was(spark: SparkSession, served: Registry) -> None:
    nested = {
        "struct<at: timestamp, part: struct<x: int, raw: binary>>": (
            {"at": None, "part": {"x": None, "raw": b""}},
            {"at": ODD_VALUES["timestamp"][0], "part": None},
        ),
        "array<struct<x: int>>": ([{"x": None}, {"x": 1}], []),
        "map<bigint, struct<x: int>>": ({1: {"x": 2}, 2: {"x": None}}, {}),
        "map<boolean, timestamp>": ({True: ODD_VALUES["timestamp"][1]}, {}),
    }
    # A row class has no shorter int than int, and lists with nulls are not held.
    left = {*NOT_HELD, "tinyint", "smallint", "array<string>", "map<string, int>", "array<timestamp>"}
    odd = {k: pair for k, pair in {**ODD_VALUES, **nested}.items() if k not in left and "day: date" not in k}
    schema = ", ".join(["id long", *(f"c{k} {kind}" for k, kind in enumerate(odd))])
    values = [(n + 1, *(pair[n] for pair in odd.values())) for n in (0, 1)]
    values.append((3, *(None if k[:3] not in ("arr", "map") else type(pair[0])() for k, pair in odd.items())))
    rows = spark.createDataFrame(values, schema)
    made = written(served, rows, ["id"])
    assert str(read_back(served, made, schema)) == str(rows.orderBy("id").toArrow().to_pylist())
    assert served.subjects == {"shop.orders-value": [1]}
    assert served.asked[0] == "/subjects/shop.orders-value/versions/latest?format=serialized"
    # A row that deletes its key has no value.
    op = spark.createDataFrame([(1, "delete"), (2, "upsert")], "id long, op string")
    found = {bytes(row["key"]): row["value"] for row in written(served, op, ["id"], "op").collect()}
    assert found[b'{"id":1}'] is None
    assert found[b'{"id":2}'] is not None


def test_a_list_that_is_null_is_written_as_an_empty_one(spark: SparkSession, served: Registry) -> None:
    schema = "id long, tags array<string>, counts map<string, int>"
    rows = spark.createDataFrame([(1, None, None)], schema)
    assert read_back(served, written(served, rows, ["id"]), schema) == [{"id": 1, "tags": [], "counts": []}]


@pytest.mark.parametrize(
    ("schema", "row", "instead"),
    [
        ("id long, v array<string>", (1, ["a", None]), "filter(v, each -> each is not null)"),
        ("id long, v map<string, int>", (1, {"a": None}), "map_filter(v, (key, each) -> each is not null)"),
    ],
)
def test_a_null_in_a_list_is_refused_with_an_advice_that_helps(
    schema: str, row: Any, instead: str, spark: SparkSession, served: Registry
) -> None:
    rows = spark.createDataFrame([row], schema)
    with pytest.raises(Exception, match="stateflow") as raised:
        written(served, rows, ["id"]).collect()
    problem = translated(raised.value)
    assert isinstance(problem, IncompatibleError)
    assert "column 'v' has a null in a list or map, which Protobuf does not hold" in str(problem)
    assert instead in str(problem)
    assert len(written(served, rows.selectExpr("id", f"{instead} as v"), ["id"]).collect()) == 1


def numbers(file: Any) -> dict[str, int]:
    return {field.name: field.number for field in file.message_type[0].field}


def test_a_column_keeps_its_number_whatever_comes_and_goes() -> None:
    first = file_for(
        "orders", [("id", "bigint"), ("at", "timestamp"), ("lines", "array<struct<sku:string,n:int>>")]
    )
    assert numbers(first) == {"id": 1, "at": 2, "lines": 3}
    lines = "array<struct<price:double,n:int>>"
    second = file_for("orders", [("note", "string"), ("lines", lines), ("id", "bigint")], first)
    assert numbers(second) == {"id": 1, "at": 2, "lines": 3, "note": 4}
    nested = {field.name: field.number for field in second.message_type[0].nested_type[0].field}
    assert nested == {"sku": 1, "n": 2, "price": 3}
    third = file_for("orders", [("at", "timestamp"), ("more", "map<string,int>"), ("id", "bigint")], second)
    assert numbers(third) == {"id": 1, "at": 2, "lines": 3, "note": 4, "more": 5}
    # The same columns are the same schema, and it is one that Protobuf takes.
    columns = [("more", "map<string,int>"), ("id", "bigint")]
    again = file_for("orders", columns, third)
    assert again == file_for("orders", columns, again) == third
    for each in (first, second, third):
        parsed = ProtobufFile(each.SerializeToString()).message("orders")
        assert all(field.has_presence or field.is_repeated for field in parsed.fields)
    # Numbers that Protobuf keeps for itself are passed over.
    far = FileDescriptorProto()
    far.CopyFrom(first)
    far.message_type[0].field[0].number = 18999
    assert numbers(file_for("orders", [("id", "bigint"), ("a", "int")], far))["a"] == 20000


def test_names_do_not_meet() -> None:
    columns = [
        ("a", "struct<x:int>"),
        ("ARow", "int"),
        ("_a", "int"),
        ("b", "int"),
        ("_b", "map<string,struct<b:int>>"),
    ]
    for name in (name_of("9-shop.orders"), "a"):
        made = file_for(name, columns)
        assert ProtobufFile(made.SerializeToString()).messages == [name]
    assert name_of("9-shop.orders") == "_9_shop_orders"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        *((f"id long, v {kind}", "which Protobuf does not hold") for kind in NOT_HELD),
        ("id long, v map<double, int>", "column 'v' is map<double,int>, which Protobuf does not hold"),
        ("id long, v array<array<int>>", "column 'v' is array<int>, which Protobuf does not hold"),
        (
            "id long, v struct<w: array<interval day>>",
            "column 'v' is interval day, which Protobuf does not hold",
        ),
        ("id long, `größe` int", "column 'größe' has a name that Protobuf does not take"),
        ("user_id long, userId int", "the names 'user_id' and 'userId' are one name in Protobuf's JSON"),
        ("id long, v struct<a_b: int, aB: int>", "the names 'a_b' and 'aB' in column 'v' are one name"),
    ],
)
def test_columns_that_protobuf_does_not_hold_are_refused(
    schema: str, said: str, spark: SparkSession, served: Registry
) -> None:
    with pytest.raises(IncompatibleError, match=said):
        make_sink("out", "append", topic(served)).open(spark, spark.createDataFrame([], schema).schema)
    assert served.schemas == {}


def test_a_registry_that_is_down_or_refuses_is_told_before_a_broker_is_asked(
    spark: SparkSession, served: Registry
) -> None:
    registered(topic(served), [("id", "bigint")])
    other = spark.createDataFrame([], "id string").schema
    with pytest.raises(
        IncompatibleError, match=r"refuses the schema of the columns under /subjects/shop.orders-value"
    ):
        make_sink("out", "append", topic(served)).open(spark, other)
    served.under("shop.orders-value", 7, {"type": "record", "name": "Order", "fields": []})
    protobuf_values._registered.cache_clear()
    with pytest.raises(
        UsageError, match=r"is Avro, and the topic is read or written as Protobuf: say value='avro'"
    ):
        make_sink("out", "append", topic(served)).open(spark, other)
    down = sf.kafka("orders", bootstrap="broker:9092", value="protobuf", registry="http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"the schema registry http://127.0.0.1:9 does not answer"):
        make_sink("out", "append", down).open(spark, other)

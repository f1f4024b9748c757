"""Rows as values of Protobuf: what the source of topics reads back, what numbers columns have, and what is refused before a row is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.connectors import IncompatibleError, UnavailableError, UsageError, arrow_type
from stateflow.connectors.kafka import messages, protobuf_values
from stateflow.connectors.kafka.columns import MADE, MESSAGE, PARSED, REASON
from stateflow.connectors.kafka.protobuf import ProtobufFile
from stateflow.connectors.kafka.protobuf_schema import file_for, name_of
from stateflow.connectors.kafka.protobuf_values import registered
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.failures import translated
from stateflow.testing.conformance import ODD_VALUES
from stateflow.testing.sink_log import make_sink
from tests.connectors.schema_registry import Registry, registry
from tests.refusals.refusal import refused

NOT_HELD = ("date", "decimal(12,3)", "timestamp_ntz", "map<string, timestamp_ntz>")


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def topic(served: Registry) -> Any:
    return sf.kafka("shop.orders", bootstrap="broker:9092", value="protobuf", registry=served.url)


def written(served: Registry, schema: str, rows: list[tuple[Any, ...]]) -> list[bytes]:
    columns = [(field.name, field.type) for field in row_type(schema).fields]
    types = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
    batch = pa.RecordBatch.from_pylist(
        [{name: value for (name, _), value in zip(columns, row, strict=True)} for row in rows], types
    )
    (made,) = registered(topic(served), columns)([batch])
    values: list[bytes] = made.column(MADE).to_pylist()
    return values


def read_back(served: Registry, values: list[bytes], schema: str) -> tuple[list[Any], list[str | None]]:
    decoder = topic(served).declared("orders", row_type(schema))._decoder()
    messages = pa.array([{"value": value} for value in values], pa.struct([("value", pa.binary())]))
    (batch,) = decoder([pa.RecordBatch.from_arrays([messages], [MESSAGE])])
    return batch.column(PARSED).to_pylist(), batch.column(REASON).to_pylist()


def test_every_value_comes_back_as_it_was(served: Registry) -> None:
    nested = {
        "struct<at: timestamp, part: struct<x: int, raw: binary>>": (
            {"at": None, "part": {"x": None, "raw": b""}},
            {"at": ODD_VALUES["timestamp"][0], "part": None},
        ),
        "struct<x: int>": ({"x": None}, {"x": 0}),
        "array<struct<x: int>>": ([{"x": None}, {"x": 1}], []),
        "map<bigint, struct<x: int>>": ([(1, {"x": 2}), (2, {"x": None})], []),
        "map<boolean, timestamp>": ([(True, ODD_VALUES["timestamp"][1])], []),
        "array<timestamp>": ([ODD_VALUES["timestamp"][0]], []),
    }
    # A row class has no shorter int than int, and lists with nulls are not held.
    left = {*NOT_HELD, "tinyint", "smallint", "array<string>", "map<string, int>"}
    odd = {k: pair for k, pair in {**ODD_VALUES, **nested}.items() if k not in left and "day: date" not in k}
    names = [f"c{k}" for k in range(len(odd))]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, odd, strict=True))
    values = [tuple(pair[n] for pair in odd.values()) for n in (0, 1)]
    values.append(tuple([] if kind[:3] in ("arr", "map") else None for kind in odd))
    found, reasons = read_back(served, written(served, schema, values), schema)
    assert reasons == [None] * 3
    # A nan is no nan, and Arrow has a zone of its own.
    said = [str(row).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") for row in found]
    assert said == [str(dict(zip(names, row, strict=True))) for row in values]
    assert served.subjects == {"shop.orders-value": [1]}
    assert served.asked[0] == "/subjects/shop.orders-value/versions/latest?format=serialized"
    # A list that is null is written as an empty one.
    lists = "tags array<string>, counts map<string, int>"
    served.subjects.clear()
    assert read_back(served, written(served, lists, [(None, None)]), lists) == (
        [{"tags": [], "counts": []}],
        [None],
    )


@pytest.mark.slow
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
    with pytest.raises(RuntimeError) as raised:
        written(served, schema, [row])
    problem = translated(raised.value)
    assert isinstance(problem, IncompatibleError)
    assert "column 'v' has a null in a list or map, which Protobuf does not hold" in str(problem)
    assert instead in str(problem)
    frame = spark.createDataFrame([row], schema).selectExpr("id", f"{instead} as v")
    columns = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    made = messages.messages(
        frame, topic(served), ["id"], ["id", "v"], "", [], registered(topic(served), columns)
    )
    assert len(made.collect()) == 1


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
        ("b_b", "map<string,struct<b:int>>"),
        ("BBRow", "int"),
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
    with refused(IncompatibleError, "/subjects/shop.orders-value", "refuses the schema"):
        make_sink("out", "append", topic(served)).open(spark, other)
    served.under("shop.orders-value", 7, {"type": "record", "name": "Order", "fields": []})
    protobuf_values._registered.cache_clear()
    with refused(UsageError, "is Avro", "as Protobuf", "value='avro'"):
        make_sink("out", "append", topic(served)).open(spark, other)
    down = sf.kafka("orders", bootstrap="broker:9092", value="protobuf", registry="http://127.0.0.1:9")
    with refused(UnavailableError, "http://127.0.0.1:9", "does not answer"):
        make_sink("out", "append", down).open(spark, other)

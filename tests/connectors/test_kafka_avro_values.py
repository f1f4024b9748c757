"""Rows as values of Avro: what the source of topics reads back, and what is refused before a row is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import IncompatibleError, UnavailableError
from stateflow.connectors.kafka import messages
from stateflow.connectors.kafka.avro_values import registered, schema_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.testing.conformance import ODD_VALUES
from stateflow.testing.sink_log import make_sink
from tests.connectors.schema_registry import Registry, registry
from tests.refusals.refusal import refused

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def topic(served: Registry) -> Any:
    return sf.kafka("shop.orders", bootstrap="broker:9092", value="avro", registry=served.url)


def written(served: Registry, rows: DataFrame, keys: list[str], operation: str = "") -> DataFrame:
    own, values = messages.check("the topic", topic(served), rows.schema, keys, operation)
    avro = registered(topic(served), [(name, rows.schema[name].dataType.simpleString()) for name in values])
    return messages.messages(rows, topic(served), own, values, operation, [], avro)


@pytest.mark.slow
def test_every_value_comes_back_as_it_was(spark: SparkSession, served: Registry) -> None:
    exact = {"decimal(38,9)": (Decimal("12345678901234567890123456789.123456789"), Decimal("-0.000000001"))}
    # A row class has no shorter int than int.
    odd = {
        kind: pair for kind, pair in {**ODD_VALUES, **exact}.items() if kind not in ("tinyint", "smallint")
    }
    schema = ", ".join(["id long", *(f"c{k} {kind}" for k, kind in enumerate(odd))])
    values = [(0, *([None] * len(odd))), *((n + 1, *(pair[n] for pair in odd.values())) for n in (0, 1))]
    rows = spark.createDataFrame(values, schema)
    made = written(served, rows, ["id"])
    fields = "'shop.orders' AS topic, 0 AS partition, 0L AS offset, TIMESTAMP'2026-01-01 00:00:00Z' AS timestamp, 0 AS timestampType"
    read = (
        topic(served)
        .declared("orders", row_type(schema))
        .parsed(made.selectExpr("key", "value", *fields.split(", ")))
    )
    assert str(read.orderBy("id").collect()) == str(rows.orderBy("id").collect())
    assert served.subjects == {"shop.orders-value": [1]}
    # A row that deletes its key has no value.
    op = spark.createDataFrame([(1, "delete"), (2, "upsert")], "id long, op string")
    found = {bytes(row["key"]): row["value"] for row in written(served, op, ["id"], "op").collect()}
    assert found[b'{"id":1}'] is None
    assert found[b'{"id":2}'] is not None


def test_a_schema_has_names_that_avro_takes_and_no_two_records_of_one_name() -> None:
    kind = "array<struct<x:struct<y:int>>>"
    made = schema_of("9-shop.orders", [("a", kind), ("b", kind)])
    names: list[str] = []

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            names.extend([node["name"]] if node.get("type") == "record" else [])
            for each in node.values():
                collect(each)
        elif isinstance(node, list):
            for each in node:
                collect(each)

    collect(made)
    assert names[0] == "_9_shop_orders"
    assert len(names) == len(set(names)) == 5


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id long, v map<int, int>", "column 'v' is map<int,int>, which Avro does not hold"),
        ("id long, v struct<w: array<interval day>>", "column 'v' is interval day, which Avro does not hold"),
        ("id long, `größe` int", "column 'größe' has a name that Avro does not take"),
    ],
)
def test_columns_that_avro_does_not_hold_are_refused(
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
    with refused(IncompatibleError, "/subjects/shop.orders-value/versions", "TYPE_MISMATCH of id"):
        make_sink("out", "append", topic(served)).open(spark, other)
    down = sf.kafka("orders", bootstrap="broker:9092", value="avro", registry="http://127.0.0.1:9")
    with refused(UnavailableError, "http://127.0.0.1:9", "does not answer"):
        make_sink("out", "append", down).open(spark, other)

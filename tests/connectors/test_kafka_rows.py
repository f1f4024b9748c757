"""Messages of Kafka as rows: static frames that look like Spark's source, and no broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import IncompatibleError, UsageError
from stateflow.connectors.kafka.source import KafkaMessages
from stateflow.connectors.kafka.topic import KafkaTopic
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.failures import translated
from tests.connectors.schema_registry import double, file, framed, framed_message, number, registry, value
from tests.refusals.refusal import refused

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MESSAGE = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)


@dataclass
class Order:
    user: int
    amount: Decimal = Decimal(0)
    note: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Broken(Order):
    broken: str | None = None
    kafka_value: bytes | None = None
    kafka_topic: str = ""
    kafka_partition: int = 0
    kafka_offset: int = 0


@dataclass
class Header:
    key: str
    value: bytes | None


@dataclass
class Line:
    sku: str
    count: int | None


@dataclass
class Cart:
    user: int | None
    lines: list[Line]
    at: datetime | None
    kafka_offset: int
    broken: str | None = None


@dataclass
class All:
    kafka_value: bytes
    kafka_headers: list[Header]


def source(rows: Any, **given: Any) -> KafkaMessages:
    topic: KafkaTopic = sf.kafka("orders", bootstrap="broker:9092", **given)
    return topic.declared("orders", row_type(rows) if rows is not None else None)


def messages(
    spark: SparkSession, *values: bytes | None, key: bytes | None = None, headers: Any = None
) -> DataFrame:
    rows = [(key, value, "orders", 3, 70 + n, AT, 0, headers) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, MESSAGE)


def read(spark: SparkSession, of: KafkaMessages, *values: bytes | None, **given: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = of.parsed(messages(spark, *values, **given)).toArrow().to_pylist()
    return found


def refusal(spark: SparkSession, of: KafkaMessages, *values: bytes | None, **given: Any) -> str:
    with pytest.raises(PySparkException) as raised:
        read(spark, of, *values, **given)
    problem = translated(raised.value)
    assert isinstance(problem, IncompatibleError), problem
    return str(problem)


def test_objects_of_json_are_rows_and_what_a_row_class_does_not_ask_for_is_left_out(
    spark: SparkSession,
) -> None:
    found = read(
        spark,
        source(Order),
        b'{"user": 7, "amount": 1.50, "tags": ["a"], "more": {"x": 1}}',
        b' \n{"user": 8}',
    )
    assert found == [
        {"user": 7, "amount": Decimal("1.5"), "note": None, "tags": ["a"]},
        {"user": 8, "amount": None, "note": None, "tags": None},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            b"no json",
            "it is no object of JSON: no json; correct what writes the topic, and let such rows come",
        ),
        (b'[{"user": 1}, {"user": 2}]', "it is no object of JSON"),
        (b"", "it is no object of JSON"),
        (b'{"user": "x"}', 'a value in it is not of the declared type: {"user": "x"}'),
        (b'{"user": 1.5}', "a value in it is not of the declared type"),
        (b'{"user": 1', "it is no JSON"),
        (b'{"user": 1, "amount": "1,5"}', "the value 1,5 for 'amount', a decimal"),
        (b'{"user": 1, "note": "\xff"}', "it is no text in UTF-8"),
        (
            None,
            "it has no value, as a message that deletes a key: a field kafka_deleted: bool lets such messages in",
        ),
    ],
)
def test_a_message_that_does_not_fit_fails_the_batch_with_its_place(
    spark: SparkSession, value: bytes | None, reason: str
) -> None:
    said = refusal(spark, source(Order), b'{"user": 1}', value)
    assert (
        "the message at offset 71 of topic orders, partition 3, has a row that does not fit the row class"
        in said
    )
    assert reason in said
    # Spark leaves out columns that nobody reads; the check stays.
    with pytest.raises(PySparkException):
        source(Order).parsed(messages(spark, value)).select(
            "user" if b"1,5" not in (value or b"") else "amount"
        ).collect()


def test_such_messages_come_in_a_column_of_their_own_with_their_place(spark: SparkSession) -> None:
    of = source(Broken, options={"columnNameOfCorruptRecord": "broken"})
    values = (b'{"user": 1}', b"no json", b'{"user": 2, "amount": "1,5"}', b"[1]", None)
    found = read(spark, of, *values)
    assert [row["broken"] for row in found] == [None, "no json", '{"user": 2, "amount": "1,5"}', "[1]", ""]
    assert [row["user"] for row in found] == [1, None, 2, None, None]
    assert [row["kafka_offset"] for row in found] == [70, 71, 72, 73, 74]
    assert found[1]["kafka_value"] == b"no json"
    assert {(row["kafka_topic"], row["kafka_partition"]) for row in found} == {("orders", 3)}


def test_what_is_no_text_comes_there_in_base64_so_that_two_messages_stay_two(spark: SparkSession) -> None:
    of = source(Broken, options={"columnNameOfCorruptRecord": "broken"})
    values = (b"\xff\xfe", b'{"user": 1, "note": "\xff"}', b"//4=", b"base64://4=")
    broken = [row["broken"] for row in read(spark, of, *values)]
    assert broken == [
        "base64://4=",
        "base64:eyJ1c2VyIjogMSwgIm5vdGUiOiAi/yJ9",
        "//4=",
        "base64:YmFzZTY0Oi8vND0=",
    ]


def test_a_header_of_text_that_is_none_can_be_read_all_the_same(spark: SparkSession) -> None:
    @dataclass
    class Traced:
        user: int
        kafka_headers: dict[str, str]

    [found] = read(spark, source(Traced), b'{"user": 1}', headers=[("trace", b"a\xff")])
    assert found["kafka_headers"] == [("trace", "a\ufffd")]


def test_the_modes_of_spark_do_what_they_do_for_files(spark: SparkSession) -> None:
    values = (b'{"user": 1}', b"no json", b'{"user": 2, "amount": "1,5"}')
    dropped = read(spark, source(Order, options={"mode": "DROPMALFORMED"}), *values)
    assert [row["user"] for row in dropped] == [1]
    nulls = read(spark, source(Order, options={"mode": "PERMISSIVE"}), *values)
    assert [(row["user"], row["amount"]) for row in nulls] == [(1, None), (None, None), (2, None)]


def test_what_a_message_is_beside_its_value_comes_in_fields_of_these_names(spark: SparkSession) -> None:
    @dataclass
    class Change:
        user: int | None
        topic: str | None
        kafka_key: str | None
        kafka_timestamp: datetime
        kafka_deleted: bool
        kafka_headers: dict[str, str]

    of = source(Change)
    headers = [("trace", b"1"), ("job", b"x"), ("trace", b"2")]
    found = read(spark, of, b'{"user": 1, "topic": "mine"}', None, key=b"k", headers=headers)
    assert found[0] == {
        "user": 1, "topic": "mine", "kafka_key": "k", "kafka_timestamp": AT, "kafka_deleted": False,
        "kafka_headers": [("job", "x"), ("trace", "2")],
    }  # fmt: skip
    assert found[1]["kafka_deleted"] is True
    assert found[1]["user"] is None
    assert read(spark, of, None)[0]["kafka_headers"] == []
    every = read(spark, source(All, value="bytes"), b"v", headers=headers)[0]
    assert every["kafka_value"] == b"v"
    assert [(each["key"], each["value"]) for each in every["kafka_headers"]] == headers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hint", "given", "key", "value"),
    [
        (bytes, None, b"\xff", b"\xff"),
        (str, None, b"k", "k"),
        (int, None, b"12", 12),
        (str, "json", b'"k"', "k"),
        (date, "json", b'"2026-01-02"', date(2026, 1, 2)),
        (int, None, None, None),
        (Order, None, b'{"user": 3}', {"user": 3, "amount": None, "note": None, "tags": None}),
    ],
)
def test_a_key_is_read_as_its_field_says(
    spark: SparkSession, hint: Any, given: str | None, key: bytes | None, value: Any
) -> None:
    rows = dataclass(type("Keyed", (), {"__annotations__": {"user": int, "kafka_key": hint}}))
    assert read(spark, source(rows, key=given), b'{"user": 1}', key=key) == [{"user": 1, "kafka_key": value}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hint", "key"),
    [
        (int, b"x"),
        (int, b"1.5"),
        (int, b'1,"k":2x'),
        (int, b'1,"k":2'),
        (int, b"1}"),
        (int, b"1]"),
        (int, b"1],[2"),
        (str, b"\xff"),
        (date, b'"noon"'),
    ],
)
def test_a_key_that_does_not_fit_fails_the_batch(spark: SparkSession, hint: Any, key: bytes) -> None:
    rows = dataclass(type("Keyed", (), {"__annotations__": {"user": int, "kafka_key": hint}}))
    assert "at offset 70" in refusal(spark, source(rows), b'{"user": 1}', key=key)


def test_a_bad_message_keeps_the_key_that_fits_and_is_told_of_one_that_does_not(spark: SparkSession) -> None:
    @dataclass
    class Named:
        user: int | None
        kafka_key: str | None
        broken: str | None = None

    @dataclass
    class Numbered(Named):
        kafka_key: int | None  # type: ignore[assignment]

    kept = {"options": {"columnNameOfCorruptRecord": "broken"}}
    bad, good = b'{"user": "x"}', b'{"user": 1}'
    assert read(spark, source(Named, **kept), bad, good, None, key=b"k-1") == [
        {"user": None, "kafka_key": "k-1", "broken": '{"user": "x"}'},
        {"user": 1, "kafka_key": "k-1", "broken": None},
        {"user": None, "kafka_key": "k-1", "broken": ""},
    ]
    assert read(spark, source(Numbered, **kept), bad, good, key=b"12") == [
        {"user": None, "kafka_key": 12, "broken": '{"user": "x"}'},
        {"user": 1, "kafka_key": 12, "broken": None},
    ]
    for row in read(spark, source(Numbered, **kept), good, key=b'{"id":101}'):
        assert (row["user"], row["kafka_key"]) == (None, None)
        assert row["broken"] == 'its key {"id":101} is no JSON of the declared type: {"user": 1}'
    (row,) = read(spark, source(Named, **kept), good, key=b"\xff")
    assert (row["kafka_key"], row["broken"]) == (None, 'its key is no text in UTF-8: {"user": 1}')


def test_texts_and_bytes_are_one_field(spark: SparkSession) -> None:
    assert read(spark, source(None, value="string"), b"a", None) == [{"value": "a"}, {"value": None}]
    assert read(spark, source(None, value="bytes"), b"\xff") == [{"value": b"\xff"}]
    assert "it is no text in UTF-8" in refusal(spark, source(None, value="string"), b"\xff")


@dataclass
class Renamed:
    client: Annotated[int, sf.field(aliases=["user"])]


@dataclass
class Inside:
    by: Renamed | None
    all: list[Renamed]


def test_a_field_is_found_by_its_former_name(spark: SparkSession) -> None:
    assert read(spark, source(Renamed), b'{"user": 1}', b'{"client": 2}') == [{"client": 1}, {"client": 2}]

    old, new = b'{"by": {"user": 1}, "all": [{"client": 2}]}', b'{"by": null, "all": [{"user": 3}]}'
    assert read(spark, source(Inside), old, new) == [
        {"by": {"client": 1}, "all": [{"client": 2}]},
        {"by": None, "all": [{"client": 3}]},
    ]


def test_values_of_avro_are_rows_or_fail_as_those_of_json_do(spark: SparkSession) -> None:
    @dataclass
    class Paid:
        user: int
        amount: float | None
        kafka_offset: int

    @dataclass
    class PaidOrBroken(Paid):
        user: int | None
        broken: str | None

    with registry() as served:
        fields = [{"name": "user", "type": "long"}, {"name": "amount", "type": ["null", "double"]}]
        served.schemas[1] = {"type": "record", "name": "Paid", "fields": fields}
        served.schemas[2] = {"type": "record", "name": "Paid", "fields": fields[:1]}
        given = {"value": "avro", "registry": served.url}
        first, second = framed(1, number(7) + number(1) + double(2.5)), framed(2, number(8))
        assert read(spark, source(Paid, **given), first, second) == [
            {"user": 7, "amount": 2.5, "kafka_offset": 70},
            {"user": 8, "amount": None, "kafka_offset": 71},
        ]
        said = refusal(spark, source(Paid, **given), first, b"no avro")
        assert "the message at offset 71 of topic orders" in said
        assert "it does not begin with the id of a schema" in said
        assert "it has no value" in refusal(spark, source(Paid, **given), None)
        kept = source(PaidOrBroken, options={"columnNameOfCorruptRecord": "broken"}, **given)
        found = read(spark, kept, first, b"no avro")
        assert [(row["user"], row["broken"]) for row in found] == [(7, None), (None, "bm8gYXZybw==")]


def test_a_message_of_protobuf_is_a_row_and_one_that_does_not_fit_is_kept_as_it_was_sent(
    spark: SparkSession,
) -> None:
    fields = (
        'field { name: "user" number: 1 type: TYPE_INT64 } '
        'field { name: "lines" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Line" } '
        'field { name: "at" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }'
    )
    line = 'field { name: "sku" number: 1 type: TYPE_STRING } field { name: "count" number: 2 type: TYPE_UINT32 }'
    of = file(
        f'message_type {{ name: "Cart" {fields} }} message_type {{ name: "Line" {line} }}',
        "google/protobuf/timestamp.proto",
    )
    with registry() as served:
        served.under("orders-value", 1, of)
        given = {"value": "protobuf", "registry": served.url, "message": "shop.Cart"}
        at = {"seconds": int(AT.timestamp())}
        full = framed_message(
            1, value(of, "shop.Cart", user=7, lines=[{"sku": "a", "count": 2}, {"sku": "b"}], at=at)
        )
        bare = framed_message(1, value(of, "shop.Cart"))
        other = framed_message(1, value(of, "shop.Line", sku="a"), 1)
        lines = [{"sku": "a", "count": 2}, {"sku": "b", "count": 0}]
        rows = [
            {"user": 7, "lines": lines, "at": AT, "kafka_offset": 70, "broken": None},
            {"user": 0, "lines": [], "at": None, "kafka_offset": 71, "broken": None},
        ]
        assert read(spark, source(Cart, **given), full, bare) == rows
        said = refusal(spark, source(Cart, **given), full, other)
        assert "the message at offset 71 of topic orders" in said
        assert "it is a shop.Line, and the source reads shop.Cart" in said
        kept = source(Cart, options={"columnNameOfCorruptRecord": "broken"}, **given)
        found = read(spark, kept, full, other, b'{"user": 1}')
        assert [row["user"] for row in found] == [7, None, None]
        assert [row["broken"] for row in found][1:] == ["AAAAAAECAgoBYQ==", "eyJ1c2VyIjogMX0="]


def of_fields(**fields: Any) -> Any:
    return dataclass(type("Rows", (), {"__annotations__": fields}))


@pytest.mark.parametrize(
    ("rows", "given", "named"),
    [
        (None, {}, ("Kafka topic orders", "a row class", "flow.source('orders'")),
        (of_fields(kafka_ofset=int), {}, ("'kafka_ofset'", "Rows", "did you mean kafka_offset")),
        (of_fields(kafka_offset=str), {}, ("kafka_offset of Rows is a string", "int")),
        (of_fields(a=int, b=str), {"value": "string"}, ("one field of str", "a (bigint), b (string)")),
        (of_fields(a=int), {"key": "string"}, ("key='string'", "Rows has no field kafka_key")),
        (of_fields(a=int, kafka_key=int), {"key": "string"}, ("kafka_key of Rows is a bigint", "'string' is str")),
        (of_fields(a=int), {"options": {"mod": "x"}}, ("no option 'mod'",)),
        (of_fields(a=str), {"value": "string", "options": {"mode": "FAILFAST"}}, ("no option 'mode'",)),
        (of_fields(a=int), {"per_batch": 5, "options": {"maxOffsetsPerTrigger": 5}}, ("per_batch", "maxOffsetsPerTrigger", "the same")),
        (of_fields(a=int), {"options": {"minOffsetsPerTrigger": 5}}, ("minOffsetsPerTrigger", "leave it out", "trigger='1 minute'")),
        (of_fields(a=int), {"options": {"columnNameOfCorruptRecord": "broken"}}, ("Rows", "a field broken: str | None = None")),
    ],
)  # fmt: skip
def test_a_row_class_that_no_message_has_is_refused_before_spark_is_there(
    rows: Any, given: dict[str, Any], named: tuple[str, ...]
) -> None:
    with refused(UsageError, *named):
        source(rows, **given)


def test_the_time_of_a_message_is_declared_where_it_is_the_event_time() -> None:
    @dataclass
    class Timeless:
        user: int

    @dataclass
    class Timed(Timeless):
        kafka_timestamp: datetime

    def built(rows: Any) -> None:
        @sf.pipeline("shop")
        def shop(flow: sf.Flow) -> None:
            topic = sf.kafka("orders", bootstrap="broker:9092")
            orders = flow.source("orders", topic, rows, event_time="kafka_timestamp", watermark="1 minute")
            orders.collect("out", sf.memory("out"))

        shop.build()

    with refused(UsageError, "Timeless", "no event-time column", "kafka_timestamp: datetime"):
        built(Timeless)
    built(Timed)


def test_a_pipeline_does_not_read_the_topic_that_it_writes() -> None:
    of = source(Order)
    assert of.reads(sf.kafka("orders", bootstrap="BROKER:9092").place)
    assert not of.reads(sf.kafka("returns", bootstrap="broker:9092").place)

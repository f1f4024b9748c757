"""Values of Avro: decoded by the schema of their writer, which a registry or a file has."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.connectors import IncompatibleError, NotFoundError, UnavailableError, UsageError
from stateflow.connectors.kafka.avro import AvroMisfit, AvroSchema
from stateflow.connectors.kafka.avro_rows import AvroRows
from stateflow.connectors.kafka.columns import MESSAGE, PARSED, REASON
from stateflow.connectors.kafka.registry import SchemaRegistry
from stateflow.spark.task.failures import translated
from tests.connectors.schema_registry import double, framed, number, registry, text
from tests.one_answer import answering
from tests.refusals.refusal import refused


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields]}


OLD = record(("user", "int"), ("amount", "double"))
NEW = record(("amount", ["null", "double"]), ("user", "long"), ("note", ["null", "string"]))
COLUMNS = {"user": "bigint", "amount": "double", "note": "string"}
WANTED = (("user",), ("amount",))


def rows(of: AvroRows, *values: bytes | None) -> list[tuple[Any, str | None]]:
    messages = pa.array(
        [{"value": value, "topic": "orders"} for value in values],
        pa.struct([("value", pa.binary()), ("topic", pa.string())]),
    )
    (batch,) = of([pa.RecordBatch.from_arrays([messages], [MESSAGE])])
    assert batch.schema.names == [MESSAGE, PARSED, REASON]
    return list(zip(batch.column(PARSED).to_pylist(), batch.column(REASON).to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        ("boolean", b"\1", True),
        ("int", number(-1), -1),
        ("long", number(2**40), 2**40),
        ("long", number(-(2**63)), -(2**63)),
        ("double", double(1.5), 1.5),
        ({"type": "float"}, b"\0\0\xc0\x3f", 1.5),
        ("string", text("Ä"), "Ä"),
        ("bytes", text(b"\xff"), b"\xff"),
        (["null", "int"], number(0), None),
        (["null", "int"], number(1) + number(7), 7),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(1), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "array", "items": "int"}, number(2) + number(1) + number(2) + b"\0", [1, 2]),
        # A block whose count is negative says its size, too.
        ({"type": "array", "items": "int"}, number(-1) + number(1) + number(5) + b"\0", [5]),
        ({"type": "map", "values": "int"}, number(1) + text("k") + number(3) + b"\0", {"k": 3}),
        ({"type": "int", "logicalType": "date"}, number(20454), date(2026, 1, 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(1500), datetime(1970, 1, 1, 0, 0, 1, 500000, UTC)),
        ({"type": "long", "logicalType": "timestamp-micros"}, number(-1), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, text(b"\xff\x38"), Decimal("-2.00")),
        (OLD, number(7) + double(2.5), {"user": 7, "amount": 2.5}),
        (
            {"type": "record", "name": "n.List", "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "List"]}]},
            number(1) + number(1) + number(2) + number(0),
            {"v": 1, "next": {"v": 2, "next": None}},
        ),
    ],
)  # fmt: skip
def test_a_value_is_decoded_by_its_schema(schema: Any, data: bytes, value: Any) -> None:
    assert AvroSchema(json.dumps(schema)).decode(data) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (number(7), "not of this schema"),
        (number(7) + double(1.0) + b"\0", "behind the end of the value"),
        (b"", "not of this schema"),
    ],
)
def test_bytes_of_another_schema_are_told(data: bytes, reason: str) -> None:
    with refused(AvroMisfit, reason):
        AvroSchema(json.dumps(OLD)).decode(data)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}


@pytest.mark.parametrize(
    ("schema", "columns", "named"),
    [
        (record(("at", "long")), {"at": "timestamp"}, ("'at' is a long", "a timestamp in the row class")),
        (record(("user", "long")), {"user": "int"}, ("'user' is a long",)),
        (record(("user", ["null", "string"])), {"user": "bigint"}, ("'user' is a string",)),
        (record(("user", "double")), {"user": "bigint"}, ("'user' is a double",)),
        (
            record(("tags", {"type": "array", "items": "int"})),
            {"tags": "array<string>"},
            ("'tags' is an int",),
        ),
        (record(("a", DECIMAL)), {"a": "decimal(10,2)"}, ("'a' is a decimal(20,4)",)),
        ("int", {"a": "int"}, ("its schema is no record",)),
        (record(("usr", "long")), {"user": "bigint"}, ("no 'user'", "it has usr")),
    ],
)
def test_a_schema_that_does_not_fit_the_row_class_is_told_before_a_value_is_cut(
    schema: Any, columns: dict[str, str], named: tuple[str, ...]
) -> None:
    with refused(AvroMisfit, *named):
        AvroSchema(json.dumps(schema)).require(columns, [(name,) for name in columns])


def test_a_value_that_its_own_schema_has_no_room_for_makes_its_message_a_bad_one() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    schema = record(("id", "int"), ("price", price), ("parts", {"type": "array", "items": "int"}))
    columns = {"id": "int", "price": "decimal(10,2)", "parts": "array<int>"}

    def message(id: int, unscaled: int, part: int = 1) -> bytes:
        whole = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
        return number(id) + number(len(whole)) + whole + number(1) + number(part) + b"\0"

    found = rows(
        AvroRows(columns, schema=json.dumps(schema)),
        *[message(n, 100 * n) for n in range(5)],
        message(5, 10**11),
        message(6, 10**10 - 1),
        message(2**31, 1),
        message(8, -(10**10)),
        message(9, 1, 2**40),
        None,
        number(1),
    )
    good = {0, 1, 2, 3, 4, 6}
    assert {n for n, (row, _) in enumerate(found) if row is not None} == good
    assert [found[n][0]["id"] for n in sorted(good)] == sorted(good)
    assert [reason for n, (_, reason) in enumerate(found) if n in good] == [None] * 6
    named = {
        5: ("'price'", "decimal(10,2)", "1000000000.00"),
        7: ("'id'", "int", "2147483648"),
        8: ("'price'", "-100000000.00"),
        9: ("'parts'", "array<int>"),
        11: ("its bytes are not of this schema",),
    }
    for n, words in named.items():
        for word in words:
            assert word in str(found[n][1]), found[n]
    assert found[10] == (None, None)


def test_each_message_is_read_by_the_schema_of_its_writer_which_is_asked_for_once() -> None:
    with registry() as served:
        served.schemas |= {3: OLD, 4: NEW, 5: record(("usr", "long"))}
        of = AvroRows(COLUMNS, WANTED, SchemaRegistry(served.url))
        old = framed(3, number(7) + double(2.5))
        new = framed(4, number(0) + number(8) + number(1) + text("x"))
        found = rows(of, old, new, None, old, framed(5, number(1)), b"no avro", framed(3, b""))
        assert found == [
            ({"user": 7, "amount": 2.5, "note": None}, None),
            ({"user": 8, "amount": None, "note": "x"}, None),
            (None, None),
            ({"user": 7, "amount": 2.5, "note": None}, None),
            (None, "its schema has no 'user'; it has usr (schema 5)"),
            (None, "it does not begin with the id of a schema, as a writer with a registry writes it"),
            (None, "its bytes are not of this schema"),
        ]
        assert served.asked == [f"/schemas/ids/{id}" for id in (3, 4, 5)]


def test_the_names_in_the_schemas_of_messages_are_known_without_their_values() -> None:
    line = record(("sku", "string"), ("next", ["null", "Order"]))
    lines = ("lines", {"type": "array", "items": ["null", {**line, "name": "Line"}]})
    whole = record(("user", "long"), lines, ("by", {"type": "map", "values": "Line"}))
    paths = {"user", "lines", "by", *(f"{at}.{name}" for at in ("lines", "by") for name in ("sku", "next"))}
    given = AvroRows({"user": "bigint"}, schema=json.dumps(whole))
    with registry() as served:
        served.under("old-value", 1, OLD)
        served.under("new-value", 2, NEW)
        of = AvroRows(COLUMNS, WANTED, SchemaRegistry(served.url))
        assert of.names([framed(1, b"")]) == {"user", "amount"}
        # Of a schema that is not there, and of what has none, nothing is known.
        assert of.names([framed(1, b""), framed(2, b""), framed(9, b""), b"none"]) == {
            "user",
            "amount",
            "note",
        }
        assert of.names([]) == frozenset()
    assert given.names([]) == paths


def test_types_in_other_subjects_are_found_and_those_that_are_missing_or_go_round_are_told() -> None:
    money = {
        "type": "record",
        "name": "Money",
        "namespace": "m",
        "fields": [{"name": "cents", "type": "long"}],
    }
    price = {
        "type": "record",
        "name": "Price",
        "namespace": "p",
        "fields": [{"name": "of", "type": "m.Money"}],
    }
    order = record(("user", "int"), ("price", "p.Price"), ("tip", "m.Money"))
    columns = {"user": "int", "price": "struct<of:struct<cents:bigint>>", "tip": "struct<cents:bigint>"}
    value = number(7) + number(250) + number(5)
    with registry() as served:
        served.under("money", 1, money)
        served.under("price", 2, price, ("m.Money", "money", 1))
        served.under("orders-value", 3, order, ("p.Price", "price", 1), ("m.Money", "money", 1))
        of = AvroRows(columns, (), SchemaRegistry(served.url))
        full = {"user": 7, "price": {"of": {"cents": 250}}, "tip": {"cents": 5}}
        assert rows(of, framed(3, value), framed(3, value)) == [(full, None)] * 2
        # Each subject is asked for once.
        assert served.asked == [
            "/schemas/ids/3",
            "/subjects/price/versions/1?deleted=true",
            "/subjects/money/versions/1?deleted=true",
        ]
        served.under("lost", 4, order, ("p.Price", "price", 2))
        served.under("round", 5, order, ("p.Price", "again", 1))
        served.under("again", 6, price, ("m.Money", "round", 1))
        said = []
        for id in (4, 5):
            with pytest.raises(RuntimeError) as raised:
                rows(of, framed(id, value))
            problem = translated(raised.value)
            assert isinstance(problem, UsageError)
            said.append(str(problem).replace(served.url, "R"))
        assert said[0] == (
            "schema 4 of the registry R refers to version 2 of subject 'price', which the registry does not have: register it there"
        )
        assert said[1] == (
            "schema 5 of the registry R refers to subjects that refer to each other (again -> round -> again), which no reader can "
            "resolve: register them without the circle"
        )
        # What the first advises helps.
        served.under("price", 7, price, ("m.Money", "money", 1))
        served.references[4].append({"name": "m.Money", "subject": "money", "version": 1})
        assert rows(of, framed(4, value)) == [(full, None)]


def test_a_registry_that_does_not_help_is_an_error_with_the_next_step() -> None:
    with registry("me:hunter2") as served:
        with refused(UsageError, "refuses the login", "schema.registry.basic.auth") as caught:
            SchemaRegistry(served.url, "me:wrong1").check()
        assert "wrong1" not in str(caught.value)
        known = SchemaRegistry(served.url, "me:hunter2")
        known.check()
        assert "hunter2" not in repr(known)
        with refused(NotFoundError, "/schemas/ids/9", "the topic's writers"):
            known.schema(9, "AVRO")
        of = AvroRows(COLUMNS, WANTED, known)
        ((row, reason),) = rows(of, framed(9, b""))
        assert row is None
        assert "has no /schemas/ids/9" in str(reason)
    with pytest.raises(UnavailableError, match="does not answer"):
        known.check()
    # A batch that cannot be read is no reason to take its messages aside.
    with pytest.raises(RuntimeError) as raised:
        rows(of, framed(10, b""))
    assert isinstance(translated(raised.value), UnavailableError)


@pytest.mark.parametrize("page", [b"<html>no</html>", b"[1]", b""])
def test_a_refusal_that_is_no_json_is_one_all_the_same(page: bytes) -> None:
    with answering(409, page) as (url, _), refused(IncompatibleError, url, "it says no more"):
        SchemaRegistry(url).register("price", "{}", "AVRO")


def test_a_login_goes_to_no_other_host() -> None:
    with (
        answering(200, b"[]") as (elsewhere, seen),
        answering(302, b"", elsewhere.replace("127.0.0.1", "localhost")) as (url, at_home),
    ):
        SchemaRegistry(url, "me:hunter2").check()
        assert seen == [None]
        assert at_home != [None]
    with answering(200, b"[]") as (elsewhere, seen), answering(302, b"", elsewhere) as (url, _):
        SchemaRegistry(url, "me:hunter2").check()
        assert seen != [None]


def test_a_file_has_the_schema_where_there_is_no_registry(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(OLD))
    of = AvroRows(COLUMNS, WANTED, schema=file.read_text())
    assert rows(of, number(7) + double(2.5)) == [({"user": 7, "amount": 2.5, "note": None}, None)]
    file.write_text('{"type": "record"')
    with pytest.raises(UsageError, match=r"the Avro schema .* cannot be read"):
        sf.kafka("a", bootstrap="b:1", value="avro", schema=str(file)).declared("a", None)

"""Values of Protobuf: decoded by the schema of their writer, which a registry, a file or a class has."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, text_format, timestamp_pb2

import stateflow as sf
from stateflow.connectors import UnavailableError, UsageError
from stateflow.connectors.kafka.columns import MESSAGE, PARSED, REASON
from stateflow.connectors.kafka.protobuf import ProtobufFile, ProtobufMisfit, misfit_of
from stateflow.connectors.kafka.protobuf_rows import ProtobufRows
from stateflow.connectors.kafka.registry import SchemaRegistry
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.failures import translated
from tests.connectors.schema_registry import Registry, file, framed_message, registry, value
from tests.refusals.refusal import refused


def field(name: str, number: int, type: str, more: str = "", label: str = "OPTIONAL") -> str:
    of = f'type: TYPE_MESSAGE type_name: "{type}"' if type.startswith(".") else f"type: TYPE_{type.upper()}"
    return f'field {{ name: "{name}" number: {number} label: LABEL_{label} {of} {more} }}'


def message(name: str, *parts: str) -> str:
    return f'message_type {{ name: "{name}" {" ".join(parts)} }}'


USER, AMOUNT = field("user", 1, "int64"), field("amount", 2, "double")
NOTE = field("note", 3, "string", "proto3_optional: true oneof_index: 0") + ' oneof_decl { name: "_note" }'
OLD = file(message("Order", USER, AMOUNT))
NEW = file(message("Order", AMOUNT.replace("2", "7", 1), USER, NOTE))
TWO = file(message("Order", USER, AMOUNT) + message("Refund", USER, AMOUNT))
COLUMNS = {"user": "bigint", "amount": "double", "note": "string"}
WANTED = (("user",), ("amount",))
ORDER = "shop.Order"

EVERYTHING = file(
    message(
        "All",
        *(
            field(name, k + 1, name)
            for k, name in enumerate(
                [
                    "double",
                    "float",
                    "int64",
                    "uint64",
                    "int32",
                    "fixed64",
                    "fixed32",
                    "bool",
                    "string",
                    "bytes",
                    "uint32",
                    "sfixed32",
                    "sfixed64",
                    "sint32",
                    "sint64",
                ]
            )
        ),
        field("status", 20, "enum", 'type_name: ".shop.All.Status"'),
        'enum_type { name: "Status" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }',
        field("at", 21, ".google.protobuf.Timestamp"),
        field("ats", 22, ".google.protobuf.Timestamp", label="REPEATED"),
        field("maybe", 23, ".google.protobuf.Int32Value"),
        field("inner", 24, ".shop.All.Inner"),
        field("inners", 25, ".shop.All.Inner", label="REPEATED"),
        f'nested_type {{ name: "Inner" {field("x", 1, "int32")} {field("next", 2, ".shop.All.Inner")} }}',
        field("numbers", 26, "int32", label="REPEATED"),
        field("prices", 27, ".shop.All.PricesEntry", label="REPEATED"),
        f'nested_type {{ name: "PricesEntry" options {{ map_entry: true }} {field("key", 1, "string")} {field("value", 2, "double")} }}',
        field("places", 28, ".shop.All.PlacesEntry", label="REPEATED"),
        f'nested_type {{ name: "PlacesEntry" options {{ map_entry: true }} {field("key", 1, "int64")} {field("value", 2, ".shop.All.Inner")} }}',
        field("card", 29, "string", "oneof_index: 0"),
        field("cash", 30, "int32", "oneof_index: 0"),
        'oneof_decl { name: "paid_by" }',
    ),
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
)
KINDS = {
    **dict.fromkeys(("double", "float"), "double"),
    **dict.fromkeys(
        ["int64", "int32", "fixed32", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"], "bigint"
    ),
    "uint64": "decimal(20,0)",
    "fixed64": "bigint",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "status": "string",
    "at": "timestamp",
    "ats": "array<timestamp>",
    "maybe": "int",
    "inner": "struct<x:int,next:struct<x:int>>",
    "inners": "array<struct<x:int>>",
    "numbers": "array<bigint>",
    "prices": "map<string,double>",
    "places": "map<bigint,struct<x:int>>",
    "card": "string",
    "cash": "int",
}


def rows(of: ProtobufRows, *values: bytes | None) -> list[tuple[Any, str | None]]:
    messages = pa.array(
        [{"value": value, "topic": "orders"} for value in values],
        pa.struct([("value", pa.binary()), ("topic", pa.string())]),
    )
    (batch,) = of([pa.RecordBatch.from_arrays([messages], [MESSAGE])])
    assert batch.schema.names == [MESSAGE, PARSED, REASON]
    return list(zip(batch.column(PARSED).to_pylist(), batch.column(REASON).to_pylist(), strict=True))


def set_of(*files: bytes) -> bytes:
    made = descriptor_pb2.FileDescriptorSet()
    for each in files:
        made.file.add().ParseFromString(each)
    return bytes(made.SerializeToString())


def without_registry(
    descriptor: bytes, columns: dict[str, str], name: str = ORDER, wanted: Any = ()
) -> ProtobufRows:
    return ProtobufRows(columns, name, wanted, files=set_of(descriptor))


def test_every_type_becomes_the_type_of_the_row_class() -> None:
    at = {"seconds": -1, "nanos": 999_999_999}
    full = value(
        EVERYTHING, "shop.All", double=1.5, float=2.5, int64=-(2**63), uint64=2**64 - 1, int32=-1, fixed64=2**63 - 1,
        fixed32=2**32 - 1, bool=True, string="Ä", bytes=b"\xff", uint32=7, sfixed32=-7, sfixed64=-8, sint32=-9, sint64=-10,
        status=1, at=at, ats=[at, at], maybe={"value": 0}, inner={"x": 1, "next": {"x": 2}}, inners=[{"x": 3}, {}],
        numbers=[1, 2], prices={"a": 1.5}, places={4: {"x": 5}}, cash=0,
    )  # fmt: skip
    of = without_registry(EVERYTHING, KINDS, "shop.All")
    (found, reason), (none, _), (absent, _) = rows(of, full, None, b"")
    when = datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert reason is None
    assert found == {
        "double": 1.5, "float": 2.5, "int64": -(2**63), "uint64": Decimal(2**64 - 1), "int32": -1, "fixed64": 2**63 - 1,
        "fixed32": 2**32 - 1, "bool": True, "string": "Ä", "bytes": b"\xff", "uint32": 7, "sfixed32": -7, "sfixed64": -8,
        "sint32": -9, "sint64": -10, "status": "PAID", "at": when, "ats": [when, when], "maybe": 0,
        "inner": {"x": 1, "next": {"x": 2}}, "inners": [{"x": 3}, {"x": 0}], "numbers": [1, 2], "prices": [("a", 1.5)],
        "places": [(4, {"x": 5})], "card": None, "cash": 0,
    }  # fmt: skip
    assert none is None
    # What has no presence is its zero; messages, wrappers and choices are null.
    assert absent == {
        **dict.fromkeys(absent, 0), "uint64": Decimal(0), "bool": False, "string": "", "bytes": b"", "status": "NEW",
        **dict.fromkeys(("at", "maybe", "inner", "card", "cash")), "ats": [], "inners": [], "numbers": [], "prices": [], "places": [],
    }  # fmt: skip


def test_each_message_is_read_by_the_schema_of_its_writer_which_is_asked_for_once() -> None:
    with registry() as served:
        served.schemas |= {3: OLD, 4: NEW, 5: file(message("Order", field("usr", 1, "int64"))), 6: TWO}
        of = ProtobufRows(COLUMNS, ORDER, WANTED, SchemaRegistry(served.url))
        old = framed_message(3, value(OLD, ORDER, user=7, amount=2.5))
        new = framed_message(4, value(NEW, ORDER, user=8, note="x"))
        found = rows(
            of, old, new, None, old, framed_message(5, b""), b'{"user": 1}', framed_message(3, b"\xff"), b"",
            framed_message(6, value(TWO, "shop.Refund", user=1), 1), framed_message(6, b"", 2), framed_message(9, b""),
            b"\0\0\0\0\3\1", framed_message(6, value(TWO, ORDER, user=9)),
        )  # fmt: skip
        no_id = "it does not begin with the id of a schema and the place of a message, as a writer with a registry writes it"
        assert found == [
            ({"user": 7, "amount": 2.5, "note": None}, None),
            ({"user": 8, "amount": 0.0, "note": "x"}, None),
            (None, None),
            ({"user": 7, "amount": 2.5, "note": None}, None),
            (None, "its message shop.Order has no 'user'; it has usr (schema 5)"),
            (None, no_id),
            (None, "its bytes are not of this schema"),
            (None, no_id),
            (
                None,
                "it is a shop.Refund, and the source reads shop.Order: give each message a topic of its own, or say message='shop.Refund' (schema 6)",
            ),
            (None, "it is of message number 2, which its schema does not have"),
            (
                None,
                f"the schema registry {served.url} has no /schemas/ids/9?format=serialized: is it the registry that the topic's writers use?",
            ),
            (None, no_id),
            ({"user": 9, "amount": 0.0, "note": None}, None),
        ]
        assert served.asked == [f"/schemas/ids/{id}?format=serialized" for id in (3, 4, 5, 6, 9)]


def test_the_names_in_the_schemas_of_messages_are_known_without_their_values() -> None:
    every = without_registry(EVERYTHING, {"string": "string"}, "shop.All").names([])
    inside = {f"{name}.{each}" for name in ("inner", "inners", "places") for each in ("x", "next")}
    assert every == {*KINDS, *inside}
    with registry() as served:
        served.under("old-value", 1, OLD)
        served.under("new-value", 2, NEW)
        of = ProtobufRows(COLUMNS, ORDER, WANTED, SchemaRegistry(served.url))
        assert of.names([framed_message(1, b"")]) == {"user", "amount"}
        # Of a schema that is not there, and of what has none, nothing is known.
        others = (framed_message(2, b""), framed_message(9, b""), framed_message(1, b"", 5), b"none", b"")
        assert of.names(others) == {"user", "amount", "note"}
        assert of.names([]) == frozenset()


def test_a_message_inside_of_a_message_is_found_by_its_place() -> None:
    nested = file(
        f'{message("Other")} message_type {{ name: "Outer" nested_type {{ name: "Order" {USER} }} }}'
    )
    with registry() as served:
        served.schemas[1] = nested
        of = ProtobufRows({"user": "bigint"}, "shop.Outer.Order", (), SchemaRegistry(served.url))
        assert rows(of, framed_message(1, value(nested, "shop.Outer.Order", user=5), 1, 0)) == [
            ({"user": 5}, None)
        ]


def test_of_two_names_of_a_number_the_first_is_read() -> None:
    values = 'value { name: "NEW" number: 0 } value { name: "FRESH" number: 0 } options { allow_alias: true }'
    state = field("state", 1, "enum", 'type_name: ".shop.Of.State"')
    of = file(message("Of", state, f'enum_type {{ name: "State" {values} }}'))
    assert rows(without_registry(of, {"state": "string"}, "shop.Of"), b"") == [({"state": "NEW"}, None)]


def test_a_value_that_does_not_fit_is_the_only_one_that_is_left_out() -> None:
    columns = {"uint64": "bigint", "status": "string", "at": "timestamp"}
    of = without_registry(EVERYTHING, columns, "shop.All")
    good = value(EVERYTHING, "shop.All", uint64=1)
    wrong = {
        "'uint64' has a number that a bigint does not hold": {"uint64": 2**63},
        "'status' is 9, of which shop.All.Status has no name in its schema: declare it as int": {"status": 9},
        "it has a timestamp outside of the years 1 to 9999, or with nanoseconds below 0 or of a second and more": {
            "at": {"seconds": 253402300800}
        },
    }
    found = rows(of, good, *(value(EVERYTHING, "shop.All", **fields) for fields in wrong.values()), good)
    assert [reason for _, reason in found] == [None, *wrong, None]
    assert [row and row["uint64"] for row, _ in found] == [1, None, None, None, 1]
    # The advice is sound.
    numbers = without_registry(EVERYTHING, {"status": "int"}, "shop.All")
    assert rows(numbers, value(EVERYTHING, "shop.All", status=9)) == [({"status": 9}, None)]


def test_fields_that_the_schema_does_not_know_are_left_out_unless_one_that_it_knows_may_be_among_them() -> (
    None
):
    more = file(message("Order", USER, AMOUNT, field("added", 9, "string")))
    moved = file(message("Order", USER, field("amount", 9, "double")))
    retyped = file(message("Order", USER, field("amount", 2, "string")))
    of = without_registry(OLD, {"user": "bigint", "amount": "double"}, wanted=WANTED)
    assert rows(
        of,
        value(more, ORDER, user=1, amount=2.0, added="x"),
        value(moved, ORDER, user=1, amount=2.0),
        value(retyped, ORDER, user=1, amount="2"),
        b'{"user": 1, "amount": 2}',
        framed_message(3, value(OLD, ORDER, user=1)),
    ) == [
        ({"user": 1, "amount": 2.0}, None),
        (
            None,
            "it has no 'amount', and has a field 9 that shop.Order does not know: give schema= as its writer has it",
        ),
        (None, "its field 2 ('amount' of shop.Order) has another type than its schema says"),
        (None, "its bytes are not of this schema"),
        (
            None,
            "its bytes are not of this schema: they may begin with the id of a schema, whose registry registry= has to name",
        ),
    ]
    # A row class that asks for nothing is not given a row of zeros for a text.
    (row,) = rows(without_registry(OLD, {"user": "bigint"}), b"123456789")
    assert row == (None, "it has none of the fields of shop.Order, and others: it is another message")
    # As its writer has it, the second is read.
    assert rows(without_registry(moved, {"amount": "double"}), value(moved, ORDER, user=1, amount=2.0)) == [
        ({"amount": 2.0}, None)
    ]


def test_a_field_that_may_be_missing_may_have_another_number_by_now() -> None:
    known = file(message("Order", USER, NOTE, field("sku", 4, "string")))
    moved = file(message("Order", USER, NOTE.replace("3", "7", 1)))
    of = without_registry(known, {"user": "bigint", "note": "string"}, wanted=(("user",),))
    written = value(moved, ORDER, user=1, note="x")
    # A newer schema may as well have one field more, so that this is no bad message.
    assert rows(of, written) == [({"user": 1, "note": None}, None)]
    others = (value(known, ORDER, user=1), value(known, ORDER, user=1, note="x"), b"no message", b"")
    assert of.strangers([*others, written], ["note", "broken"]) == {"note": 7}
    assert of.strangers(others, ["note"]) == {}
    # Where the field is there, the number is another one.
    more = file(message("Order", USER, NOTE, field("added", 9, "string")))
    assert of.strangers([value(more, ORDER, user=1, note="x", added="y")], ["note", "sku"]) == {"sku": 9}
    # As its writer has it.
    assert rows(without_registry(moved, {"note": "string"}), written) == [({"note": "x"}, None)]
    assert without_registry(moved, {"note": "string"}).strangers([written], ["note"]) == {}


@pytest.mark.parametrize(
    ("columns", "misfit"),
    [
        ({"int64": "int"}, "'int64' is an int64 in its message shop.All, and a int in the row class"),
        ({"double": "bigint"}, "'double' is a double"),
        ({"string": "timestamp"}, "'string' is a string"),
        ({"at": "string"}, "'at' is a message google.protobuf.Timestamp"),
        ({"maybe": "string"}, r"'maybe' is a Int32Value \(an int32\)"),
        ({"inner": "struct<x:string>"}, "'inner' is a message shop.All.Inner whose 'x' is an int32"),
        ({"numbers": "bigint"}, "'numbers' is a list"),
        ({"numbers": "array<string>"}, "'numbers' is an int32"),
        ({"int32": "array<int>"}, "'int32' is an int32"),
        ({"prices": "struct<a:double>"}, "'prices' is a map"),
        ({"prices": "map<bigint,double>"}, "'prices' is a string"),
        ({"status": "boolean"}, "'status' is an enum"),
        ({"usr": "bigint"}, "its message shop.All has no 'usr'; it has double, float"),
    ],
)
def test_a_schema_that_does_not_fit_the_row_class_is_told(columns: dict[str, str], misfit: str) -> None:
    descriptor = ProtobufFile(EVERYTHING).message("shop.All")
    assert re.search(misfit, misfit_of(descriptor, columns, [(name,) for name in columns]))


def kafka(served: Registry, **given: Any) -> Any:
    return sf.kafka("orders", bootstrap="broker:9092", value="protobuf", registry=served.url, **given)


def decoder(topic: Any, rows: str = "user long, amount double") -> ProtobufRows:
    made: ProtobufRows = topic.declared("orders", row_type(rows))._decoder()
    return made


def test_what_the_topic_has_is_compared_with_the_row_class_before_a_row_is_read(tmp_path: Path) -> None:
    with registry() as served:
        with refused(UsageError, "has no subject orders-value", "say message='shop.Order'"):
            decoder(kafka(served))
        assert decoder(kafka(served, message=ORDER)).message == ORDER
        served.under("orders-value", 1, TWO)
        with refused(UsageError, "shop.Order, shop.Refund", "say message="):
            decoder(kafka(served))
        with refused(UsageError, "no message 'Order'", "it has shop.Order, shop.Refund"):
            decoder(kafka(served, message="Order"))
        assert decoder(kafka(served, message="shop.Refund")).message == "shop.Refund"
        served.under("orders-value", 2, NEW)
        assert decoder(kafka(served)).message == ORDER
        with refused(UsageError, "'user' is an int64", "newest schema", "orders-value", "the row class"):
            decoder(kafka(served), "user string")
        with pytest.raises(UsageError, match=r"has no 'usr'; it has amount, user, note"):
            decoder(kafka(served), "usr long")
        served.under("returns-value", 3, file(message("Return", USER, AMOUNT)))
        both = sf.kafka("orders", "returns", bootstrap="b:1", value="protobuf", registry=served.url)
        with refused(UsageError, "shop.Order in orders", "shop.Return in returns", "give each type a source"):
            decoder(both)
        served.under("orders-value", 4, {"type": "record", "name": "Order", "fields": []})
        with refused(UsageError, "is Avro", "as Protobuf", "value='avro'"):
            decoder(kafka(served))
        served.under("orders-value", 5, NEW)
        served.serialized = False
        with refused(UsageError, "comes as text", "give schema='orders.desc'"):
            decoder(kafka(served))
    with refused(UnavailableError, "does not answer"):
        decoder(kafka(served))
    with pytest.raises(RuntimeError) as raised:
        rows(ProtobufRows(COLUMNS, ORDER, WANTED, SchemaRegistry(served.url)), framed_message(11, b""))
    assert isinstance(translated(raised.value), UnavailableError)


def test_a_file_or_a_class_has_the_schema_where_there_is_no_registry(tmp_path: Path) -> None:
    path = tmp_path / "orders.desc"
    path.write_bytes(set_of(OLD))
    topic = sf.kafka("orders", bootstrap="b:1", value="protobuf", schema=str(path))
    assert rows(decoder(topic), value(OLD, ORDER, user=7, amount=2.5)) == [({"user": 7, "amount": 2.5}, None)]
    path.write_bytes(b'syntax = "proto3";')
    with refused(UsageError, "no set of descriptors", "protoc --include_imports"):
        decoder(topic)
    with refused(UsageError, "No such file or directory"):
        decoder(sf.kafka("orders", bootstrap="b:1", value="protobuf", schema=str(tmp_path / "none")))
    generated = sf.kafka("orders", bootstrap="b:1", value="protobuf", schema=timestamp_pb2.Timestamp)
    assert generated.message == "google.protobuf.Timestamp"
    assert rows(
        decoder(generated, "seconds long"), timestamp_pb2.Timestamp(seconds=5).SerializeToString()
    ) == [({"seconds": 5}, None)]


def test_imports_are_found_in_other_subjects_and_what_is_missing_is_told() -> None:
    money = file(message("Money", field("cents", 1, "int64")), name="money.proto", package="money")
    price = file(
        message("Price", field("of", 1, ".money.Money")), "money.proto", name="price.proto", package="price"
    )
    order = file(
        message("Order", USER, field("price", 2, ".price.Price"), field("tip", 3, ".money.Money")),
        "price.proto",
        "money.proto",
    )
    columns = {"user": "bigint", "price": "struct<of:struct<cents:bigint>>", "tip": "struct<cents:bigint>"}
    with registry() as served:
        served.under("money", 1, money)
        served.under("price", 2, price, ("money.proto", "money", 1))
        served.under("orders-value", 3, order, ("price.proto", "price", 1), ("money.proto", "money", 1))
        of = decoder(
            kafka(served), "user long, price struct<of:struct<cents:bigint>>, tip struct<cents:bigint>"
        )
        made = value(order, ORDER, money, price, user=1, price={"of": {"cents": 250}}, tip={"cents": 5})
        assert rows(of, framed_message(3, made)) == [
            ({"user": 1, "price": {"of": {"cents": 250}}, "tip": {"cents": 5}}, None)
        ]
        served.schemas[4] = order
        of = ProtobufRows(columns, ORDER, (), SchemaRegistry(served.url))
        with pytest.raises(RuntimeError) as raised:
            rows(of, framed_message(4, made))
        assert (
            "registered.proto imports price.proto, which nobody gives): register it anew, with what it imports as references"
            in str(translated(raised.value))
        )


def test_a_file_whose_imports_make_a_circle_is_refused() -> None:
    one = file(message("One"), "two.proto", name="one.proto")
    two = file(message("Two"), "one.proto", name="two.proto")
    with pytest.raises(
        ProtobufMisfit, match=r"its imports make a circle: one\.proto -> two\.proto -> one\.proto"
    ):
        ProtobufFile(one, [two])


def proto2(*parts: str) -> bytes:
    found = descriptor_pb2.FileDescriptorProto()
    text_format.Parse(f'name: "old.proto" package: "shop" syntax: "proto2" {" ".join(parts)}', found)
    return bytes(found.SerializeToString())


def test_a_number_that_an_enum_of_proto2_does_not_name_is_told_and_the_writers_schema_reads_it() -> None:
    def order(*names: str) -> bytes:
        values = " ".join(f'value {{ name: "{name}" number: {k + 1} }}' for k, name in enumerate(names))
        state = field("state", 1, "enum", 'type_name: ".shop.Order.State"')
        states = field("states", 2, "enum", 'type_name: ".shop.Order.State"', label="REPEATED")
        return proto2(message("Order", state, states, f'enum_type {{ name: "State" {values} }}'))

    old, new = order("NEW"), order("NEW", "PAID")
    columns = {"state": "string", "states": "array<string>"}
    values = (value(new, ORDER, state=2), value(new, ORDER, states=[1, 2]), b"")
    no_name = "is 2, of which shop.Order.State has no name in its schema: give schema= as its writer has it"
    assert rows(without_registry(old, columns), *values) == [
        (None, f"'state' {no_name}"),
        (None, f"'states' {no_name}"),
        ({"state": None, "states": []}, None),
    ]
    assert rows(without_registry(new, columns), *values) == [
        ({"state": "PAID", "states": []}, None),
        ({"state": None, "states": ["NEW", "PAID"]}, None),
        ({"state": None, "states": []}, None),
    ]


def test_text_that_is_not_in_utf_8_is_told_as_that() -> None:
    text = proto2(message("Order", field("s", 1, "string"), field("ss", 2, "string", label="REPEATED")))
    raw = proto2(message("Order", field("s", 1, "bytes"), field("ss", 2, "bytes", label="REPEATED")))
    of = without_registry(text, {"s": "string", "ss": "array<string>"})
    found = rows(of, value(raw, ORDER, s=b"\xff"), value(raw, ORDER, ss=[b"\xff"]), value(text, ORDER, s="Ä"))
    wrong = (None, "it has text that is not in UTF-8")
    assert found == [wrong, wrong, ({"s": "Ä", "ss": []}, None)]


def test_a_message_by_a_schema_of_avro_is_the_only_one_that_is_left_out() -> None:
    with registry() as served:
        served.schemas |= {3: OLD, 4: {"type": "record", "name": "Order", "fields": []}}
        good = framed_message(3, value(OLD, ORDER, user=7, amount=2.5))
        of = ProtobufRows(COLUMNS, ORDER, WANTED, SchemaRegistry(served.url))
        (first, none), (other, reason), (last, _) = rows(of, good, framed_message(4, b""), good)
        assert first == last == {"user": 7, "amount": 2.5, "note": None}
        assert (none, other) == (None, None)
        assert reason is not None
        assert reason.startswith(
            f"schema 4 of the registry {served.url} is Avro, and the topic is read or written as Protobuf"
        )


def test_a_registry_that_breaks_off_its_answer_is_told() -> None:
    class Half(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b'{"schema": ')

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Half)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        with refused(UnavailableError, "does not answer"):
            SchemaRegistry(f"http://127.0.0.1:{server.server_address[1]}").schema(1, "PROTOBUF")
    finally:
        server.shutdown()
        server.server_close()
        serving.join()

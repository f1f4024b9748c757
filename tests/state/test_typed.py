"""Values as typed columns: what is stored comes back from the table, by the text of its type alone."""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.records import Shard, StateSchema
from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.state.columnstate import ColumnState
from stateflow.state.encoding import EMPTY_NAMESPACE, prefix
from stateflow.state.keycodec import KeyCodec
from stateflow.state.keygroups import xxhash64
from stateflow.state.memory import memory_backend
from stateflow.state.schema import type_name
from stateflow.state.serializers import RAW, CustomSerializer, Serializer, serializer_for
from stateflow.state.tabular import StateTable

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = KeyCodec(["int"])


@dataclasses.dataclass
class Order:
    user: int
    amount: float
    at: datetime
    name: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)
    parent: Order | None = None
    limit: int | None = 10
    closed: datetime | None = None


class Place(NamedTuple):
    x: int
    y: str = "y"
    z: float | None = None


class Colour(Enum):
    RED = "r"
    BLUE = "b>,"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Loose(TypedDict):
    name: str
    age: NotRequired[int]
    note: NotRequired[str | None]


class Sparse(msgspec.Struct, omit_defaults=True, kw_only=True):
    a: int | None = 3
    b: str = "b"
    c: int


class Listed(msgspec.Struct, array_like=True, frozen=True):
    day: date
    price: Decimal
    n: int = 5


class Mixed(msgspec.Struct, array_like=True, kw_only=True):
    a: int = 1
    b: int


class Event(msgspec.Struct):
    id: uuid.UUID
    colour: Colour
    level: Level
    word: Literal["a", "b"]
    clock: time
    took: timedelta
    either: int | str | None
    places: dict[str, Place]
    by_instant: dict[datetime, list[int | None]]
    by_pair: dict[tuple[int, str], Listed]
    odd: dict[int | None, bytes]
    several: frozenset[int]


INTS = st.integers(-(2**63), 2**63 - 1)
BIG = INTS | st.integers(2**63, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
INSTANTS = st.datetimes(timezones=st.just(UTC))
FLOATS = st.floats(allow_nan=False)
PLACES = st.builds(Place, BIG, TEXT, st.none() | FLOATS)
ORDERS = st.deferred(
    lambda: st.builds(
        Order, BIG, FLOATS, INSTANTS, st.none() | TEXT, st.lists(TEXT, max_size=2), st.none() | ORDERS, st.none() | BIG,
        st.none() | INSTANTS,
    )
)  # fmt: skip
DECIMALS = st.decimals(allow_nan=False) | st.decimals(-1000, 1000, places=2)
LISTED = st.builds(Listed, st.dates(), DECIMALS, INTS)
LOOSE: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": TEXT}, optional={"age": INTS, "note": st.none() | TEXT}
)
EVENTS = st.builds(
    Event, st.uuids(), st.sampled_from(Colour), st.sampled_from(Level), st.sampled_from(["a", "b"]),
    st.times(timezones=st.none() | st.just(UTC)), st.timedeltas(), st.none() | BIG | TEXT,
    st.dictionaries(TEXT, PLACES, max_size=2),
    st.dictionaries(INSTANTS, st.lists(st.none() | INTS, max_size=2), max_size=2),
    st.dictionaries(st.tuples(BIG, TEXT), LISTED, max_size=2),
    st.dictionaries(st.none() | INTS, st.binary(max_size=3), max_size=2), st.frozensets(INTS, max_size=3),
)  # fmt: skip

SCALARS: list[tuple[Any, st.SearchStrategy[Any], pa.DataType]] = [
    (bool, st.booleans(), pa.bool_()),
    (int, INTS, pa.int64()),
    (float, st.floats(), pa.float64()),
    (str, TEXT, pa.string()),
    (bytes, st.binary(max_size=5), pa.binary()),
    (date, st.dates(), pa.date32()),
    (datetime, INSTANTS, pa.timestamp("us", "UTC")),
    (Decimal, st.decimals() | DECIMALS, pa.decimal128(38, 18)),
]
STRUCTURED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Order, ORDERS),
    (Event, EVENTS),
    (Place, PLACES),
    (Listed, LISTED),
    (Mixed, st.builds(Mixed, a=INTS, b=INTS)),
    (Sparse, st.builds(Sparse, a=st.none() | BIG, b=TEXT | st.just("b"), c=INTS)),
    (list[Loose], st.lists(LOOSE, max_size=2)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["x", None], st.sampled_from(["x", None])),
    (uuid.UUID, st.uuids()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (int | None, st.none() | BIG),
    (float | None, st.none() | FLOATS),
    (str | None, st.none() | TEXT),
    (bool | None, st.none() | st.booleans()),
    (datetime | None, st.none() | INSTANTS),
    (date | None, st.none() | st.dates()),
    (Decimal | None, st.none() | DECIMALS),
    (Order | None, st.none() | ORDERS),
    (int | str, INTS | TEXT),
    (int | str | None, st.none() | INTS | TEXT),
    (list[int], st.lists(BIG, max_size=3)),
    (list[list[str | None]], st.lists(st.lists(st.none() | TEXT, max_size=2), max_size=3)),
    (set[int], st.sets(INTS, max_size=3)),
    (tuple[int, ...], st.lists(INTS, max_size=3).map(tuple)),
    (tuple[int, str, datetime], st.tuples(INTS, TEXT, INSTANTS)),
    (tuple[()], st.just(())),
    (dict[str, int], st.dictionaries(TEXT, BIG, max_size=3)),
    (dict[str, Order | None], st.dictionaries(TEXT, st.none() | ORDERS, max_size=2)),
    (dict[Decimal, int], st.dictionaries(DECIMALS, INTS, max_size=2)),
    (dict[date, dict[int, str]], st.dictionaries(st.dates(), st.dictionaries(INTS, TEXT, max_size=2), max_size=2)),
    (dict[timedelta, int], st.dictionaries(st.timedeltas(), INTS, max_size=2)),
    (dict[Colour, list[Level]], st.dictionaries(st.sampled_from(Colour), st.lists(st.sampled_from(Level), max_size=2))),
    (dict[tuple[int, ...], bool], st.dictionaries(st.lists(INTS, max_size=2).map(tuple), st.booleans(), max_size=2)),
    (dict[uuid.UUID, dict[bool, str]], st.dictionaries(st.uuids(), st.dictionaries(st.booleans(), TEXT), max_size=2)),
    (list[Order | None], st.lists(st.none() | ORDERS, max_size=2)),
    (list[int | str], st.lists(INTS | TEXT, max_size=3)),
]  # fmt: skip


def table_of(value: str, *, kind: str = "value", ttl: int | None = None) -> StateTable:
    return StateTable([("user", "int")], 128, "total", StateSchema(7, kind, value, ttl=ttl))


def keys_for(count: int) -> list[bytes]:
    keys = [prefix(xxhash64(n) % 128, 7) + KEY.encode(n) + EMPTY_NAMESPACE for n in range(count)]
    return sorted(keys)


def decoded(table: StateTable, stored: Sequence[bytes]) -> pa.RecordBatch:
    batch = table.decode(keys_for(len(stored)), stored)
    batch.validate(full=True)
    assert batch.schema == table.schema
    return batch


def with_value(batch: pa.RecordBatch, value: Any) -> pa.RecordBatch:
    index = batch.schema.get_field_index("value")
    return batch.set_column(index, batch.schema.field(index), value)


def stored_values(
    serializer: Serializer, values: Sequence[Any], expiries: Sequence[int | None]
) -> list[bytes]:
    return [
        serializer.dumps(value) if expiry is None else serializer.dumps_with_expiry(value, expiry)
        for value, expiry in zip(values, expiries, strict=True)
    ]


def drawn(
    data: st.DataObject, hint: Any, values: st.SearchStrategy[Any]
) -> tuple[Serializer, list[bytes], bool]:
    """Stored values, with and without expiries; whether the state has a ttl."""
    serializer = serializer_for(hint)
    drawn_values = data.draw(st.lists(values, min_size=1, max_size=4))
    ttl = data.draw(st.sampled_from(["none", "all", "some"]))
    at = {"none": st.none(), "all": INTS.filter(lambda n: abs(n) < 2**60), "some": st.none() | st.just(77)}[
        ttl
    ]
    expiries = [data.draw(at) for _ in drawn_values]
    return serializer, stored_values(serializer, drawn_values, expiries), ttl != "none"


@pytest.mark.parametrize(("hint", "values", "arrow"), SCALARS, ids=[str(case[2]) for case in SCALARS])
@settings(max_examples=50)
@given(data=st.data())
def test_plain_values_come_back_byte_by_byte(
    hint: Any, values: st.SearchStrategy[Any], arrow: pa.DataType, data: st.DataObject
) -> None:
    serializer, stored, ttl = drawn(data, hint, values)
    table = table_of(serializer.schema, ttl=5 if ttl else None)
    batch = decoded(table, stored)
    assert batch.schema.field("value").type == arrow
    assert table.encode(batch) == (keys_for(len(stored)), stored)
    if ttl:
        expires = batch.column("expires_at").cast(pa.int64()).to_pylist()
        assert expires == [serializer.expiry(raw) for raw in stored]
    if hint is not Decimal:
        shown = batch.column("value").to_pylist()
        for raw, value in zip(stored, shown, strict=True):
            expected = serializer.loads(raw)
            assert value == expected or (math.isnan(value) and math.isnan(expected))


@pytest.mark.parametrize(("hint", "values"), STRUCTURED, ids=[type_name(case[0]) for case in STRUCTURED])
@settings(max_examples=25)
@given(data=st.data())
def test_structured_values_load_as_what_they_were(
    hint: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    serializer, stored, ttl = drawn(data, hint, values)
    table = table_of(serializer.schema, ttl=5 if ttl else None)
    batch = decoded(table, stored)
    keys, again = table.encode(batch)
    assert keys == keys_for(len(stored))
    for before, after in zip(stored, again, strict=True):
        assert serializer.loads(after) == serializer.loads(before)
        assert type(serializer.loads(after)) is type(serializer.loads(before))
        assert serializer.expiry(after) == serializer.expiry(before)
    assert table.encode(batch.slice(1)) == (keys[1:], again[1:])
    # One by one they are what they are together.
    for index, raw in enumerate(stored):
        alone = table.decode(keys_for(1), [raw]).column("value")
        assert alone.to_pylist() == batch.column("value").slice(index, 1).to_pylist()


@settings(max_examples=30)
@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_a_changed_column_is_what_is_stored(orders: list[Order]) -> None:
    serializer = serializer_for(Order)
    table = table_of(serializer.schema)
    batch = decoded(table, [serializer.dumps(order) for order in orders])
    rows = [{**row, "user": 5} for row in batch.column("value").to_pylist()]
    changed = with_value(batch, pa.array(rows, type=table.schema.field("value").type))
    for order, raw in zip(orders, table.encode(changed)[1], strict=True):
        fitting = order.limit if order.limit is None or order.limit < 2**63 else None
        assert serializer.loads(raw) == dataclasses.replace(order, user=5, limit=fitting)


TYPES: list[tuple[Any, str]] = [
    (Order, ("struct<user: int64, amount: double, at: timestamp[us, tz=UTC], name: string, tags: list<item: string>, "
            "parent: binary, limit: int64, closed: timestamp[us, tz=UTC]>")),
    (Event, ("struct<id: string, colour: string, level: int64, word: string, clock: string, took: duration[us], "
            "either: binary, places: map<string, struct<x: int64, y: string, z: double>>, "
            "by_instant: map<timestamp[us, tz=UTC], list<item: int64>>, by_pair: map<struct<_1: int64, _2: string>, "
            "struct<day: date32[day], price: decimal128(38, 18), n: int64>>, odd: binary, several: list<item: int64>>")),
    (Loose, "struct<age: int64, name: string, note: string>"),
    (tuple[int, str], "struct<_1: int64, _2: string>"),
    (int | str, "binary"),
    (Literal[1, "a"], "binary"),
    (tuple[()], "binary"),
    (dict[float | None, int], "binary"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "arrow"), TYPES, ids=[type_name(case[0]) for case in TYPES])
def test_types_in_a_table(hint: Any, arrow: str) -> None:
    assert str(table_of(serializer_for(hint).schema).schema.field("value").type) == arrow


def test_names_that_differ_in_case_only_are_no_columns() -> None:
    twins = msgspec.defstruct("Twins", [("a", int), ("A", int)])
    serializer = serializer_for(twins)
    table = table_of(serializer.schema)
    assert table.schema.field("value").type == pa.binary()
    stored = [serializer.dumps(twins(1, 2))]
    assert table.encode(decoded(table, stored))[1] == stored


def test_names_that_look_like_the_text_around_them_are_no_columns() -> None:
    tricky = msgspec.defstruct("Tricky", [("a", int)], rename={"a": "x}y:"})
    serializer = serializer_for(tricky)
    table = table_of(serializer.schema)
    stored = [serializer.dumps(tricky(1))]
    assert table.encode(decoded(table, stored))[1] == stored


def test_the_parts_that_have_no_arrow_type_are_messagepack() -> None:
    serializer = serializer_for(Order)
    batch = decoded(
        table_of(serializer.schema), [serializer.dumps(Order(1, 2.0, NOON, parent=Order(2, 3.0, NOON)))]
    )
    parent = batch.column("value").to_pylist()[0]["parent"]
    assert msgspec.msgpack.decode(parent, type=Order) == Order(2, 3.0, NOON)
    union = serializer_for(int | str)
    assert decoded(table_of(union.schema), [union.dumps("a")]).column("value").to_pylist() == [b"\xa1a"]


def test_a_decimal_keeps_its_digits_unless_it_is_changed() -> None:
    serializer = serializer_for(Decimal)
    table = table_of("decimal")
    values = [Decimal(text) for text in ("1.50", "1.5", "NaN", "1E+40", "0.1234567890123456789")]
    batch = decoded(table, [serializer.dumps(value) for value in values])
    assert batch.column("value").to_pylist() == [Decimal("1.5"), Decimal("1.5"), None, None, None]
    assert batch.column("stored").to_pylist() == [b"1.50", None, b"NaN", b"1E+40", b"0.1234567890123456789"]
    changed = with_value(
        batch, pa.array([Decimal(n) for n in (2, "1.5", "0.5", 100, "1E-9")], pa.decimal128(38, 18))
    )
    again = [str(serializer.loads(raw)) for raw in table.encode(changed)[1]]
    assert again == ["2", "1.5", "0.5", "100", "1E-9"]


class Old(msgspec.Struct):
    a: int


class New(msgspec.Struct):
    a: int
    b: int | None = 10
    c: str = "c"
    d: datetime | None = NOON


def test_a_field_that_was_left_out_is_told_from_a_stored_none() -> None:
    new = serializer_for(New)
    table = table_of(new.schema)
    before = [serializer_for(Old).dumps(Old(1)), new.dumps(New(1, None, "x", None)), new.dumps(New(1))]
    batch = decoded(table, before)
    missing = {"a": 1, "b": None, "c": None, "d": None}
    assert batch.column("value").to_pylist()[:2] == [missing, {"a": 1, "b": None, "c": "x", "d": None}]
    assert [raw is None for raw in batch.column("stored").to_pylist()] == [False, True, True]
    again = [new.loads(raw) for raw in table.encode(batch)[1]]
    assert again == [New(1), New(1, None, "x", None), New(1)]
    # Without the column that tells, a null is None where that is allowed, and left out elsewhere.
    bare = batch.drop_columns(["stored"])
    assert new.loads(table.encode(bare)[1][0]) == New(1, None, "c", None)


def test_positions_that_were_left_out_stay_left_out() -> None:
    serializer = serializer_for(Place)
    table = table_of(serializer.schema)
    batch = decoded(table, [b"\x09\x91\x01", serializer.dumps(Place(1))])
    assert [serializer.loads(raw) for raw in table.encode(batch)[1]] == [Place(1), Place(1)]
    assert table.encode(batch)[1][0] == b"\x09\x91\x01"
    bare = batch.drop_columns(["stored"])
    gap = [{"x": 1, "y": None, "z": 2.0}]
    with pytest.raises(UsageError, match=r"state 'total': value\.y is null in front of fields that are not"):
        table.encode(with_value(bare.slice(0, 1), pa.array(gap, type=table.schema.field("value").type)))


class Tagged(msgspec.Struct, tag="t"):
    a: int


def test_fields_that_the_text_does_not_tell_are_kept() -> None:
    serializer = serializer_for(Tagged)
    table = table_of(serializer.schema)
    stored = [serializer.dumps(Tagged(4))]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [{"a": 4}]
    assert table.encode(batch)[1] == stored


def test_numbers_that_do_not_fit_are_null_and_kept() -> None:
    serializer = serializer_for(list[int])
    table = table_of(serializer.schema)
    stored = [serializer.dumps(value) for value in ([1, 2**63], [1, 2])]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [[1, None], [1, 2]]
    assert table.encode(batch)[1] == stored
    with pytest.raises(
        UsageError, match=r"state 'total': value\[\] holds 1 nulls, but its type is not optional"
    ):
        table.encode(batch.drop_columns(["stored"]))


def test_what_does_not_fit_its_type_is_kept() -> None:
    serializer = serializer_for(Old)
    table = table_of(serializer.schema)
    stored = [serializer_for(Order).dumps(Order(1, 2.0, NOON)), serializer.dumps(Old(3))]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [None, {"a": 3}]
    assert table.encode(batch)[1] == stored


@pytest.mark.parametrize(
    "schema", ["optional<date>", "optional<timedelta>", "optional<bool>", "struct Old{a:int}"]
)
def test_a_number_where_there_is_none_is_kept(schema: str) -> None:
    table = table_of(schema)
    batch = decoded(table, [b"\x09\x01", b"\x09\x01"])
    assert batch.column("value").null_count == 2
    assert table.encode(batch)[1] == [b"\x09\x01", b"\x09\x01"]


def test_what_cannot_be_kept_beside_a_typed_value_is_reported() -> None:
    with pytest.raises(CorruptError, match="key 0: a stored value is damaged"):
        table_of("columns{a:str}", kind="columns").decode(keys_for(1), [b"\x0b\x91\x05"])
    with pytest.raises(IncompatibleError, match=r"another way \(code 10\)"):
        table_of("union<int,str>").decode(keys_for(1), [b"\x0a\x05"])


def test_a_map_with_a_key_that_does_not_fit_is_kept() -> None:
    serializer = serializer_for(dict[int, str])
    table = table_of(serializer.schema)
    stored = [serializer.dumps(value) for value in ({2**63: "a", 1: "b"}, {2: "c"})]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [None, [(2, "c")]]
    assert table.encode(batch)[1] == stored


WIDER: list[tuple[Any, Any, Any]] = [
    (int, 3, float),
    (int, 3, int | None),
    (int, 3, float | None),
    (int, 3, int | str),
    (str, "a", str | None),
    (str, "r", Colour),
    (int, 2, Level),
    (str, "00000000-0000-0000-0000-000000000001", uuid.UUID),
    (bytes, b"a", bytes | None),
    (bool, True, bool | None),
    (datetime, NOON, datetime | None),
    (date, date(2020, 1, 1), date | None),
    (Decimal, Decimal("1.50"), Decimal | None),
    (int | None, 3, int),
    (int | None, 3, float),
    (datetime | None, NOON, datetime),
    (Decimal | None, Decimal("1.50"), Decimal),
    (str | None, "a", str),
    (list[int], [1], list[float]),
    (Old, Old(1), New),
]


@pytest.mark.parametrize(("old", "value", "new"), WIDER, ids=str)
def test_a_value_from_before_its_type_changed_is_read_as_what_it_is_now(
    old: Any, value: Any, new: Any
) -> None:
    before, now = serializer_for(old), serializer_for(new)
    stored = [
        before.dumps(value),
        now.dumps(now.loads(before.dumps(value))),
        before.dumps_with_expiry(value, 9),
    ]
    table = table_of(now.schema, ttl=5)
    batch = decoded(table, stored)
    assert batch.column("value").null_count == 0
    again = table.encode(batch)[1]
    assert [now.loads(raw) for raw in again] == [now.loads(raw) for raw in stored]
    assert [raw[0] & 0x7F for raw in again] == [stored[1][0]] * 3
    assert now.expiry(again[2]) == 9


def test_an_expiry_of_a_state_without_ttl_is_dropped() -> None:
    serializer = serializer_for(int)
    batch = decoded(table_of("int"), [serializer.dumps_with_expiry(4, 9)])
    assert "expires_at" not in batch.schema.names
    assert table_of("int").encode(batch)[1] == [serializer.dumps(4)]


def test_values_of_custom_serializers_and_raw_ones_stay_bytes() -> None:
    custom = serializer_for(CustomSerializer("csv", 2, lambda v: v.encode(), lambda raw, _: raw.decode()))
    for serializer, value in ((custom, "abc"), (RAW, b"abc")):
        table = table_of(serializer.schema, ttl=5)
        stored = [serializer.dumps(value), serializer.dumps_with_expiry(value, 9)]
        batch = decoded(table, stored)
        assert "stored" not in batch.schema.names
        assert batch.column("value").to_pylist() == [stored[0][1:]] * 2
        assert table.encode(batch)[1] == stored


@pytest.mark.parametrize("schema", ["bool", "int", "float", "str", "date", "datetime", "decimal", "optional<int>",
                                    "struct Old{a:int}", "list<str>", "columns{a:int}", "columns{a:str}"])  # fmt: skip
@pytest.mark.parametrize("damage", ["", "00", "7f00", "02", "8209", "04ff", "08ff", "0878", "0b", "0b91", "09c1",
                                    "09019f", "06ffffff7f", "07ffffffffffffff7f", "89000000"])  # fmt: skip
def test_damage_is_reported_with_its_key(schema: str, damage: str) -> None:
    raw = bytes.fromhex(damage)
    table = table_of(schema, kind="columns" if schema.startswith("columns") else "value")
    if (schema, damage) in {("str", "0878"), ("columns{a:int}", "0b91")}:
        return  # That is a value.
    with pytest.raises((CorruptError, IncompatibleError), match=r"state 'total', key 0: a stored value"):
        table.decode([prefix(1, 7) + KEY.encode(0) + EMPTY_NAMESPACE], [raw])


def test_a_damaged_value_among_others_is_the_one_that_is_named() -> None:
    serializer = serializer_for(Order)
    table = table_of(serializer.schema)
    good = serializer.dumps(Order(1, 2.0, NOON))
    keys = [prefix(1, 7) + KEY.encode(n) + EMPTY_NAMESPACE for n in (10, 11, 12)]
    with pytest.raises(CorruptError, match=r"state 'total', key 11: a stored value is damaged"):
        table.decode(keys, [good, good[:-1], good])
    with pytest.raises(IncompatibleError, match=r"key 12: .*another way \(code 11\)"):
        table.decode(keys, [good, good, RAW.dumps(b"")])
    with pytest.raises(IncompatibleError, match=r"key 11: .* does not fit the declared type struct Order"):
        table.decode(keys, [good, serializer_for(int).dumps(1), good])


def rows_of(table: StateTable, values: Sequence[Any]) -> pa.RecordBatch:
    users = pa.array(range(len(values)), pa.int64())
    return pa.record_batch({"user": users, "value": pa.array(values, table.schema.field("value").type)})


WRONG: list[tuple[Any, list[Any], str]] = [
    (int, [1, None], "value holds 1 nulls: drop such rows"),
    (Old, [{"a": None}], r"value\.a holds 1 nulls, but its type is not optional"),
    (Old, [{"a": 1}, None], "value holds 1 nulls, but its type is not optional"),
    (Place, [{"x": None, "y": "y", "z": None}], r"value\.x holds 1 nulls"),
    (Mixed, [{"a": None, "b": 1}], r"value\.a holds 1 nulls"),
    (list[Old], [[{"a": 1}, {"a": None}]], r"value\[\]\.a holds 1 nulls"),
    (dict[str, int], [[("a", None)]], r"value\.value holds 1 nulls"),
    (Colour, ["r", "green"], "value holds 'green', which is no enum Colour"),
    (Literal["x", None], ["y"], "value holds 'y', which is no literal"),
    (list[Level], [[1], [3]], r"value holds \[3\], which is no list<enum Level"),
    (uuid.UUID, ["nobody"], "value holds 'nobody', which is no uuid"),
    (time, ["25:00"], "value holds '25:00', which is no time"),
    (int | str, [b"\x01\x02"], "value holds 0102, which is no MessagePack"),
    (int | str, [b"\x81"], "value holds 81, which is no MessagePack"),
]


@pytest.mark.parametrize(("hint", "values", "says"), WRONG, ids=str)
def test_a_value_that_could_not_be_read_back_is_refused(hint: Any, values: list[Any], says: str) -> None:
    table = table_of(serializer_for(hint).schema)
    with pytest.raises(UsageError, match=f"^state 'total': {says}"):
        table.encode(rows_of(table, values))


def test_times_that_python_has_not_are_refused() -> None:
    far = {"datetime": pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
           "date": pa.array([2**30], pa.int32()).cast(pa.date32())}  # fmt: skip
    for name, array in far.items():
        for schema, column in ((name, array), (f"optional<{name}>", array), (f"columns{{a:{name}}}", None)):
            if column is None:
                if name == "date":
                    continue
                column = pa.StructArray.from_arrays([array], names=["a"])
            table = table_of(schema, kind="columns" if "columns" in schema else "value")
            batch = pa.record_batch({"user": pa.array([1]), "value": column})
            with pytest.raises(UsageError, match="outside of the years 1 to 9999"):
                table.encode(batch)


def test_bytes_in_the_column_stored_that_are_no_value_are_refused() -> None:
    table = table_of("struct Old{a:int}")
    batch = rows_of(table, [{"a": 1}]).append_column("stored", pa.array([b"\x81\x01"], pa.binary()))
    with pytest.raises(UsageError, match="state 'total': stored holds bytes that are no value"):
        table.encode(batch)


COLUMNS: list[dict[str, Any]] = [
    {"n": int, "x": float, "ok": bool, "at": datetime},
    {"n": int, "name": str, "raw": bytes, "at": datetime, "x": float, "ok": bool},
]
CELLS: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS, float: FLOATS, bool: st.booleans(), datetime: INSTANTS, str: TEXT, bytes: st.binary(max_size=3),
}  # fmt: skip


@pytest.mark.parametrize("columns", COLUMNS, ids=["fixed", "other"])
@settings(max_examples=40)
@given(data=st.data())
def test_columnar_state_comes_back_byte_by_byte(
    columns: dict[str, Any], data: st.DataObject, tmp_path_factory: Any
) -> None:
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({n: st.none() | CELLS[h] for n, h in columns.items()}),
            min_size=1,
            max_size=4,
        )
    )
    state = ColumnState(columns, KEY, 7, 128, "operator")
    state.backend = memory_backend()(
        Shard(0, 127, "memory"),
        tmp_path_factory.getbasetemp() / "shard",
        lambda _: tmp_path_factory.getbasetemp(),
    )
    state.put(pa.array(np.arange(len(rows))), pa.Table.from_pylist(rows, schema=state.schema))
    text = ",".join(f"{name}:{serializer_for(hint).schema}" for name, hint in columns.items())
    table = table_of(f"columns{{{text}}}", kind="columns")
    entries = [entry for begin, end in table.ranges(0, 127) for entry in state.backend.scan(begin, end)]
    keys, values = zip(*entries, strict=True)
    batch = table.decode(keys, values)
    batch.validate(full=True)
    assert batch.schema.field("value").type == pa.struct(list(state.schema))
    by_key = dict(zip(batch.column("user").to_pylist(), batch.column("value").to_pylist(), strict=True))
    assert [by_key[n] for n in range(len(rows))] == rows
    assert table.encode(batch) == (list(keys), list(values))

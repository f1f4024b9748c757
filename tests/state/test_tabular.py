"""State as tables: the entries of every kind of state become rows, and rows the same entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format import encoding
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import OperatorState, StateSchema
from stateflow.operators.binding import schemas
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import TIMERS, StateTable, TimerTable, tables_of
from stateflow.state.values.serializers import serializer_for
from stateflow.testing import KeyedHarness
from tests.jobs import operators
from tests.refusals.refusal import refused
from tests.state.keys.test_keyparts import KEY_TYPES, PARTS
from tests.state.stored_keys import timer_key

WINDOW = b"\x01" + bytes(16)
"""A namespace that this version does not write."""

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
FLOATS = serializer_for(float)


@dataclass
class Bought:
    user: int
    sku: str
    amount: float
    at: datetime


class Basket(sf.KeyedProcess[tuple[int, str], Bought, Bought]):
    last = sf.ValueState(Bought)
    total = sf.ReducingState(float, lambda one, two: one + two)
    mean = sf.AggregatingState(
        tuple[int, float],
        create=lambda: (0, 0.0),
        add=lambda acc, v: (acc[0] + 1, acc[1] + v),
        result=lambda acc: acc[1],
    )
    amounts = sf.ListState(float)
    by_sku = sf.MapState(str, int, ttl="7 days")
    by_day = sf.MapState(tuple[date, str], Decimal)
    idle = sf.Timer("event")
    soon = sf.Timer("processing")

    def process(self, key: Any, rows: Iterator[Bought], ctx: Any) -> Iterator[Bought]:
        for row in rows:
            self.last.value = row
            self.total.add(row.amount)
            self.mean.add(row.amount)
            self.amounts.add(row.amount)
            self.by_sku[row.sku] = self.by_sku.get(row.sku, 0) + 1
            self.by_day[(row.at.date(), row.sku)] = Decimal("1.50")
            self.idle.set(row.at + timedelta(hours=row.user))
            if row.user % 2:
                self.soon.set(timedelta(minutes=1))
        yield from ()

    @idle.fires
    def on_idle(self, key: Any, at: datetime, ctx: Any) -> Iterator[Bought]:
        yield from ()

    @soon.fires
    def on_soon(self, key: Any, at: datetime, ctx: Any) -> Iterator[Bought]:
        yield from ()


@pytest.fixture(scope="module")
def harness() -> Any:
    harness = KeyedHarness(Basket, key=("user", "sku"))
    for batch in range(3):
        harness.rows(*(Bought(n % 5, f"s\0{n % 2}", n / 2, NOON + timedelta(days=batch)) for n in range(20)))
    return harness


def operator_of(harness: Any) -> OperatorState:
    ids = harness._spec.state_ids
    states = {
        name: msgspec.structs.replace(s, id=ids[name]) for name, s in schemas(Basket, "baskets").items()
    }
    return operators.operator_of((), key=(("user", "int"), ("sku", "str")), states=states)


def test_all_tables_of_an_operator_hold_all_of_its_entries(harness: Any) -> None:
    # The index of a state's expiries has the id after the state's. Whoever loads tables makes it anew.
    index = harness._spec.state_ids["by_sku"] + 1
    assert index not in harness._spec.state_ids.values()
    everything = {
        key: value
        for key, value in harness._backend.scan(b"", b"\xff" * 8)
        if int.from_bytes(key[2:4]) != index
    }
    found: dict[bytes, bytes] = {}
    tables = tables_of(operator_of(harness))
    assert list(tables) == ["last", "total", "mean", "amounts", "by_sku", "by_day", TIMERS]
    for name, table in tables.items():
        entries = [
            entry for begin, end in table.ranges(0, 127) for entry in harness._backend.scan(begin, end)
        ]
        keys, values = zip(*entries, strict=True)
        batch = table.decode(keys, values)
        batch.validate(full=True)
        assert batch.schema == table.schema
        again = table.encode(batch)
        if name != TIMERS:
            assert again == (list(keys), list(values))
        assert set(found).isdisjoint(again[0])
        found.update(zip(*again, strict=True))
    assert found == everything


def rows_of(harness: Any, name: str) -> list[dict[str, Any]]:
    table = tables_of(operator_of(harness))[name]
    entries = [entry for begin, end in table.ranges(0, 127) for entry in harness._backend.scan(begin, end)]
    batch = table.decode([key for key, _ in entries], [value for _, value in entries])
    rows = batch.to_pylist()
    for row in rows:
        assert row.pop("key_group") == xxhash64((row["user"], row["sku"])) % 128
    return sorted(
        rows, key=lambda row: (row["user"], row["sku"], row.get("position", 0), str(row.get("map_key")))
    )


def test_a_value_is_a_struct_of_its_fields(harness: Any) -> None:
    last = {"user": 0, "sku": "s\x000", "amount": 5.0, "at": NOON + timedelta(days=2)}
    assert rows_of(harness, "last")[0] == {"user": 0, "sku": "s\x000", "value": last, "stored": None}


def test_a_list_is_a_row_per_element_in_its_order(harness: Any) -> None:
    rows = [row for row in rows_of(harness, "amounts") if row["user"] == 1 and row["sku"] == "s\x001"]
    rows.sort(key=lambda row: (row["slot"], row["position"]))
    assert [row["value"] for row in rows] == [0.5, 5.5] * 3
    assert [row["slot"] for row in rows] == sorted(row["slot"] for row in rows)


def test_a_map_is_a_row_per_entry(harness: Any) -> None:
    row = rows_of(harness, "by_sku")[0]
    assert row["map_key"] == row["sku"]
    assert row["expires_at"] > NOON - timedelta(days=365 * 100)
    days = rows_of(harness, "by_day")
    assert {
        (r["map_key"]["_1"], r["map_key"]["_2"]) for r in days if (r["user"], r["sku"]) == (0, "s\x000")
    } == {(NOON.date() + timedelta(days=n), "s\x000") for n in range(3)}
    assert {(r["value"], r["stored"]) for r in days} == {(Decimal("1.5"), b"1.50")}


def test_timers_are_a_row_each(harness: Any) -> None:
    rows = rows_of(harness, TIMERS)
    idle = {(row["user"], row["sku"]): row["at"] for row in rows if row["timer"] == "idle"}
    assert len(idle) == 10
    assert idle[(3, "s\x001")] == NOON + timedelta(days=2, hours=3)
    assert {row["user"] for row in rows if row["timer"] == "soon"} == {1, 3}


def value_table(key: Any = (("user", "int"),), **schema: Any) -> StateTable:
    return StateTable(
        key, 128, "total", StateSchema(**{"id": 7, "kind": "value", "value": "float", **schema})
    )


@given(st.data())
def test_every_key_comes_back(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    map_shape = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    kind = data.draw(st.sampled_from(["value", "map", "list"]))
    table = value_table(
        [(f"k{n}", name) for n, name in enumerate(shape)],
        kind=kind,
        map_key=",".join(map_shape) if kind == "map" else "",
    )
    codec, map_codec = KeyCodec(shape), KeyCodec(map_shape)
    keys = []
    for _ in range(data.draw(st.integers(1, 4))):
        parts = [data.draw(PARTS[name]) for name in shape]
        key = parts[0] if len(parts) == 1 else tuple(parts)
        full = encoding.prefix(xxhash64(key) % 128, 7) + codec.encode(key) + b"\0"
        if kind == "map":
            parts = [data.draw(PARTS[name]) for name in map_shape]
            full += map_codec.encode(parts[0] if len(parts) == 1 else tuple(parts))
        if kind == "list":
            full += encoding.list_position(
                data.draw(st.integers(0, 2**63 - 1)), data.draw(st.integers(0, 2**32 - 1))
            )
        keys.append(full)
    stored = [FLOATS.dumps(float(n)) for n in range(len(keys))]
    batch = table.decode(keys, stored)
    assert batch.schema == table.schema
    assert table.encode(batch) == (keys, stored)


def test_a_range_per_key_group() -> None:
    table = value_table()
    assert list(table.ranges(3, 5)) == [encoding.state_range(group, 7) for group in (3, 4, 5)]
    timers = TimerTable(
        [("user", "int")], 128, {"b": StateSchema(4, "timer", "event"), "a": StateSchema(2, "timer", "event")}
    )
    assert list(timers.ranges(3, 4)) == [encoding.state_range(group, n) for group in (3, 4) for n in (2, 4)]


def test_no_entries_are_an_empty_table() -> None:
    for table in (value_table(kind="map", map_key="int,str", ttl=5), timers_of("idle")):
        batch = table.decode([], [])
        assert (batch.num_rows, batch.schema) == (0, table.schema)
        assert table.encode(batch) == ([], [])


@pytest.mark.parametrize(
    "value",
    ["bool", "str", "date", "datetime", "decimal", "list<int>", "struct A{a:int,b?:map<str,datetime>}", "custom:a:1",
     "union<int,str>", "namedtuple P{x:timedelta}"],
)  # fmt: skip
def test_no_rows_are_no_entries_for_any_type(value: str) -> None:
    table = value_table(value=value)
    assert table.encode(table.decode([], [])) == ([], [])


def test_columns_that_the_key_has_already_get_an_underscore() -> None:
    table = value_table(
        [("Value", "int"), ("stored", "str"), ("key_group", "int"), ("key_group_", "int")], value="decimal"
    )
    assert table.schema.names == [
        "key_group__",
        "Value",
        "stored",
        "key_group",
        "key_group_",
        "value_",
        "stored_",
    ]
    assert table.names == {"key_group": "key_group__", "value": "value_", "stored": "stored_"}
    codec = KeyCodec(["int", "str", "int", "int"])
    keys = [encoding.prefix(xxhash64((1, "a", 2, 3)) % 128, 7) + codec.encode((1, "a", 2, 3)) + b"\0"]
    values = [serializer_for(Decimal).dumps(Decimal("1.50"))]
    assert table.encode(table.decode(keys, values)) == (keys, values)
    timers = TimerTable([("at", "int"), ("timer", "str")], 128, {"t": StateSchema(2, "timer", "event")})
    assert timers.schema.names == ["key_group", "at", "timer", "timer_", "at_"]
    batch = pa.record_batch(
        {"at": [1], "timer": ["x"], "timer_": ["t"], "at_": pa.array([NOON], pa.timestamp("us", "UTC"))}
    )
    keys, values = timers.encode(batch)
    assert timers.decode(keys[:1], values[:1]).to_pylist()[0]["at_"] == NOON


def timers_of(*names: str) -> TimerTable:
    schemas_of = {name: StateSchema(2 * n + 2, "timer", "event") for n, name in enumerate(names)}
    return TimerTable([("user", "str")], 128, schemas_of)


def timer_rows(timers: list[Any], users: list[Any], at: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"user": pa.array(users, pa.string()), "timer": pa.array(timers, pa.string()),
                            "at": pa.array(at, pa.timestamp("us", "UTC"))})  # fmt: skip


def test_a_timer_is_an_entry_in_its_queue_and_one_of_its_key() -> None:
    table = timers_of("a", "b")
    keys, values = table.encode(timer_rows(["b", "a"], ["x", "y"], [NOON, NOON - timedelta(days=90_000)]))
    micros = 1795176000_000_000
    encoded, group = KeyCodec(["str"]).encode("x"), xxhash64("x") % 128
    assert keys[0] == timer_key(group, 4, micros, encoded)
    assert (keys[2], values[2]) == (
        encoding.prefix(group, 5) + encoded + b"\0",
        micros.to_bytes(8, "big", signed=True),
    )
    assert values[:2] == [b"", b""]
    assert int.from_bytes(values[3], "big", signed=True) == micros - 90_000 * 86_400 * 10**6
    assert [(row["timer"], row["user"]) for row in table.decode(keys[:2], values[:2]).to_pylist()] == [
        ("b", "x"),
        ("a", "y"),
    ]


def test_timers_that_are_wrong_are_refused() -> None:
    table = timers_of("a", "b")
    with refused(UsageError, "no timer 'c'", "'a', 'b'"):
        table.encode(timer_rows(["c"], ["x"], [NOON]))
    with refused(UsageError, "timers: at holds 1 nulls"):
        table.encode(timer_rows(["a"], ["x"], [None]))
    with refused(UsageError, "timers: timer holds 1 nulls"):
        table.encode(timer_rows([None], ["x"], [NOON]))
    with refused(UsageError, "outside of the years 1 to 9999"):
        table.encode(timer_rows(["a"], ["x"], [2**62]))
    keys, values = table.encode(timer_rows(["a"], ["x"], [NOON]))
    with pytest.raises(UsageError, match="in no timer's queue"):
        table.decode(keys[1:], values[1:])
    window = keys[0][:-1] + WINDOW
    with refused(IncompatibleError, "timers", "entries under namespaces"):
        table.decode([window], [b""])


def test_a_state_named_as_the_table_of_timers_is_refused() -> None:
    states = {TIMERS: StateSchema(1, "value", "int"), "t": StateSchema(2, "timer", "event")}
    with refused(UsageError, "a state is named '_timers'"):
        tables_of(operators.operator_of(states=states))
    assert list(tables_of(operators.operator_of(states={TIMERS: states[TIMERS]}))) == [TIMERS]


def test_entries_that_are_not_this_states_are_refused() -> None:
    table = value_table()
    key = KeyCodec(["int"]).encode(5)
    with refused(UsageError, "state 'total'", "id 7", "another state"):
        table.decode([encoding.prefix(1, 8) + key + b"\0"], [FLOATS.dumps(1.0)])
    with refused(IncompatibleError, "state 'total'", "holds entries under namespaces"):
        table.decode([encoding.prefix(1, 7) + key + WINDOW], [FLOATS.dumps(1.0)])
    with refused(CorruptError, "state 'total': the state key", "ends too early"):
        table.decode([encoding.prefix(1, 7) + key], [FLOATS.dumps(1.0)])
    with refused(CorruptError, "goes on after its end"):
        table.decode([encoding.prefix(1, 7) + key + b"\0\0"], [FLOATS.dumps(1.0)])


GIVEN: list[tuple[str, Any]] = [
    ("int64", pa.array([1, 2], pa.int64())),
    ("int32", pa.array([1, 2], pa.int32())),
    ("uint8", pa.array([1, 2], pa.uint8())),
    ("dictionary", pa.array([1, 2]).dictionary_encode()),
]


@pytest.mark.parametrize(("_", "users"), GIVEN)
def test_columns_of_other_types_are_widened(_: str, users: Any) -> None:
    table = value_table(value="int", ttl=5)
    batch = pa.record_batch({"value": pa.array([3, 4], pa.int16()), "user": users})
    keys, values = table.encode(batch)
    assert table.decode(keys, values).select(["user", "value", "expires_at"]).to_pylist() == [
        {"user": 1, "value": 3, "expires_at": None},
        {"user": 2, "value": 4, "expires_at": None},
    ]


def test_nested_columns_are_fitted_by_name() -> None:
    table = value_table(value="struct A{a:int,when?:datetime,tags:list<struct B{x:float}>,m:map<str,int>}")
    value = pa.array(
        [
            None,
            {"m": [("k", 1)], "tags": [{"x": 1.5}, {"x": 2.5}], "a": 1},
            {"m": [], "tags": [], "a": 2},
        ],
        pa.struct(
            [("m", pa.map_(pa.large_string(), pa.int32())), ("tags", pa.large_list(pa.struct([("x", pa.float32())]))),
             ("a", pa.int32())]
        ),
    )  # fmt: skip
    batch = pa.record_batch({"user": [0, 1, 2], "value": value})
    keys, values = table.encode(batch.slice(1))
    assert table.decode(keys, values).column("value").to_pylist() == [
        {"a": 1, "when": None, "tags": [{"x": 1.5}, {"x": 2.5}], "m": [("k", 1)]},
        {"a": 2, "when": None, "tags": [], "m": []},
    ]
    optional = value_table(
        value="optional<struct A{a:int,when?:datetime,tags:list<struct B{x:float}>,m:map<str,int>}>"
    )
    keys, values = optional.encode(batch)
    assert [row is None for row in optional.decode(keys, values).column("value").to_pylist()] == [
        True,
        False,
        False,
    ]


def test_lists_and_maps_with_nulls_are_fitted() -> None:
    for value, array in (
        ("optional<list<int>>", pa.array([[1], None, [2, 3], []], pa.large_list(pa.int32()))),
        (
            "optional<map<str,int>>",
            pa.array([[("a", 1)], None, [("b", 2)], []], pa.map_(pa.large_string(), pa.int8())),
        ),
    ):
        table = value_table(value=value)
        batch = pa.record_batch(
            {"user": [9, 0, 1, 2, 3], "value": pa.concat_arrays([array.slice(0, 1), array])}
        ).slice(1)
        keys, values = table.encode(batch)
        assert table.decode(keys, values).column("value").to_pylist() == array.to_pylist()


def test_what_lies_behind_a_null_of_a_record_is_nobodys() -> None:
    table = value_table(value="optional<struct A{a:int}>")
    records = pa.StructArray.from_arrays([pa.array([1.5, 2.0])], ["a"], mask=pa.array([True, False]))
    keys, values = table.encode(pa.record_batch({"user": [0, 1], "value": records}))
    assert table.decode(keys, values).column("value").to_pylist() == [None, {"a": 2}]


def ints(*values: int | None) -> Any:
    return pa.array(values, pa.int64())


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"value": pa.array([1.5])}, r"the table has no column 'user': it needs one, of type int64"),
    ({}, {"user": ints(1)}, "the table has no column 'value': it needs one"),
    ({}, {"user": ints(None), "value": pa.array([1.5])}, "user holds 1 nulls: drop such rows"),
    ({}, {"user": pa.array(["1"]), "value": pa.array([1.5])}, "user holds string where int64 belongs: cast it"),
    ({}, {"user": pa.array([1.5]), "value": pa.array([1.5])}, "user holds double that does not fit int64"),
    ({}, {"user": ints(1), "value": pa.array([True])}, "value holds bool where double belongs"),
    ({"value": "datetime"}, {"user": ints(1), "value": pa.array([NOON.replace(tzinfo=None)])},
     "value holds timestamps without a time zone"),
    ({"value": "decimal"}, {"user": ints(1), "value": pa.array([1.5])}, r"value holds double where decimal128\(38, 18\)"),
    ({"value": "decimal"}, {"user": ints(1), "value": ints(None)}, "value holds 1 nulls"),
    ({"value": "struct A{a:int}"}, {"user": ints(1), "value": pa.array([{"a": 1, "b": 2}])},
     "value has a field 'b', which its type does not have: its fields are a"),
    ({"value": "struct A{a:list<int>}"}, {"user": ints(1), "value": pa.array([{"a": ["x"]}])},
     r"value\.a\[\] holds string where int64"),
    ({"kind": "list"}, {"user": ints(1), "slot": ints(1), "value": pa.array([1.5])}, "the table has no column 'position'"),
    ({"kind": "list"}, {"user": ints(1), "slot": ints(1), "position": ints(2**32), "value": pa.array([1.5])},
     "slot and position number the elements"),
    ({"kind": "list"}, {"user": ints(1), "slot": ints(-1), "position": ints(0), "value": pa.array([1.5])},
     "slot and position number the elements"),
    ({"kind": "map", "map_key": "int"}, {"user": ints(1), "map_key": ints(None), "value": pa.array([1.5])},
     "map_key holds 1 nulls"),
    ({"kind": "map", "map_key": "int,str"}, {"user": ints(1), "map_key": pa.array([{"_1": 1}]), "value": pa.array([1.5])},
     r"map_key\._2 holds 1 nulls"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "columns", "says"), REFUSED)
def test_a_table_that_does_not_fit_is_refused(
    schema: dict[str, Any], columns: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=f"^state 'total': {says}"):
        value_table(**schema).encode(pa.record_batch(columns))


def test_a_schema_is_checked_without_rows() -> None:
    table = value_table(value="struct A{a:int}", ttl=5)
    table.check(table.schema)
    table.check(pa.schema([("user", pa.int32()), ("value", pa.struct([("a", pa.int8())]))]))
    with refused(UsageError, "state 'total'", "column 'expires'", "key_group, user"):
        table.check(pa.schema([("user", pa.int32()), ("value", pa.struct([])), ("expires", pa.int64())]))
    with refused(UsageError, "value.a", "string", "int64"):
        table.check(pa.schema([("user", pa.int32()), ("value", pa.struct([("a", pa.string())]))]))
    with refused(UsageError, "no column 'value'"):
        table.check(pa.schema([("user", pa.int32())]))
    timers_of("a").check(timers_of("a").schema)


def test_the_key_group_of_a_row_is_that_of_its_key() -> None:
    table = value_table()
    batch = pa.record_batch(
        {"key_group": pa.array([1], pa.int32()), "user": ints(5), "value": pa.array([1.5])}
    )
    keys, _ = table.encode(batch)
    assert encoding.split(keys[0]).group == xxhash64(5) % 128
    other = StateTable([("user", "int")], 32768, "total", StateSchema(7, "value", "float"))
    assert encoding.split(other.encode(batch)[0][0]).group == xxhash64(5) % 32768

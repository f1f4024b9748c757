"""Values as typed columns: what is stored comes back from the table, by the text of its type alone."""

from __future__ import annotations

import dataclasses
import math
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.format.records import Shard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.values.schema import type_name
from stateflow.state.values.serializers import serializer_for
from tests.state.values.typed_values import (
    FLOATS,
    INSTANTS,
    INTS,
    NOON,
    ORDERS,
    SCALARS,
    STRUCTURED,
    TEXT,
    Event,
    Loose,
    Order,
    decoded,
    drawn,
    keys_for,
    table_of,
    with_value,
)


@pytest.mark.slow
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


@pytest.mark.slow
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
    schema = msgspec.structs.replace(ColumnLayout(columns).schema(), id=7)
    state = ColumnState([("k", "int")], schema, 128, "operator")
    backend = memory_backend()(
        Shard(0, 127, "memory"),
        tmp_path_factory.getbasetemp() / "shard",
        lambda _: tmp_path_factory.getbasetemp(),
    )
    state.attach(backend, range(128))
    state.put(pa.array(np.arange(len(rows))), pa.Table.from_pylist(rows, schema=state.schema))
    text = ",".join(f"{name}:{serializer_for(hint).schema}" for name, hint in columns.items())
    table = table_of(f"columns{{{text}}}", kind="columns")
    entries = [entry for begin, end in table.ranges(0, 127) for entry in backend.scan(begin, end)]
    keys, values = zip(*entries, strict=True)
    batch = table.decode(keys, values)
    batch.validate(full=True)
    assert batch.schema.field("value").type == pa.struct(list(state.schema))
    by_key = dict(zip(batch.column("user").to_pylist(), batch.column("value").to_pylist(), strict=True))
    assert [by_key[n] for n in range(len(rows))] == rows
    assert table.encode(batch) == (list(keys), list(values))

"""What a typed column cannot say is kept beside it, as it was stored: left-out fields, odd numbers, older types."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.state.values.serializers import CustomSerializer, serializer_for
from tests.refusals.refusal import refused
from tests.state.values.typed_values import (
    NOON,
    Colour,
    Level,
    New,
    Old,
    Order,
    Place,
    decoded,
    keys_for,
    table_of,
    with_value,
)


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
    with refused(UsageError, "state 'total'", "value.y is null"):
        table.encode(with_value(bare.slice(0, 1), pa.array(gap, type=table.schema.field("value").type)))


class Tagged(msgspec.Struct, tag="t"):
    a: int


def test_fields_that_the_text_does_not_tell_are_kept() -> None:
    table = table_of("struct Tagged{a:int}")
    stored = [serializer_for(Tagged).dumps(Tagged(4))]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [{"a": 4}]
    assert table.encode(batch)[1] == stored


def test_a_tag_is_written_with_a_value_that_a_table_has_changed() -> None:
    serializer = serializer_for(dict[str, Tagged | None])
    table = table_of(serializer.schema)
    batch = decoded(table, [serializer.dumps({"x": Tagged(4), "y": None})])
    assert batch.column("stored").to_pylist() == [None]
    changed = with_value(batch, pa.array([[("x", {"a": 5}), ("y", None)]], table.schema.field("value").type))
    assert table.encode(changed)[1] == [serializer.dumps({"x": Tagged(5), "y": None})]


def test_numbers_that_do_not_fit_are_null_and_kept() -> None:
    serializer = serializer_for(list[int])
    table = table_of(serializer.schema)
    stored = [serializer.dumps(value) for value in ([1, 2**63], [1, 2])]
    batch = decoded(table, stored)
    assert batch.column("value").to_pylist() == [[1, None], [1, 2]]
    assert table.encode(batch)[1] == stored
    with refused(UsageError, "state 'total'", "value[]", "holds 1 nulls", "but its type is not optional"):
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
    with refused(IncompatibleError, "another way (code 10)"):
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


def test_values_of_custom_serializers_stay_bytes() -> None:
    custom = serializer_for(CustomSerializer("csv", 2, lambda v: v.encode(), lambda raw, _: raw.decode()))
    table = table_of(custom.schema, ttl=5)
    stored = [custom.dumps("abc"), custom.dumps_with_expiry("abc", 9)]
    batch = decoded(table, stored)
    assert "stored" not in batch.schema.names
    assert batch.column("value").to_pylist() == [stored[0][1:]] * 2
    assert table.encode(batch)[1] == stored

"""Full keys: frozen bytes, byte order is value order, every part ends itself."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError, UsageError
from stateflow.format import encoding
from stateflow.format.scalars import KEY_TYPES
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused
from tests.state.stored_keys import timer_key

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\0"), max_size=6)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda unscaled: Decimal(f"{unscaled}e-18"))
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": INT64,
    "str": TEXT,
    "bytes": st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=6).map(bytes),
    "date": st.dates(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "decimal": DECIMALS,
}
SHAPES = st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4)


def values(shape: list[str]) -> st.SearchStrategy[Any]:
    return PARTS[shape[0]] if len(shape) == 1 else st.tuples(*[PARTS[name] for name in shape])


GOLDEN: list[tuple[str, Any, str]] = [
    ("bool", False, "00"),
    ("bool", True, "01"),
    ("int", 0, "8000000000000000"),
    ("int", -1, "7fffffffffffffff"),
    ("int", 2**63 - 1, "ffffffffffffffff"),
    ("int", -(2**63), "0000000000000000"),
    ("str", "", "0001"),
    ("str", "aé", "61c3a90001"),
    ("str", "a\0b", "6100ff620001"),
    ("bytes", b"\0\xff", "00ffff0001"),
    ("date", date(1970, 1, 1), "80000000"),
    ("date", date(1969, 12, 31), "7fffffff"),
    ("date", date(2026, 11, 20), "80005129"),
    ("datetime", datetime(1970, 1, 1, tzinfo=UTC), "8000000000000000"),
    ("datetime", datetime(2026, 11, 20, 9, 30, 0, 1, tzinfo=UTC), "800660b1e358f601"),
    ("decimal", Decimal(0), "80000000000000000000000000000000"),
    ("decimal", Decimal("1.5"), "800000000000000014d1120d7b160000"),
    ("decimal", Decimal("-0.000000000000000001"), "7fffffffffffffffffffffffffffffff"),
]


@pytest.mark.parametrize(("name", "value", "frozen"), GOLDEN)
def test_the_bytes_of_a_key_never_change(name: str, value: Any, frozen: str) -> None:
    codec = KeyCodec([name])
    assert codec.encode(value).hex() == frozen
    assert codec.decode(bytes.fromhex(frozen), 0) == (value, len(frozen) // 2)


def test_the_bytes_of_full_keys_never_change() -> None:
    key = KeyCodec(["int", "str"]).encode((7, "x"))
    assert key.hex() == "8000000000000007780001"
    assert (
        encoding.prefix(5, 2) + key + encoding.EMPTY_NAMESPACE
    ).hex() == "000500028000000000000007780001" + "00"
    assert encoding.list_position(42, 3).hex() == "000000000000002a00000003"
    assert timer_key(5, 9, 1, b"K").hex() == "0005" + "0009" + "8000000000000001" + "4b" + "00"


@given(st.data())
def test_byte_order_is_value_order(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    one, two = data.draw(values(shape)), data.draw(values(shape))
    encode = KeyCodec(shape).encode
    assert (encode(one) < encode(two)) == (one < two)
    assert (encode(one) == encode(two)) == (one == two)


@given(st.data())
def test_a_key_is_read_back_from_the_middle_of_anything(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    key, before, behind = data.draw(values(shape)), data.draw(st.binary()), data.draw(st.binary())
    codec = KeyCodec(shape)
    encoded = codec.encode(key)
    assert codec.decode(before + encoded + behind, len(before)) == (key, len(before) + len(encoded))


@given(st.data())
def test_no_key_is_the_beginning_of_another(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    one, two = data.draw(values(shape)), data.draw(values(shape))
    codec = KeyCodec(shape)
    if one != two:
        assert not codec.encode(one).startswith(codec.encode(two))


@given(st.data())
def test_a_cut_off_key_is_reported(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    codec = KeyCodec(shape)
    encoded = codec.encode(data.draw(values(shape)))
    with refused(CorruptError, "stateflow verify"):
        codec.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))], 0)


ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(38, 18),
}


@given(st.data())
def test_whole_columns_give_the_same_keys(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    rows = data.draw(st.lists(st.tuples(*[PARTS[name] for name in shape]), max_size=5))
    groups = [data.draw(st.integers(0, 32767)) for _ in rows]
    skipped = data.draw(st.integers(0, len(rows)))
    columns = [
        pa.array([row[at] for row in rows], ARROW[name]).slice(skipped) for at, name in enumerate(shape)
    ]
    codec = KeyCodec(shape)
    expected = [
        encoding.prefix(group, 3) + codec.encode(row if len(shape) > 1 else row[0]) + b"\0"
        for group, row in zip(groups[skipped:], rows[skipped:], strict=True)
    ]
    assert codec.encode_many(columns, np.array(groups[skipped:], dtype=np.int32), 3) == expected


def test_columns_of_other_kinds_give_the_same_keys() -> None:
    groups = np.array([1, 2])
    expected = [encoding.prefix(1, 3) + b"a\0\1" + b"\0", encoding.prefix(2, 3) + b"b\0\1" + b"\0"]
    text = KeyCodec(["str"])
    for column in (
        ["a", "b"],
        np.array(["a", "b"], dtype=object),
        pa.chunked_array([["a"], ["b"]]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.large_string()),
    ):
        assert text.encode_many([column], groups, 3) == expected
    numbers = KeyCodec(["int"])
    expected = [encoding.prefix(g, 3) + numbers.encode(n) + b"\0" for g, n in ((1, -5), (2, 6))]
    for column in (
        np.array([-5, 6]),
        np.array([-5, 6], dtype=np.int32),
        pa.array([-5, 6], pa.int8()),
        [-5, 6],
    ):
        assert numbers.encode_many([column], groups, 3) == expected


def test_a_composite_key_comes_back_named() -> None:
    codec = KeyCodec(["int", "str"], ["user", "sku"])
    key, _ = codec.decode(codec.encode((3, "a")), 0)
    assert (key.user, key.sku) == key == (3, "a")


def test_instants_are_the_same_key_in_every_zone() -> None:
    encode = KeyCodec(["datetime"]).encode
    utc = datetime(2020, 6, 1, 12, tzinfo=UTC)
    assert encode(utc) == encode(utc.astimezone(timezone(timedelta(hours=5))))


def test_an_instant_that_could_not_be_read_back_is_no_key() -> None:
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    with refused(UsageError, str(late), "the years 1 to 9999"):
        KeyCodec(["datetime"]).encode(late)


def test_equal_decimals_are_one_key() -> None:
    encode = KeyCodec(["decimal"]).encode
    assert encode(Decimal("1.50")) == encode(Decimal("1.5")) == encode(Decimal("15e-1"))


@given(st.integers(0, 32767), st.integers(0, 65535), st.binary())
def test_a_full_key_lies_in_the_ranges_of_its_group_and_state(group: int, state: int, body: bytes) -> None:
    full = encoding.prefix(group, state) + body
    assert encoding.split(full) == (group, state, body)
    begin, end = encoding.state_range(group, state)
    assert begin <= full < end
    begin, end = encoding.group_range(group, group)
    assert begin <= full < end
    begin, end = encoding.group_range(0, 32767)
    assert begin <= full < end


@given(INT64, INT64, st.binary(max_size=4))
def test_due_timers_are_a_range(timestamp: int, up_to: int, key: bytes) -> None:
    full = timer_key(4, 7, timestamp, key)
    begin, end = encoding.timer_range(4, 7, up_to)
    assert (begin <= full < end) == (timestamp <= up_to)
    assert encoding.split_timer(encoding.split(full).body) == (timestamp, key + b"\0")


def test_list_positions_are_ordered_by_batch_and_place() -> None:
    positions = [(1, 0), (1, 1), (2, 0), (300, 0), (300, 2**32 - 1)]
    encoded = [encoding.list_position(*position) for position in positions]
    assert encoded == sorted(encoded)
    assert len(set(encoded)) == len(positions)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("date", pa.array([2_932_897], pa.int32()).view(pa.date32())),
        ("datetime", pa.array([1 << 60]).view(pa.timestamp("us", "UTC"))),
    ],
)
def test_a_key_with_a_time_of_spark_that_python_has_not_is_no_damage(kind: str, column: Any) -> None:
    codec = KeyCodec([kind])
    [full] = codec.encode_many([column], np.array([0]), 1)
    with refused(UsageError, "outside of the years 1 to 9999", "`stateflow state export`"):
        codec.decode(full, 4)
    with refused(CorruptError, "ends too early", "`stateflow verify`"):
        codec.decode(full[:6], 4)

"""Rows that a batch put out, beside those that other code puts out for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stateflow.replay.comparison import ReplayReport, SinkChanges
from stateflow.replay.rows import DIFFERENT, GONE, NEW, compared


def test_rows_in_another_order_are_the_same() -> None:
    before = pa.table({"user": [1, 2, 2], "total": [1.5, 2.5, None]})
    after = pa.table({"total": [None, 2.5, 1.5], "user": [2, 2, 1]})

    assert compared(before, after, ["user"]).changed == 0


@pytest.mark.parametrize("keys", [["b", "a"], [2, 1], [{"x": 2}, {"x": 1}]])
def test_maps_with_their_entries_in_another_order_are_the_same(keys: list[Any]) -> None:
    pairs = [(key, number) for number, key in enumerate(keys)]
    kind = pa.map_(pa.scalar(keys[0]).type, pa.int64())
    here, there, other = (
        pa.table(
            {"m": pa.array([some], kind), "in": pa.array([[{"m": some}]], pa.list_(pa.struct({"m": kind})))}
        )
        for some in (pairs, pairs[::-1], pairs[:1])
    )
    assert compared(here, there, []).changed == 0
    assert compared(here, other, []).counts == {GONE: 1, NEW: 1}


def test_a_map_is_shown_by_the_names_of_its_entries() -> None:
    """They may be called like secrets, which reports hide."""
    column = pa.array([[("password", "hunter2")]], pa.map_(pa.string(), pa.string()))
    [change] = compared(pa.table({"m": column[:0]}), pa.table({"m": column}), []).changes
    assert change.after == {"m": {"password": "hunter2"}}


def test_a_row_that_is_there_twice_counts_twice() -> None:
    found = compared(pa.table({"a": [1, 1]}), pa.table({"a": [1, 1, 1]}), [])

    assert [(c.kind, c.after) for c in found.changes] == [(NEW, {"a": 1})]


def test_a_row_of_the_same_key_is_different_and_any_other_gone_or_new() -> None:
    before = pa.table({"user": [1, 2, 3], "total": [10, 20, 30]})
    after = pa.table({"user": [1, 2, 4], "total": [10, 40, 50]})

    found = compared(before, after, ["user"])

    assert found.counts == {GONE: 1, NEW: 1, DIFFERENT: 1}
    assert [(c.kind, c.key, c.before, c.after) for c in found.changes] == [
        (GONE, {"user": 3}, {"user": 3, "total": 30}, None),
        (DIFFERENT, {"user": 2}, {"user": 2, "total": 20}, {"user": 2, "total": 40}),
        (NEW, {"user": 4}, None, {"user": 4, "total": 50}),
    ]


def test_a_null_is_neither_an_empty_text_nor_the_mark_of_one() -> None:
    before = pa.table({"a": ["\x00", "", "x\x1f"], "b": ["", "\x00", "y"]})
    after = pa.table({"a": [None, "", "x"], "b": ["", "\x00\x00", "\x1fy"]})

    assert compared(before, after, []).counts == {GONE: 3, NEW: 3}


def test_what_a_table_has_as_a_wider_type_is_compared_as_the_rows_have_it() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    before = pa.table(
        {
            "N": pa.array([1], pa.int64()),
            "at": pa.array([at], pa.timestamp("us", "Europe/Berlin")),
            "more": pa.array([None], pa.string()),
        }
    )
    after = pa.table({"n": pa.array([1], pa.int32()), "at": pa.array([at], pa.timestamp("us", "UTC"))})

    found = compared(before, after, [])

    assert (found.changed, found.columns_gone, found.columns_new) == (0, (), ())


_NARROW = pa.struct({"a": pa.float32(), "n": pa.int8()})
_WIDE = pa.struct({"a": pa.float64(), "n": pa.int64()})


@pytest.mark.parametrize(
    ("delivered", "now", "counts"),
    [
        (pa.array([1.5, 2.0]), pa.array([1, 2]), {GONE: 1, NEW: 1}),
        (pa.array([1, 2]), pa.array([1.5, 2.0]), {GONE: 1, NEW: 1}),
        (pa.array([0.1], pa.float32()), pa.array([0.1], pa.float64()), {}),
        (pa.array([300]), pa.array([44], pa.int8()), {GONE: 1, NEW: 1}),
        (pa.array(["1"]), pa.array([1]), {}),
        # As data files of Iceberg have bytes.
        (
            pa.array([b"\xff", b"\xfe"], pa.large_binary()),
            pa.array([b"\xff", b"x"], pa.binary()),
            {GONE: 1, NEW: 1},
        ),
        (pa.array([b"\xff"], pa.binary(1)), pa.array([b"\xff"], pa.binary()), {}),
        (pa.array([None, {"a": 1}]), pa.nulls(2), {GONE: 1, NEW: 1}),
        (pa.array([float("nan"), 2.0]), pa.array([float("nan"), 2.0], pa.float32()), {}),
        (pa.array([float("nan")], pa.float32()), pa.array([float("nan")]), {}),
        (pa.array([[0.1, None]], pa.list_(pa.float32())), pa.array([[0.1, None]]), {}),
        (pa.array([[0.1]], pa.large_list(pa.float32())), pa.array([[0.1]]), {}),
        (pa.array([[0.2]], pa.list_(pa.float32())), pa.array([[0.1]]), {GONE: 1, NEW: 1}),
        (pa.array([[float("nan"), 0.1]], pa.list_(pa.float32())), pa.array([[float("nan"), 0.1]]), {}),
        (pa.array([{"a": 0.1, "n": 1}], _NARROW), pa.array([{"a": 0.1, "n": 1}], _WIDE), {}),
        (pa.array([{"a": 0.1, "n": 1}], _NARROW), pa.array([{"n": 1, "a": 0.1}]), {}),
        (pa.array([{"a": 0.1, "n": 1}], _NARROW), pa.array([{"a": 0.1, "n": 300}], _WIDE), {GONE: 1, NEW: 1}),
        (
            pa.array([[("x", [{"a": 0.1, "n": 1}])]], pa.map_(pa.string(), pa.list_(_NARROW))),
            pa.array([[("x", [{"a": 0.1, "n": 1}])]], pa.map_(pa.string(), pa.list_(_WIDE))),
            {},
        ),
    ],
)
def test_a_value_is_the_same_if_the_target_would_have_stored_it_so(
    delivered: pa.Array, now: pa.Array, counts: dict[str, int]
) -> None:
    assert compared(pa.table({"a": delivered}), pa.table({"a": now}), []).counts == counts


@pytest.mark.parametrize("size", [(12, 2), (18, 6), (38, 18)])
@pytest.mark.parametrize(("kind", "most"), [(pa.float64(), 10**9), (pa.float32(), 10**6)])
def test_money_is_the_same_in_a_decimal_and_in_a_float(
    size: tuple[int, int], kind: pa.DataType, most: int
) -> None:
    chance = random.Random(7)
    money = [Decimal(chance.randrange(-most, most)).scaleb(-2) for _ in range(2000)]

    def table(kind: pa.DataType, make: Callable[[Decimal], Any]) -> pa.Table:
        plain = pa.array([None, *map(make, money)], kind)
        return pa.table({"plain": plain, "within": pa.StructArray.from_arrays([plain], ["a"])})

    sides = table(pa.decimal128(*size), Decimal), table(kind, float)
    for before, after in (sides, sides[::-1]):
        found = compared(before, after, [])
        assert (found.after, found.changed, found.retyped) == (2001, 0, ())


_ONE, _TWO = pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int64(), "b": pa.int64()})


@pytest.mark.parametrize(
    ("delivered", "now", "others"),
    [
        (pa.array([True, True]), pa.array([1, 5]), 1),
        (pa.array([True, False]), pa.array([1.5, 0.0]), 1),
        (pa.array([Decimal("1.23"), Decimal("2.00")], pa.decimal128(10, 2)), pa.array([1.234, 2.0]), 1),
        (pa.array([Decimal("606.80"), Decimal("0.30")]), pa.array([606.8, 0.1 + 0.2]), 1),
        (pa.array([0.1, 606.8]), pa.array([Decimal("0.1000000000000000001"), Decimal("606.8")]), 1),
        (pa.array([7, 8]), pa.array(["007", "8"]), 1),
        (pa.array([{"a": 1}, None], _ONE), pa.array([{"a": 1, "b": 2}, None], _TWO), 1),
        (pa.array([{"a": 1}], _ONE), pa.array([{"a": 1, "b": None}], _TWO), 1),
        (pa.array([{"a": 1, "b": None}], _TWO), pa.array([{"a": 1}], _ONE), 1),
        (pa.array([[{"a": 1}]], pa.list_(_ONE)), pa.array([[{"a": 1, "b": 2}]], pa.list_(_TWO)), 1),
        (
            pa.array([[("x", {"a": 1})]], pa.map_(pa.string(), _ONE)),
            pa.array([[("x", {"a": 1, "b": 2})]], pa.map_(pa.string(), _TWO)),
            1,
        ),
    ],
)
def test_new_values_that_the_old_type_does_not_hold_are_others_and_both_types_are_named(
    delivered: pa.Array, now: pa.Array, others: int
) -> None:
    found = compared(pa.table({"A": delivered}), pa.table({"a": now}), [])
    assert found.counts == {GONE: others, NEW: others}
    assert found.retyped == (f"a from {delivered.type} to {now.type}",)

    sink = SinkChanges("totals")
    sink.take(3, found)
    sink.take(4, found)
    report = ReplayReport("orders", "orders", 3, 4, sinks={"totals": sink})
    assert report.findings == [f"sink 'totals' has columns of other types: {found.retyped[0]}"]
    assert not replace(report, sinks={"totals": SinkChanges("totals", retyped=found.retyped)}).is_same, (
        "lists that are empty are the same rows"
    )


def test_columns_that_only_one_side_has_are_named() -> None:
    found = compared(pa.table({"a": [1], "old": ["x"]}), pa.table({"a": [1], "new": [2]}), [])

    assert (found.changed, found.columns_gone, found.columns_new) == (0, ("old",), ("new",))


def test_a_row_that_loses_a_value_with_its_column_counts_once() -> None:
    before = pa.table({"a": [1, 2, 3], "old": ["x", None, "y"], "older": [None, None, "z"]})
    found = compared(before, pa.table({"a": [1, 2, 3]}), [])
    assert (found.changed, found.columns_gone, found.shortened) == (0, ("old", "older"), 2)
    found = compared(before, pa.table({"a": [1, 2, 4]}), [])
    assert (found.changed, found.shortened) == (2, 1), "the third row is gone as a whole"


def test_nested_values_are_compared_by_what_is_in_them() -> None:
    kind = pa.struct([("x", pa.list_(pa.int64())), ("raw", pa.binary())])
    one, other = {"x": [1, 2], "raw": b"\x00"}, {"x": [2, 1], "raw": b"\x00"}
    before, after = pa.table({"s": pa.array([one, one], kind)}), pa.table({"s": pa.array([one, other], kind)})

    assert compared(before, after, []).counts == {GONE: 1, NEW: 1}


def test_random_tables_differ_as_their_multisets_do() -> None:
    chance = random.Random(7)
    for _ in range(50):
        sides = [
            [(chance.randrange(4), chance.choice(["a", "b", None])) for _ in range(chance.randrange(12))]
            for _ in range(2)
        ]
        tables = [
            pa.table(
                {"k": pa.array([k for k, _ in s], pa.int64()), "v": pa.array([v for _, v in s], pa.string())}
            )
            for s in sides
        ]
        old, new = map(Counter, sides)
        found = compared(*tables, [])
        assert found.counts.get(GONE, 0) == (old - new).total()
        assert found.counts.get(NEW, 0) == (new - old).total()

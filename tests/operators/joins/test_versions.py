"""When a row gets its version, which of several counts, and when a version leaves."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stateflow.pipelines.ready.joins import AsofJoin, asof_join, latest_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.joins.driving import run
from tests.operators.ready.driving import SECOND, Driven

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema([("sku", pa.string()), ("amount", pa.int64()), ("ts", INSTANT)])
RIGHT = pa.schema(
    [("item", pa.string()), ("price", pa.decimal128(9, 2)), ("note", pa.string()), ("ts", INSTANT)]
)
LEFT_ROWS = "sku string, amount bigint, ts timestamp"
RIGHT_ROWS = "item string, price decimal(9,2), note string, ts timestamp"
OUT = "sku string, amount bigint, left_ts timestamp, price decimal(9,2), note string, right_ts timestamp"
ORDERS = KeyedRows("priced", row_type(LEFT_ROWS), ("sku",), ())
PRICES = KeyedRows("priced", row_type(RIGHT_ROWS), ("item",), ())


def asof(
    how: str = "left",
    keep: int | None = None,
    *,
    wait: bool = True,
    order_by: tuple[str, ...] = (),
    output: str = OUT,
) -> AsofJoin:
    length = None if keep is None else timedelta(microseconds=keep)
    right = replace(PRICES, order_by=order_by)
    return asof_join(ORDERS, right, output, times=("ts", "ts"), keep=length, wait=wait, how=how)


def table(schema: Any, *rows: tuple[Any, ...]) -> pa.Table:
    made = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist([{**row, "ts": row["ts"] * SECOND} for row in made], schema)


def test_a_row_waits_until_its_version_is_certain_unless_it_is_told_not_to() -> None:
    waiting, hasty = Driven(asof()), Driven(asof(wait=False))
    batches = [
        (table(LEFT, ("a", 1, 10)), table(RIGHT, ("a", None, "early", 5)), None),
        (table(LEFT), table(RIGHT, ("a", None, "in time", 9)), 8 * SECOND),
        (table(LEFT), table(RIGHT), 10 * SECOND - 1),
    ]
    for left, right, mark in batches:
        waiting.both(left, right, mark)
        hasty.both(left, right, mark)
    assert [row["note"] for row in hasty.rows] == ["early"]
    assert waiting.rows == []
    assert [row["note"] for row in waiting.both(table(LEFT), table(RIGHT), 10 * SECOND)] == ["in time"]


@pytest.mark.parametrize(
    ("order_by", "note"), [((), "c"), (("price",), "b"), (("-price",), "a"), (("ts", "item", "price"), "b")]
)
@pytest.mark.parametrize("seed", range(4))
def test_of_versions_of_one_time_the_last_by_order_counts_however_they_are_cut(
    order_by: tuple[str, ...], note: str, seed: int
) -> None:
    chance = random.Random(seed)
    values = [("1.00", "a"), ("3.00", "b"), ("2.00", "c"), ("3.00", "a")]
    right = [{"item": "a", "price": Decimal(price), "note": each, "ts": 5 * SECOND} for price, each in values]
    chance.shuffle(right)
    left = [{"sku": "a", "amount": 1, "ts": 9 * SECOND}]
    # The price is kept only to decide: nothing that comes out has it.
    declared = asof(order_by=order_by, output="sku string, amount bigint, note string")
    driven = run(declared, left, right, (LEFT, RIGHT), chance, 40 * SECOND)
    assert notes(driven.rows) == [(1, note)]


def stored(driven: Driven) -> list[bytes]:
    return [value for _, backend, _ in driven._shards for _, value in backend.scan(b"", b"\xff" * 8)]


@pytest.mark.parametrize("keep", [None, 100 * SECOND])
def test_a_version_leaves_when_the_watermark_reaches_the_next_one(keep: int | None) -> None:
    many, one, nothing = Driven(asof(keep=keep)), Driven(asof(keep=keep)), table(LEFT)
    many.both(nothing, table(RIGHT, ("a", None, "x", 1), ("a", None, "x", 5), ("a", None, "x", 9)), None)
    one.both(nothing, table(RIGHT, ("a", None, "x", 9)), None)
    many.both(nothing, table(RIGHT), 5 * SECOND)
    assert sum(map(len, stored(many))) > sum(map(len, stored(one))), "the version of 5 s is valid until 9 s"
    many.both(nothing, table(RIGHT), 9 * SECOND)
    one.both(nothing, table(RIGHT), 9 * SECOND)
    assert sorted(stored(many)) == sorted(stored(one))


def notes(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["amount"], row["note"]) for row in rows]


@pytest.mark.parametrize("order", ["ts", ""])
def test_a_row_gets_the_version_that_is_known_when_it_comes(order: str) -> None:
    out = "sku string, amount bigint, note string"
    driven = Driven(latest_join(ORDERS, PRICES, out, order=order, ttl=None, how="left"))
    assert notes(driven.both(table(LEFT, ("a", 1, 9), (None, 2, 9)), table(RIGHT), None)) == [
        (2, None),
        (1, None),
    ]
    first = table(RIGHT, ("a", None, "x", 5), ("b", None, "other", 5))
    assert notes(driven.both(table(LEFT, ("a", 3, 1)), first, None)) == [(3, "x")]
    driven.rescale(3)
    assert driven.both(table(LEFT), table(RIGHT, ("a", None, "older", 4)), None) == []
    known = "x" if order else "older"
    assert notes(driven.both(table(LEFT, ("a", 4, 1), ("c", 5, 1)), table(RIGHT), None)) == [
        (4, known),
        (5, None),
    ]
    assert driven.entries() == 2


@pytest.mark.parametrize("time", ["ts", ""])
def test_the_newest_is_the_last_by_order_whenever_it_came(time: str) -> None:
    prices = replace(PRICES, order_by=("price",))
    out = "sku string, amount bigint, note string"
    driven = Driven(latest_join(ORDERS, prices, out, order=time, ttl=None, how="left"))
    second, first = Decimal("2.00"), Decimal("1.00")
    driven.both(table(LEFT), table(RIGHT, ("a", second, "second", 5), ("b", first, "of b", 5)), None)
    driven.rescale(3)
    # It comes later and is later by event time, and is an older version all the same.
    driven.both(table(LEFT), table(RIGHT, ("a", first, "first", 9)), None)
    rows = driven.both(table(LEFT, ("a", 1, 1), ("b", 2, 1)), table(RIGHT), None)
    assert sorted(notes(rows)) == [(1, "second"), (2, "of b")]
    # Of one version: the one of the later time, or else the one that came last.
    for amount, note, at in ((3, "younger", 7), (4, "elder", 6)):
        known = "younger" if time else note
        rows = driven.both(table(LEFT, ("a", amount, 1)), table(RIGHT, ("a", second, note, at)), None)
        assert notes(rows) == [(amount, known)]


def test_an_inner_join_leaves_rows_without_a_version_out() -> None:
    out = "sku string, amount bigint, note string"
    driven = Driven(latest_join(ORDERS, PRICES, out, order="", ttl=None, how="inner"))
    rows = table(LEFT, ("a", 1, 9), ("b", 2, 9), (None, 3, 9))
    assert notes(driven.both(rows, table(RIGHT, ("b", None, "y", 5)), None)) == [(2, "y")]

"""What a test sees of a state's feed, without Spark: the rows that a run would put out for the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

import stateflow as sf
from stateflow.errors import UsageError, UserCodeError
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int
    sku: str
    amount: float


class Cart(sf.KeyedProcess[int, Order, Order]):
    total = sf.ValueState(float, default=0.0, ttl="1 hour")
    items = sf.MapState(str, int)
    closing = sf.Timer("processing")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Iterator[Order]:
        for row in rows:
            if row.sku == "clear":
                self.total.clear()
                self.items.clear()
                return
            self.total.value += row.amount
            self.items[row.sku] = self.items.get(row.sku, 0) + 1
            yield row

    @closing.fires
    def on_closing(self, key: int, ctx: sf.Context) -> Iterator[Order]:
        yield from ()


def told(harness: Any, state: str) -> list[tuple[Any, ...]]:
    names = ("user", "map_key", "kind", "before", "after", "slot")
    return [tuple(row[name] for name in names if name in row) for row in harness.changes(state)]


def test_a_harness_shows_the_feed_of_the_last_batch() -> None:
    harness = KeyedHarness(Cart, key="user")
    assert harness.changes("total") == []
    harness.rows(Order(1, "tea", 2.0), Order(1, "tea", 1.0), Order(2, "jam", 5.0))
    assert told(harness, "total") == [(1, "put", None, 3.0, 1), (2, "put", None, 5.0, 1)]
    assert told(harness, "items") == [(1, "tea", "put", None, 2, 1), (2, "jam", "put", None, 1, 1)]
    assert [row["time"] for row in harness.changes("items")] == [harness.now] * 2
    assert {row["state"] for row in harness.changes("items")} == {"items"}
    harness.rows(Order(1, "tea", 0.0), Order(2, "clear", 0.0))
    assert told(harness, "total") == [(2, "delete", 5.0, None, 2)], "an equal value is none"
    harness.advance(now=timedelta(hours=2))
    assert told(harness, "total") == [(1, "expire", 3.0, None, 3)]
    assert told(harness, "items") == []


def test_a_batch_that_fails_has_no_rows() -> None:
    class Failing(Cart):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Iterator[Order]:
            rows = list(rows)
            yield from super().process(key, rows, ctx)
            if any(row.amount < 0 for row in rows):
                raise ValueError("a negative amount")

    harness = KeyedHarness(Failing, key="user")
    with refused(UserCodeError, "a negative amount"):
        harness.rows(Order(1, "tea", -2.0))
    assert harness.changes("total") == []


def test_columnar_state_has_the_same_rows() -> None:
    def sums(rows: pa.Table, state: Any, ctx: Any) -> pa.Table:
        keys = rows.column("user").combine_chunks()
        state.put(keys, pa.table({"total": rows.column("amount")}))
        return rows

    harness = ColumnarHarness(sums, Order, key="user", state={"total": float}, output=Order)
    harness.rows(Order(1, "tea", 2.0))
    harness.rows(Order(1, "tea", 3.0), Order(2, "tea", 1.0))
    (state,) = harness.recorded().operator.states
    assert [(row["user"], row["before"], row["after"], row["slot"]) for row in harness.changes(state)] == [
        (1, {"total": 2.0}, {"total": 3.0}, 2),
        (2, None, {"total": 1.0}, 2),
    ]


def test_what_has_no_feed_is_refused_in_one_sentence() -> None:
    harness = KeyedHarness(Cart, key="user")
    with refused(UsageError, "has no state 'totl'"):
        harness.changes("totl")
    with refused(UsageError, "'closing' of Cart", "a timer, which has no feed"):
        harness.changes("closing")

    @sf.pipeline("carts")
    def carts(flow: sf.Flow, *, input: str) -> None:
        rows = flow.source("orders", sf.delta(input), Order)
        counted = rows.key_by("user").aggregate("counted", "user bigint, n bigint", n=sf.count())
        counted.collect("counts", sf.memory("harness-feeds"))

    ready = ColumnarHarness.of(carts.build({"input": "/orders"}), "counted")
    ready.rows(Order(1, "tea", 2.0))
    state = next(iter(ready.recorded().operator.states))
    with refused(UsageError, "the states of counted (", ") have no feed"):
        ready.changes(state)

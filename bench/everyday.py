"""What people do most: small batches of a keyed operator, a large batch of windows, an upsert, two sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import stateflow as sf
from bench.generate import FIRST_TIME
from bench.operators import ONE_FILE, TimedEvent

AGAIN = 3_000
"""By how many numbers a twentieth of the growing keys of a batch reach into the batch before."""


@dataclass
class Order:
    user: str
    amount: float
    ts: datetime


@dataclass
class Balance:
    user: str
    n: int
    total: float


@dataclass
class Window:
    user: int
    window_start: datetime
    n: int
    total: float


@dataclass
class Total:
    user: int
    n: int
    total: float


class Balances(sf.KeyedProcess[str, Order, Balance]):
    orders = sf.ValueState(int, default=0)
    total = sf.ValueState(float, default=0.0)

    def process(self, key: str, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Balance]:
        for row in rows:
            self.orders.value += 1
            self.total.value += row.amount
        yield Balance(key, self.orders.value, self.total.value)


def _source(flow: sf.Flow, uid: str, path: str, **time: Any) -> sf.Stream:
    return flow.source(uid, sf.delta(path, options=ONE_FILE), TimedEvent, **time)


def _orders(flow: sf.Flow, uid: str, path: str) -> sf.Stream:
    """Users by their names."""

    def named(frame: Any) -> Any:
        return frame.selectExpr("concat('user-', user) as user", "amount", "ts")

    return _source(flow, uid, path).transform(named, type=Order)


@sf.pipeline("everyday-balances")
def balances(flow: sf.Flow, *, input: str, output: str) -> None:
    by_user = _orders(flow, "orders", input).key_by("user")
    by_user.process("balances", Balances).append("output", sf.delta(output))


@sf.pipeline("everyday-two-tables")
def two_tables(flow: sf.Flow, *, input: str, output: str) -> None:
    by_user = _orders(flow, "orders", input).key_by("user")
    by_user.process("balances", Balances).append("output", sf.delta(output))
    flow.state_changes("balances", state="total").append("changes", sf.delta(f"{output}-changes"))


@sf.pipeline("everyday-two-sources")
def two_sources(flow: sf.Flow, *, input: str, other: str, output: str) -> None:
    both = _orders(flow, "orders", input).union(_orders(flow, "others", other))
    both.key_by("user").process("balances", Balances).append("output", sf.delta(output))


@sf.pipeline("everyday-windows")
def windows(flow: sf.Flow, *, input: str, output: str) -> None:
    keyed = _source(flow, "events", input, event_time="ts", watermark="0 seconds").key_by("user")
    ended = keyed.window(sf.tumbling("1 minute")).aggregate(
        "windows", Window, n=sf.count(), total=sf.sum("amount")
    )
    ended.append("output", sf.delta(output))


@sf.pipeline("everyday-upserts")
def upserts(flow: sf.Flow, *, input: str, output: str) -> None:
    by_user = _source(flow, "events", input).key_by("user")
    by_user.aggregate("totals", Total, n=sf.count(), total=sf.sum("amount")).upsert(
        "output", sf.delta(output)
    )


@sf.pipeline("everyday-last-rows")
def last_rows(flow: sf.Flow, *, input: str, output: str) -> None:
    """The last row of each key, which has a text."""
    rows = _source(flow, "events", input, event_time="ts", watermark="0 seconds").transform(
        lambda frame: frame.selectExpr("user", "concat('user-', user) as name", "amount", "ts"),
        type="user long, name string, amount double, ts timestamp",
    )
    rows.key_by("user").latest("last").upsert("output", sf.delta(output))


@sf.pipeline("everyday-growing-keys")
def growing(flow: sf.Flow, *, input: str, output: str) -> None:
    """Numbers of orders as keys, a few of which come again in the next batch."""
    number = f"(unix_micros(ts) - {FIRST_TIME}) div 1000"

    def numbered(frame: Any) -> Any:
        return frame.selectExpr(
            f"{number} - if({number} % 20 = 0, {AGAIN}L, 0L) as number", "user", "amount", "ts"
        )

    rows = _source(flow, "events", input).transform(
        numbered, "number long, user long, amount double, ts timestamp"
    )
    rows.upsert("output", sf.delta(output), keys="number", order_by="ts")

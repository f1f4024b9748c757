"""A job that several Sparks carry on in turn: state of three kinds, timers, a window, an upsert and an append."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: float
    at: datetime


@dataclass
class Total:
    user: int
    total: float


@dataclass
class PerMinute:
    user: int
    window_start: datetime
    total: float


class Sum(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    amounts = sf.ListState(float)
    minutes = sf.MapState(str, float)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            self.total.value += row.amount
            self.amounts.add(row.amount)
            minute = f"{row.at:%M}"
            self.minutes[minute] = self.minutes.get(minute, 0.0) + row.amount
        assert sum(self.amounts.get()) == sum(self.minutes.values()) == self.total.value
        yield Total(key, self.total.value)


@sf.pipeline("turns")
def turns(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source("orders", sf.files(input, "json"), Order, event_time="at", watermark="0 seconds")
    keyed = orders.key_by("user")
    totals = keyed.process("sum", Sum)
    totals.upsert("totals", sf.delta(f"{output}/totals"), keys=["user"])
    minutes = keyed.window(sf.tumbling("1 minute")).aggregate("per-minute", PerMinute, total=sf.sum("amount"))
    minutes.append("minutes", sf.delta(f"{output}/minutes"))

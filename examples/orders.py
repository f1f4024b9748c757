"""Running totals per user, exactly once from one Delta table into another.

stateflow run examples/orders.py:orders -p input=/tmp/orders \\
        -p output=/tmp/totals --checkpoint-dir /tmp/checkpoints
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


@dataclass
class Total:
    user: int
    orders: int
    total: float


class Balance(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0, queryable=True)
    orders = sf.ValueState(int, default=0)

    def process(
        self, key: int, rows: Iterator[Order], ctx: sf.Context
    ) -> Iterator[Total]:
        for row in rows:
            self.total.value += row.amount
            self.orders.value += 1
            ctx.metrics.counter("orders").inc()
        yield Total(key, self.orders.value, self.total.value)


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, input: str, output: str) -> None:
    events = flow.source(
        "events", sf.delta(input, options={"maxFilesPerTrigger": "1"}), Order
    )
    totals = events.key_by("user", order_by="ts").process("balance", Balance)
    totals.append("totals", sf.delta(output))

"""Running totals whose batches stop in the middle while a gate is shut, so that a test decides what happens meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import stateflow as sf

PATIENCE = 600
"""Seconds after which a batch goes on by itself: a test that failed leaves nothing that waits for ever."""


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
    total = sf.ValueState(float, default=0.0)
    orders = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            self.total.value += row.amount
            self.orders.value += 1
        yield Total(key, self.orders.value, self.total.value)


class GatedBalance(Balance):
    def open(self, ctx: sf.Context) -> None:
        """A file `inside` says that a batch is in here; it is out again when there is no file `shut`."""
        gate = Path(str(ctx.parameters["gate"]))
        if not (gate / "shut").exists():
            return
        (gate / "inside").touch()
        end = time.monotonic() + PATIENCE
        while (gate / "shut").exists() and time.monotonic() < end:
            time.sleep(0.05)


@sf.pipeline("gated")
def gated(flow: sf.Flow, *, input: str, output: str, gate: str) -> None:
    events = flow.source("events", sf.delta(input, options={"maxFilesPerTrigger": "1"}), Order)
    totals = events.key_by("user", order_by="ts").process("balance", GatedBalance)
    totals.append("totals", sf.delta(output))

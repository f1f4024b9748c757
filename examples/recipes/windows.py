from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Order:
    user: str
    amount: float
    ts: datetime


@dataclass
class PerMinute:
    user: str
    window_start: datetime
    orders: int
    total: float


@sf.pipeline("windows")
def windows(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source(
        "orders", sf.files(input, "json"), Order, event_time="ts",
        watermark="10 seconds",
    )
    minutes = orders.key_by("user").window(
        sf.tumbling("1 minute"), lateness="1 minute"
    )
    totals = minutes.aggregate(
        "per-minute", PerMinute, orders=sf.count(), total=sf.sum("amount")
    )
    totals.append("minutes", sf.delta(output))
    totals.side("late").append("late", sf.delta(f"{output}-late"))

from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Order:
    id: str
    amount: float
    ts: datetime


@dataclass
class Payment:
    order: str
    method: str
    ts: datetime


@dataclass
class Settled:
    id: str
    amount: float
    method: str | None


@sf.pipeline("joins")
def joins(flow: sf.Flow, *, orders: str, payments: str, output: str) -> None:
    left = flow.source(
        "orders", sf.files(orders, "json"), Order, event_time="ts",
        watermark="1 minute",
    )
    right = flow.source(
        "payments", sf.files(payments, "json"), Payment, event_time="ts",
        watermark="1 minute",
    )
    within = ("0 minutes", "30 minutes")
    settled = left.key_by("id").join(
        "settle", right.key_by("order"), Settled, within=within, how="left"
    )
    settled.append("settled", sf.delta(output))

from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Customer:
    id: int
    tier: str
    since: datetime


@dataclass
class Order:
    customer: int
    amount: float
    ts: datetime


@dataclass
class Billed:
    customer: int
    amount: float
    ts: datetime
    tier: str | None


@sf.pipeline("slowly-changing")
def slowly_changing(
    flow: sf.Flow, *, customers: str, orders: str, output: str
) -> None:
    versions = flow.source(
        "customers", sf.files(customers, "json"), Customer, event_time="since",
        watermark="1 minute",
    )
    incoming = flow.source(
        "orders", sf.files(orders, "json"), Order, event_time="ts",
        watermark="1 minute",
    )
    billed = incoming.key_by("customer").join_asof(
        "bill", versions.key_by("id"), Billed, how="left"
    )
    billed.append("billed", sf.delta(output))

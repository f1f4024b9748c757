from collections.abc import Iterator
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


class Bill(sf.ConnectedProcess[int, Customer, Order, Billed]):
    versions = sf.MapState(datetime, str)  # tier by the time from which it holds

    def process_left(self, id: int, customers: Iterator[Customer], ctx: sf.Context) -> None:
        for customer in customers:
            self.versions[customer.since] = customer.tier

    def process_right(self, id: int, orders: Iterator[Order], ctx: sf.Context) -> Iterator[Billed]:
        history = sorted(self.versions.items())
        for order in orders:
            tiers = [tier for since, tier in history if since <= order.ts]
            yield Billed(id, order.amount, order.ts, tiers[-1] if tiers else None)


@sf.pipeline("slowly-changing")
def slowly_changing(flow: sf.Flow, *, customers: str, orders: str, output: str) -> None:
    versions = flow.source("customers", sf.files(customers, "json"), Customer).key_by("id")
    incoming = flow.source("orders", sf.files(orders, "json"), Order).key_by("customer")
    versions.connect(incoming).process("bill", Bill).append("billed", sf.delta(output))

from dataclasses import dataclass
from datetime import date, datetime

import stateflow as sf


@dataclass
class Order:
    id: str
    shop: str
    ts: datetime


@dataclass
class Payment:
    order_id: str
    ts: datetime


@dataclass
class Settled:
    shop: str
    left_ts: datetime  # both have a `ts`: this is the order's
    order_id: str | None  # the payment's, if there is one


@dataclass
class OfDay:
    shop: str
    day: date
    paid: bool


@dataclass
class Rate:
    shop: str
    day: date
    orders: int
    paid: int


def of_day(rows):
    paid = "order_id is not null as paid"
    return rows.selectExpr("shop", "cast(left_ts as date) as day", paid)


@sf.pipeline("chains")
def chains(flow, *, orders: str, payments: str, output: str, late: str):
    time = {"event_time": "ts", "watermark": "10 minutes"}
    ordered = flow.source("orders", sf.files(orders, "json"), Order, **time)
    paid = flow.source("payments", sf.files(payments, "json"), Payment, **time)
    once = ordered.deduplicate("once", by="id", within="1 day")
    once.side("late").append("late", sf.delta(late))
    settled = once.key_by("id").join(
        "settle", paid.key_by("order_id"), Settled,
        within=("0 minutes", "1 hour"), how="left",
    )
    days = settled.transform(of_day, type=OfDay).key_by("shop", "day")
    rate = days.aggregate(
        "rate", Rate, orders=sf.count(), paid=sf.count(where="paid")
    )
    rate.upsert("rate", sf.delta(output))  # by shop and day

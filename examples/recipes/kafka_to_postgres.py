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


@sf.pipeline("kafka-to-postgres")
def kafka_to_postgres(flow: sf.Flow, *, brokers: str, database: str) -> None:
    orders = flow.source(
        "orders", sf.kafka("orders", bootstrap=brokers), Order,
        event_time="ts", watermark="10 seconds",
    )
    totals = orders.key_by("user").window(sf.tumbling("1 minute")).aggregate(
        "per-minute", PerMinute, emit="changes",
        orders=sf.count(), total=sf.sum("amount"),
    )
    table = sf.postgres("public.per_minute", connection=database, create=True)
    totals.upsert("minutes", table)

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg2 import connect

import stateflow as sf

TAKE = """INSERT INTO deliveries VALUES (%s, %s, %s) ON CONFLICT (key)
    DO UPDATE SET slot = excluded.slot, record = excluded.record
    WHERE deliveries.slot < excluded.slot"""
TAKEN = "SELECT 1 FROM deliveries WHERE key = %s AND slot = %s AND record = %s"
INSERT = "INSERT INTO orders (id, amount, key, slot) VALUES (%s, %s, %s, %s)"


@dataclass
class Order:
    id: str
    amount: float


@sf.pipeline("postgres")
def postgres(flow: sf.Flow, *, input: str, database: str) -> None:
    def deliver(frame: Any, delivery: sf.Delivery) -> None:
        mine = (delivery.key, delivery.slot, delivery.record)
        rows = [(r.id, r.amount, *mine[:2]) for r in frame.toLocalIterator()]
        with closing(connect(database)) as link, link, link.cursor() as cursor:
            cursor.execute(TAKE, mine)
            if cursor.rowcount == 1:
                cursor.executemany(INSERT, rows)
                return
            cursor.execute(TAKEN, mine)
            if cursor.fetchone() is None:
                raise RuntimeError(f"others took the slot of {mine}: a copy?")

    orders = flow.source("orders", sf.files(input, "json"), Order)
    orders.for_each_batch("orders", deliver)

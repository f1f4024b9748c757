from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg2 import connect

import stateflow as sf

TAKE = """INSERT INTO deliveries (key, slot) VALUES (%s, %s)
    ON CONFLICT (key) DO UPDATE SET slot = excluded.slot
    WHERE deliveries.slot < excluded.slot"""
INSERT = "INSERT INTO orders (id, amount, key, slot) VALUES (%s, %s, %s, %s)"


@dataclass
class Order:
    id: str
    amount: float


@sf.pipeline("postgres")
def postgres(flow: sf.Flow, *, input: str, database: str) -> None:
    def deliver(frame: Any, delivery: sf.Delivery) -> None:
        taken = (delivery.key, delivery.slot)
        rows = [(row.id, row.amount, *taken) for row in frame.toLocalIterator()]
        with (
            closing(connect(database)) as connection,
            connection,
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute(TAKE, taken)
            if cursor.rowcount == 1:  # otherwise these rows are there
                cursor.executemany(INSERT, rows)

    flow.source("orders", sf.files(input, "json"), Order).for_each_batch(
        "orders", deliver
    )

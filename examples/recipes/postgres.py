from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg2 import connect

import stateflow as sf

TAKE = """INSERT INTO deliveries (key, slot, record) VALUES (%s, %s, %s)
    ON CONFLICT (key) DO UPDATE
    SET slot = excluded.slot, record = excluded.record
    WHERE deliveries.slot < excluded.slot"""
TAKEN = "SELECT slot, record FROM deliveries WHERE key = %s"
INSERT = "INSERT INTO orders (id, amount, key, slot) VALUES (%s, %s, %s, %s)"


@dataclass
class Order:
    id: str
    amount: float


@sf.pipeline("postgres")
def postgres(flow: sf.Flow, *, input: str, database: str) -> None:
    def deliver(frame: Any, delivery: sf.Delivery) -> None:
        mine = (delivery.slot, delivery.record)
        of = (delivery.key, delivery.slot)
        rows = [(row.id, row.amount, *of) for row in frame.toLocalIterator()]
        with (
            closing(connect(database)) as connection,
            connection,
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute(TAKE, (delivery.key, *mine))
            if cursor.rowcount == 1:
                cursor.executemany(INSERT, rows)
                return
            # The rows are there if it is this record that has the slot.
            cursor.execute(TAKEN, (delivery.key,))
            is_in = cursor.fetchone()
            if is_in != mine:
                raise RuntimeError(f"a copy of the job? {is_in} is in: {mine}")

    flow.source("orders", sf.files(input, "json"), Order).for_each_batch(
        "orders", deliver
    )

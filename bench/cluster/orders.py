"""The input: so many rows a second go to the topic, whatever happens to its broker. A row is known by its number alone."""

from __future__ import annotations

import json
import random
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.cluster.servers import TOPIC
from tests.spark.murder_evidence import ITEMS, USERS
from tests.spark.murder_pipelines import Order

PATIENCE = 300


def order(number: int) -> Order:
    chance = random.Random(number)
    return Order(number, chance.randrange(USERS), chance.randrange(ITEMS), chance.randrange(100))


def sent(address: str) -> int:
    """How many rows the topic has: a row's offset is its number, since there is one partition and no transaction."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=PATIENCE)[1])
    finally:
        consumer.close()


class Sender:
    """Sends in a thread until it is told to end. A broker that is away is waited for; nothing is sent twice."""

    def __init__(self, address: str, rate: int) -> None:
        self.next = sent(address)
        self._rate = rate
        self._over = threading.Event()
        patient = {"enable.idempotence": True, "message.timeout.ms": 1000 * PATIENCE, "linger.ms": 50}
        self._producer = Producer({"bootstrap.servers": address, **patient})
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._send, name="sender")
        self._thread.start()

    def end(self) -> None:
        """When all that it has sent is in the topic."""
        self._over.set()
        self._thread.join()
        if left := self._producer.flush(PATIENCE):
            self._failed.append(f"{left} rows are not in the topic")
        if self._failed:
            raise AssertionError(f"the input is not what it was to be: {self._failed[:3]}")

    def _send(self) -> None:
        while not self._over.is_set():
            until = time.monotonic() + 1
            for number in range(self.next, self.next + self._rate):
                self._producer.produce(
                    TOPIC, json.dumps(vars(order(number))), partition=0, callback=self._told
                )
            self.next += self._rate
            self._producer.poll(0)
            self._over.wait(max(0, until - time.monotonic()))

    def _told(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(str(error))

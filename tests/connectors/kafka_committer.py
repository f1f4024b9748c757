"""A process that carries out decided records for a topic, one slot after another, until somebody kills it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa

from stateflow.connectors import Prepared
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.sink import KafkaAppend
from stateflow.connectors.kafka.topic import KafkaTopic
from tests.connectors.decided import DecidedRecords, carry_out

_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("size", pa.int32())])


@dataclass(frozen=True, kw_only=True)
class Records(DecidedRecords):
    """Each has as many messages, `SLOT-NUMBER`."""

    topic: str
    address: str
    messages: int

    def decide(self) -> None:
        known = KafkaTopic((self.topic,), bootstrap=self.address)
        cluster = Cluster(known)
        cluster.make_slots()
        topic_id = cluster.facts().id
        payload = {
            "topic": self.topic, "bootstrap": self.address, "connection": "", "options": {}, "topic_id": topic_id, "exactly_once": True,
        }  # fmt: skip
        self.root.mkdir()
        for slot in range(1, self.slots + 1):
            values = [f"{slot}-{k}".encode() for k in range(self.messages)]
            staged = self.staged(slot, pa.record_batch([values, values, [1] * len(values)], schema=_SCHEMA))
            prev = slot - 1 or None
            self.keep(
                slot, Prepared("kafka_append", known.place, prev, (), payload, (staged,), self.messages)
            )

    @property
    def wanted(self) -> list[str]:
        return sorted(f"{slot}-{k}" for slot in range(1, self.slots + 1) for k in range(self.messages))

    def carry_on(self) -> subprocess.Popen[bytes]:
        """A process with all the records that are not finished."""
        arguments = [str(self.root), str(self.finished + 1), str(self.slots), self.topic]
        return subprocess.Popen([sys.executable, "-m", "tests.connectors.kafka_committer", *arguments])


if __name__ == "__main__":
    root, first, last, job = sys.argv[1:]
    carry_out(root, int(first), int(last), {"kafka_append": KafkaAppend}, job=job)

"""A process that carries out decided records for a topic, one slot after another, until somebody kills it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from stateflow.connectors import CommitRequest, Prepared, SinkSlot, Stager, UnavailableError
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.sink import KafkaAppend
from stateflow.connectors.kafka.topic import KafkaTopic
from stateflow.spark.sinks.staging import StagedWriter, StoreTarget
from stateflow.storage.roots import open_store

_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("size", pa.int32())])
UNAVAILABLE = 9


@dataclass(frozen=True)
class Records:
    """Records that are decided; each has as many messages, `SLOT-NUMBER`."""

    root: Path
    topic: str
    address: str
    slots: int
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
            writer = StagedWriter(
                _SCHEMA, StoreTarget(partial(open_store, str(self.root)), f"{slot}.parquet")
            )
            values = [f"{slot}-{k}".encode() for k in range(self.messages)]
            writer.write(pa.record_batch([values, values, [1] * len(values)], schema=_SCHEMA))
            staged = writer.close()
            assert staged is not None
            prev = slot - 1 or None
            prepared = Prepared("kafka_append", known.place, prev, (), payload, (staged,), self.messages)
            (self.root / f"{slot}.json").write_bytes(msgspec.json.encode(prepared))

    @property
    def wanted(self) -> list[str]:
        return sorted(f"{slot}-{k}" for slot in range(1, self.slots + 1) for k in range(self.messages))

    @property
    def finished(self) -> int:
        """The last slot that a process has seen committed."""
        return max((int(path.stem) for path in self.root.glob("*.done")), default=0)

    def carry_on(self) -> subprocess.Popen[bytes]:
        """A process with all the records that are not finished."""
        first = self.finished + 1
        arguments = [str(self.root), self.topic, str(first), str(self.slots)]
        return subprocess.Popen([sys.executable, "-m", "tests.connectors.kafka_committer", *arguments])


def main(root: Path, job: str, first: int, last: int) -> None:
    stager = Stager(partial(open_store, str(root)), lambda: uuid.uuid4().hex)
    for slot in range(first, last + 1):
        prepared = msgspec.json.decode((root / f"{slot}.json").read_bytes(), type=Prepared)
        at = SinkSlot(job, "orders", "out", slot, 1, record=f"w{slot}", prev=prepared.prev)
        try:
            KafkaAppend.commit(CommitRequest(prepared, at, cast("Any", None), stager, lambda: None))
        except UnavailableError:
            os._exit(UNAVAILABLE)
        (root / f"{slot}.done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

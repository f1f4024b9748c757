"""What is around the job: a Spark cluster, Kafka's broker and an object store, each in processes of its own that may die."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.connectors.kafka_server import Topics
from tests.durable_s3 import DurableS3
from tests.spark.kafka_broker import Broker, connector_jars
from tests.spark.murder import ROOT
from tests.spark.murder_victim import QUICK, Errand
from tests.spark.standalone import free_port, standalone

EXECUTORS = 4
TOPIC = "orders"
"""That of the pipeline, with one partition: its order is that of the rows."""
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"],
    "spark.cores.max": str(EXECUTORS),
    "spark.task.maxFailures": "4",
}
OPTIONS = {
    "shared_filesystem": True,
    "local_fsync": False,
    "parallelism": EXECUTORS,
    "max_concurrent_checkpoints": 2,
    "retained_checkpoints": 3,
    "inline_threshold": "0 B",
    "heartbeat_interval": "1 s",
    "heartbeat_timeout": "6 s",
}


@dataclass
class Servers:
    folder: Path
    master: str
    broker: Broker
    objects: DurableS3

    def errand(self, **options: str) -> Errand:
        """What a run of the job is told. Without a trigger it ends when it has read all."""
        return Errand(
            str(self.folder),
            master=self.master,
            upsert=True,
            kafka=self.broker.address,
            rows_a_batch=400,
            conf={**CONF, "spark.jars": ",".join(connector_jars())},
            options={
                **OPTIONS,
                "checkpoint_dir": self.objects.root,
                "storage_options": self.objects.options,
                **options,
            },
        )

    def store(self) -> Store:
        return open_store(self.objects.root, self.objects.options)


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """They go on with what they had when an earlier sitting has used this folder."""
    ports = _ports(folder)
    broker = Broker(
        folder / "kafka", 300, {name: ports[name] for name in ("inside", "outside", "controller")}
    )
    if not (folder / "kafka").exists():
        broker.format()
    objects = DurableS3(folder / "s3", ports["objects"])
    (folder / "s3" / "objects").mkdir(parents=True, exist_ok=True)
    broker.start()
    try:
        topics = Topics(broker.address)
        if TOPIC not in topics.names:
            topics.make(TOPIC, partitions=1)
        objects.start()
        try:
            (folder / "spark").mkdir(exist_ok=True)
            ours = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
            with standalone(folder / "spark", workers=EXECUTORS, cores=1, memory="700m", also=ours) as master:
                yield Servers(folder, master, broker, objects)
        finally:
            objects.kill()
    finally:
        broker.end()


def _ports(folder: Path) -> dict[str, int]:
    kept = folder / "ports.json"
    if not kept.exists():
        names = ("inside", "outside", "controller", "objects")
        kept.write_text(json.dumps({name: free_port() for name in names}), encoding="utf-8")
    ports: dict[str, int] = json.loads(kept.read_text(encoding="utf-8"))
    return ports

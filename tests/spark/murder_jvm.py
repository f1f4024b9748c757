"""A warm JVM for victims that come and go: `python -m tests.spark.murder_jvm ERRAND`.

Most of what a driver costs is the start of its JVM. A victim with such a JVM is the driver's Python alone, which has all of
Stateflow's protocol in it: it dies, and the JVM stays, with tasks under way that nobody waits for any more. Then `tidy`
ends what the dead one has left, as its JVM's end would have done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.murder_victim import QUICK, Errand

ROOT = Path(__file__).absolute().parents[2]


@dataclass
class WarmJvm:
    """The process that holds the JVM, in a session of its own."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    """Of a victim, to find the JVM."""
    folder: Path

    @classmethod
    def start(cls, errand: Errand, folder: Path) -> WarmJvm:
        folder.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("STATEFLOW_", "PYSPARK_GATEWAY"))}
        env |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(folder / "spark")}
        command = [sys.executable, "-m", "tests.spark.murder_jvm", msgspec.json.encode(errand).decode()]
        with (folder / "jvm.err").open("ab") as err:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
            )
        made = cls(process, {}, folder)
        made._lend(made._answer())
        return made

    def _lend(self, said: dict[str, Any]) -> None:
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(said["port"]),
            "PYSPARK_GATEWAY_SECRET": said["secret"],
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def pid(self) -> int:
        return self.process.pid

    def tidy(self) -> None:
        """Ends the queries and tasks that a victim has left. The next one has a gateway of its own."""
        self._lend(self._ask("tidy"))

    def produce(self, server: str, lines: Path) -> None:
        """Sends the lines of a file to the topic `orders`."""
        self._ask(f"produce {server} {lines}")

    def _ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith(b"{"):
                return dict(json.loads(line))
        raise RuntimeError(f"the warm JVM ended with {self.process.wait(30)}: {self.story()}")

    def story(self) -> str:
        return (self.folder / "jvm.err").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        from tests.spark.murder import descendants

        family = descendants(self.pid)
        self.process.kill()
        self.process.wait(30)
        for each in family:
            each.kill()
        shutil.rmtree(self.folder / "spark", ignore_errors=True)


def adopt() -> None:
    """Makes the warm JVM's session this process's own, if it was given one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jvm=jvm, _jconf=java.getConf()))


def main(errand: Errand) -> int:
    from stateflow.spark.session.build import build_session

    folder = Path(errand.folder)
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse"), **QUICK, **errand.conf}
    spark: Any = build_session("murder", master=errand.master, conf=conf)
    # The first batch of a JVM takes seconds: classes of Delta and of streaming.
    spark.range(10).write.format("delta").mode("overwrite").save(str(folder / "warm"))
    gateway = opened_gateway(spark)
    for line in sys.stdin:
        if line.startswith("produce"):
            _, server, lines = line.split()
            produce(spark.sparkContext._jvm, server, Path(lines).read_text().splitlines())
            say({"produced": True})
            continue
        for query in spark.streams.active:
            query.stop()
        spark.sparkContext.cancelAllJobs()
        gateway.shutdown()
        gateway = opened_gateway(spark)
    return 0


def opened_gateway(spark: Any) -> Any:
    """A gateway for one victim, as a host opens one for each run.

    Each process counts its own objects that Java may call. If two shared a gateway, Java's collector would let go of those of the later one
    by the numbers of the dead one's ("Object ID unknown").
    """
    context = spark.sparkContext
    server = context._jvm.org.apache.spark.api.python.Py4JServer(context._jsc.sc().conf())
    server.start()
    say({"port": server.getListeningPort(), "secret": server.secret()})
    return server


def produce(jvm: Any, server: str, lines: list[str]) -> None:
    text = "org.apache.kafka.common.serialization.StringSerializer"
    settings = jvm.java.util.Properties()
    given = {"key.serializer": text, "value.serializer": text, "acks": "all", "enable.idempotence": "true"}
    for name, value in {"bootstrap.servers": server, **given}.items():
        settings.setProperty(name, value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    if not admin.listTopics().names().get().contains("orders"):
        topic = jvm.org.apache.kafka.clients.admin.NewTopic("orders", 1, 1)
        admin.createTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
    admin.close()
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    sent = [producer.send(record("orders", 0, None, line)) for line in lines]
    producer.close()
    for each in sent:
        each.get()


def say(facts: dict[str, Any]) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Errand)))

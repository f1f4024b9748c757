"""A Kafka broker on loopback, told what docker/compose.yaml tells its container, from the jars of Maven."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import Bundle, bundle_of, local_jars
from stateflow.spark.session.java import require_java
from tests.composed import environment, replaced, services
from tests.quick_java import QUICK_JAVA
from tests.spark.standalone import end_process, free_port, kill_process

ROOT = Path(__file__).resolve().parents[2]
BROKER = Bundle(
    "-kafka-broker",
    (f"org.apache.kafka:kafka_2.13:{services()['kafka']['image'].rpartition(':')[2]}",),
    lacks_spark=True,  # its metrics-core is another than Spark's
)
_NOT_PROPERTIES = ("KAFKA_HEAP_OPTS", "KAFKA_OPTS")


def connector_jars() -> list[str]:
    """What Spark needs to read from Kafka."""
    return [str(jar) for jar in local_jars(cache_folder(), bundle_of("kafka"))]


def properties(folder: Path, ports: dict[str, int]) -> str:
    """server.properties, made of the container's environment as its image makes them."""
    given = environment("kafka")
    here = tuple((f"://:{old}", f"://127.0.0.1:{new}") for old, new in _ports(ports))
    given["KAFKA_LISTENERS"] = replaced(given["KAFKA_LISTENERS"], *here)
    given["KAFKA_ADVERTISED_LISTENERS"] = replaced(
        given["KAFKA_ADVERTISED_LISTENERS"],
        ("kafka:19092", f"127.0.0.1:{ports['inside']}"),
        ("localhost:9092", f"127.0.0.1:{ports['outside']}"),
    )
    voters = replaced(
        given["KAFKA_CONTROLLER_QUORUM_VOTERS"], ("kafka:9093", f"127.0.0.1:{ports['controller']}")
    )
    given["KAFKA_CONTROLLER_QUORUM_VOTERS"] = voters
    given["KAFKA_LOG_DIRS"] = str(folder / "data")
    # Records of a test bear times of long ago: a slow machine would see them expire.
    given["KAFKA_LOG_RETENTION_MS"] = "-1"
    return "".join(
        f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}\n"
        for name, value in given.items()
        if name.startswith("KAFKA_") and name not in _NOT_PROPERTIES
    )


@dataclass
class Broker:
    """The broker's process, which may be killed and started again on its ports."""

    folder: Path
    patience: float
    ports: dict[str, int] = field(
        default_factory=lambda: {n: free_port() for n in ("inside", "outside", "controller")}
    )
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For programs of this machine."""
        return f"127.0.0.1:{self.ports['outside']}"

    def format(self) -> None:
        """Makes the broker's disk ready, once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(properties(self.folder, self.ports))
        cluster = environment("kafka")["CLUSTER_ID"]
        with self._log.open("wb") as out:
            subprocess.run(
                [*_java(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._file)],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=self.patience,
            )

    def start(self) -> None:
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(self._file)],
                cwd=self.folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        _await(self.process, self.ports["outside"], self._log, self.patience)

    def kill(self) -> None:
        assert self.process is not None
        kill_process(self.process)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nobody, as one that is overloaded."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        assert self.process is not None
        end_process(self.process, 30)

    @property
    def _file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"


def _java() -> list[str]:
    spark_jars = Path(pyspark.__file__).parent / "jars"
    # The broker's own jars first; Spark brings Scala's library and a logger.
    classpath = ":".join([*map(str, local_jars(cache_folder(), BROKER)), f"{spark_jars}/*"])
    java = str(require_java(cache_folder()) / "bin" / "java")
    heap = environment("kafka")["KAFKA_HEAP_OPTS"]
    return [java, *QUICK_JAVA.split(), heap, "-Djava.awt.headless=true", "-cp", classpath]


@contextmanager
def broker(folder: Path, *, patience: float = 300) -> Iterator[str]:
    """Its address, for programs of this machine."""
    running = Broker(folder, patience)
    running.format()
    running.start()
    try:
        yield running.address
    finally:
        running.end()


def told_by(script: str, folder: Path) -> dict[str, Any]:
    """What a script that has a broker and a folder to itself prints last, which is JSON."""
    local_jars(cache_folder(), bundle_of("kafka"))
    program = folder / "script.py"
    program.write_text(script)
    with broker(folder / "kafka") as server:
        done = subprocess.run(
            [sys.executable, program, server, folder],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ports(ports: dict[str, int]) -> list[tuple[int, int]]:
    return [(19092, ports["inside"]), (9092, ports["outside"]), (9093, ports["controller"])]


def _await(process: subprocess.Popen[bytes], port: int, log: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        told = log.read_text(errors="replace")[-3000:]
        assert process.poll() is None, f"the broker ended with code {process.returncode}: {told}"
        assert time.monotonic() < end, f"the broker did not listen within {patience:.0f} s: {told}"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)

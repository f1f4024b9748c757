"""A Spark standalone cluster on loopback whose machines have Spark and Java, and nothing else of ours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateflow.config import cache_folder
from stateflow.spark.java import require_java

_ROOM = "org.apache.spark.deploy"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def standalone(folder: Path, *, memory: str = "600m", patience: float = 300) -> Iterator[str]:
    """The master's URL. Two workers under different addresses, each with one core and a work folder `worker-N`."""
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    # No PYTHONPATH, no virtual environment, no python on the PATH but the system's: what a task has comes with it.
    surroundings = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "JAVA_HOME": str(require_java(cache_folder())),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "200m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_NO_DAEMONIZE": "1",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str, says: str) -> None:
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(spark_home / "bin" / "spark-class"), *arguments, "--webui-port", "0"],
                cwd=folder,
                env=surroundings,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started.append(process)
        end = time.monotonic() + patience
        while says not in log.read_text(errors="replace"):
            told = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"{name} ended with code {process.returncode}: {told}"
            assert time.monotonic() < end, f"{name} did not say {says!r} within {patience:.0f} s: {told}"
            time.sleep(0.1)

    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    try:
        start(
            "master",
            f"{_ROOM}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            says="elected leader",
        )
        for n in (1, 2):
            work = folder / f"worker-{n}"
            where = ["--host", f"127.0.0.{n}", "--work-dir", str(work), "--cores", "1", "--memory", memory]
            start(f"worker-{n}", f"{_ROOM}.worker.Worker", url, *where, says="Successfully registered")
        yield url
    finally:
        for process in reversed(started):
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker that is asked to end takes its executors along."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)

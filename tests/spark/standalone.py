"""The Spark cluster of docker/compose.yaml on loopback: its machines have Spark and Java, and nothing else of ours."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.spark.session.java import require_java
from tests.composed import replaced, services
from tests.quick_java import QUICK_JAVA


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def end_process(process: subprocess.Popen[bytes], patience: float = 20) -> None:
    """Asks a server to end, as one that takes others along does then, and kills what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    kill_process(process)


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """The process and its group, of which it is the first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@contextmanager
def standalone(
    folder: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "600m",
    also: Mapping[str, str] = {},
    patience: float = 300,
) -> Iterator[str]:
    """The master's URL. Commands and health checks are the compose file's; each worker has an address of its own (Spark
    runs no second copy of a task on one host) and a work folder `worker-N`. There are two in the file, and more where more are asked for. `also` is in its environment."""
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
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_NO_DAEMONIZE": "1",
        **also,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, service: str, *changes: tuple[str, str]) -> None:
        page = free_port()
        own = re.search(r"--webui-port (\d+)", services()[service]["command"])
        assert own is not None
        given = replaced(services()[service]["command"], *changes, (own[0], f"--webui-port {page}"))
        program, *arguments = shlex.split(given)
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(spark_home / "bin" / program), *arguments],
                cwd=folder,
                env=surroundings,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started.append(process)
        kind, _, flag, code = services()[service]["healthcheck"]["test"]
        assert (kind, flag) == ("CMD", "-c")
        check = [sys.executable, flag, replaced(code, (f"localhost:{own[1]}", f"127.0.0.1:{page}"))]
        end = time.monotonic() + patience
        while subprocess.run(check, capture_output=True, check=False).returncode:
            told = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"{name} ended with code {process.returncode}: {told}"
            assert time.monotonic() < end, f"{name} was not healthy within {patience:.0f} s: {told}"
            time.sleep(0.5)

    host, port = "127.0.0.1", free_port()
    url = f"spark://{host}:{port}"
    try:
        start(
            "master",
            "spark-master",
            ("--host spark-master", f"--host {host}"),
            ("--port 7077", f"--port {port}"),
        )
        for n in range(1, workers + 1):
            start(
                f"worker-{n}",
                f"spark-worker-{2 - n % 2}",
                ("spark://spark-master:7077", f"{url} --host 127.0.0.{n}"),
                ("--cores 2 --memory 2g", f"--cores {cores} --memory {memory}"),
                ("--work-dir /work", f"--work-dir {folder / f'worker-{n}'}"),
            )
        yield url
    finally:
        for process in reversed(started):
            end_process(process)

"""A small real YARN for tests: Hadoop's ResourceManager and one NodeManager, each a Java of its own, on free loopback ports."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.config.options import cache_folder
from stateflow.spark.session.java import require_java
from tests.hdfs_servers import hadoop_command
from tests.spark.standalone import end_process, free_port

_SERVERS = "org.apache.hadoop.yarn.server"
_PORTS = (
    *(
        "resourcemanager.address",
        "resourcemanager.scheduler.address",
        "resourcemanager.resource-tracker.address",
    ),
    *("resourcemanager.admin.address", "resourcemanager.webapp.address"),
    *("nodemanager.address", "nodemanager.localizer.address", "nodemanager.webapp.address"),
)


@dataclass
class YarnServer:
    """A running YARN. `configuration` is the folder for HADOOP_CONF_DIR."""

    configuration: Path
    web: str

    def asked(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.web}/ws/v1/cluster/{what}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def states(self) -> list[str]:
        """Of all applications, the oldest first."""
        listed = (self.asked("apps")["apps"] or {"app": []})["app"]
        return [each["state"] for each in sorted(listed, key=lambda each: each["id"])]


@contextmanager
def yarn_server(folder: Path, *, patience: float = 120) -> Iterator[YarnServer]:
    addresses = {name: f"127.0.0.1:{free_port()}" for name in _PORTS}
    settings = {
        **{f"yarn.{name}": address for name, address in addresses.items()},
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.scheduler.class": f"{_SERVERS}.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.nodemanager.vmem-check-enabled": "false",
        # The disk of a machine that runs tests may be nearly full, which is none of their business.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "hadoop.tmp.dir": str(folder / "tmp"),
    }
    configuration = folder / "configuration"
    configuration.mkdir(parents=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    for file in ("core-site.xml", "yarn-site.xml"):
        (configuration / file).write_text(f"<configuration>{properties}</configuration>", encoding="utf-8")
    server = YarnServer(configuration, addresses["resourcemanager.webapp.address"])
    with ExitStack() as started:
        programs = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
        servers = [started.enter_context(_running(each, configuration, folder)) for each in programs]
        _await(server, servers, folder, patience)
        try:
            yield server
        except Exception as failure:
            for said in sorted((folder / "logs").rglob("stderr")):
                failure.add_note(f"{said}: {said.read_text(errors='replace')[-1500:]}")
            raise


@contextmanager
def _running(program: str, configuration: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    # Its containers start with this Java, and would else need one in /bin.
    environ = {**os.environ, "JAVA_HOME": str(require_java(cache_folder()))}
    with (folder / "yarn.log").open("ab") as log:
        process = subprocess.Popen(
            hadoop_command(f"{_SERVERS}.{program}", configuration),
            cwd=folder, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        end_process(process)


def _await(server: YarnServer, servers: list[subprocess.Popen[bytes]], folder: Path, patience: float) -> None:
    """Until the ResourceManager has a NodeManager."""
    end = time.monotonic() + patience
    while True:
        with suppress(OSError, ValueError):
            if server.asked("metrics")["clusterMetrics"]["activeNodes"] == 1:
                return
        told = (folder / "yarn.log").read_text(errors="replace")[-3000:]
        assert all(each.poll() is None for each in servers), f"a server of YARN has ended: {told}"
        assert time.monotonic() < end, f"YARN was not ready within {patience:.0f} s: {told}"
        time.sleep(0.2)

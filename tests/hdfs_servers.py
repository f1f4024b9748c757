"""A small real HDFS for tests: one NameNode and one DataNode in one Java, on free loopback ports."""

from __future__ import annotations

import getpass
import itertools
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import hdfs
from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import recorded_jars, spark_jars
from stateflow.spark.session.java import require_java
from tests.quick_java import QUICK_JAVA
from tests.spark.standalone import end_process, free_port

_names = itertools.count(1)


@dataclass
class HdfsServer:
    """A running HDFS. `options` open it by each of its URLs."""

    rpc: int
    http: int
    options: dict[str, str]
    process: subprocess.Popen[bytes]

    def new_root(self, folder: str = "") -> str:
        """The URL of an empty folder, with `folder` below it."""
        return f"hdfs://127.0.0.1:{self.rpc}/test-{next(_names)}" + (f"/{folder}" if folder else "")


def hadoop_command(program: str, *configuration: Path) -> list[str]:
    """Starts a class of Hadoop's servers. `configuration`: folders with its settings."""
    jars = recorded_jars(cache_folder(), hdfs.locked()[0])
    if not jars:
        pytest.fail("Hadoop's servers are not installed: run `make hdfs` first", pytrace=False)
    client = [
        jar
        for jar in spark_jars()
        if jar.name.startswith(("hadoop-client-", "snappy", "log4j-", "slf4j-", "jcl-over-slf4j"))
    ]
    return [
        str(require_java(cache_folder()) / "bin" / "java"),
        *QUICK_JAVA.split(),
        *("-Xmx256m", "-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true"),
        *("-cp", ":".join(map(str, [*configuration, *jars, *client]))),
        program,
    ]


@contextmanager
def hdfs_server(folder: Path, *, patience: float = 120) -> Iterator[HdfsServer]:
    folder.mkdir(parents=True, exist_ok=True)
    ports = {"rpc": free_port(), "http": free_port()}
    settings = {
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.datanode.hostname": "127.0.0.1",
        "hdfs.minidfs.basedir": str(folder / "data"),
        "hadoop.tmp.dir": str(folder / "tmp"),
        # A file is closed when the DataNode has reported its block. Until then its writer sleeps, by default 0.4 s at a time.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
        # A listing of more is one of several pages.
        "dfs.ls.limit": "40",
        # Whoever started it is the superuser; tests of permissions ask as somebody else.
        "dfs.permissions.enabled": "true",
    }
    command = [
        *hadoop_command("org.apache.hadoop.test.MiniDFSClusterManager"),
        *("-datanodes", "1", "-format", "-nnport", str(ports["rpc"]), "-httpport", str(ports["http"])),
        *itertools.chain.from_iterable(("-D", f"{name}={value}") for name, value in settings.items()),
    ]
    log = folder / "hdfs.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _await(process, ports["http"], log, patience)
        options = {
            "hdfs_endpoint": f"http://127.0.0.1:{ports['http']}",
            "hdfs_user": getpass.getuser(),
        }
        yield HdfsServer(ports["rpc"], ports["http"], options, process)
    finally:
        end_process(process)


def _await(process: subprocess.Popen[bytes], port: int, log: Path, patience: float) -> None:
    """Until the NameNode has a DataNode and has left its safe mode."""
    address = f"http://127.0.0.1:{port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    end = time.monotonic() + patience
    while True:
        told = log.read_text(errors="replace")[-3000:]
        assert process.poll() is None, f"HDFS ended with code {process.returncode}: {told}"
        assert time.monotonic() < end, f"HDFS was not ready within {patience:.0f} s: {told}"
        with suppress(urllib.error.URLError, OSError, ValueError, KeyError, IndexError):
            with urllib.request.urlopen(address, timeout=5) as answer:
                state = json.load(answer)["beans"][0]
            if state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational":
                return
        time.sleep(0.2)

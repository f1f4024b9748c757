"""Iceberg's REST catalog on loopback, which may be killed, stopped for a while and started again on what it has."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from scripts import iceberg_rest
from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import spark_jars
from stateflow.spark.session.java import require_java
from tests.connectors.iceberg_catalog import NAME
from tests.connectors.postgres_server import variable
from tests.quick_java import QUICK_JAVA
from tests.spark.standalone import free_port, kill_process

_CLIENT = ("hadoop-client-", "log4j-", "slf4j-", "jcl-over-slf4j", "snappy")


@dataclass
class RestServer:
    """The server's process. What it knows is in SQLite, and outlives it."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        jars = sorted(iceberg_rest.folder_of(cache_folder()).glob("*.jar"))
        if not jars:
            pytest.fail("Iceberg's REST catalog is not installed: run `make iceberg` first", pytrace=False)
        client = [jar for jar in spark_jars() if jar.name.startswith(_CLIENT)]
        environment = {
            **os.environ,
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db",
            "CATALOG_CLIENTS": "1",  # SQLite would let two of its connections lock each other out
            "CATALOG_WAREHOUSE": f"{self.folder}/warehouse",
            "CATALOG_REST_PORT": str(self.port),
        }
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(require_java(cache_folder()) / "bin" / "java"), *QUICK_JAVA.split(), "-Xmx256m", "-cp",
                    ":".join(map(str, [*jars, *client])), "org.apache.iceberg.rest.RESTCatalogServer",
                ],
                cwd=self.folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._await()

    def kill(self) -> None:
        assert self.process is not None
        kill_process(self.process)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """As a server that answers nobody for a while."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _await(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}v1/config", timeout=5):
                return
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.1)
        pytest.fail(f"the REST catalog did not start: {(self.folder / 'server.log').read_text()[-2000:]}")


@contextmanager
def rest_server(folder: Path) -> Iterator[tuple[RestServer, Catalog]]:
    """A server, and its catalog as PyIceberg's variables in the environment name it."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RestServer(folder)
    server.start()
    try:
        with (
            variable("PYICEBERG_CATALOG__LAKE__URI", server.uri),
            variable("PYICEBERG_CATALOG__LAKE__TYPE", "rest"),
        ):
            catalog = load_catalog(NAME, type="rest", uri=server.uri)
            catalog.create_namespace("shop")
            yield server, catalog
    finally:
        server.kill()

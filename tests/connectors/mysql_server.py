"""A MariaDB of Debian's package on loopback, in a folder of its own, as MySQL's variables name it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pymysql
import pytest

from scripts.mysql import SERVER
from tests.connectors.postgres_server import variable
from tests.spark.standalone import free_port

SETTINGS = "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"


@contextmanager
def mysql() -> Iterator[str]:
    """With an empty database `shop`, of which the user in the environment may do everything; gives the password."""
    if not SERVER.is_file():
        pytest.skip(
            "MariaDB is not installed: run `make mysql` first (Debian: apt-get install mariadb-server-core)"
        )
    # Not pytest's folder: that is root's alone.
    folder = Path(tempfile.mkdtemp(prefix="stateflow-mysql-"))
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    shutil.chown(folder, user)
    password, port = secrets.token_hex(8), free_port()
    first = folder / "first.sql"
    user_here = "etl@'127.0.0.1'"
    lines = (
        "CREATE DATABASE shop;",
        f"CREATE USER {user_here} IDENTIFIED BY '{password}';",
        f"GRANT ALL ON shop.* TO {user_here};",
    )
    first.write_text("\n".join([*lines, ""]), encoding="utf-8")
    shutil.chown(first, user)
    data = f"--datadir={folder}/data"
    made = subprocess.run(
        ["mariadb-install-db", "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db", f"--user={user}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr or made.stdout
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [SERVER, "--no-defaults", data, f"--user={user}", "--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder}/socket",
             f"--init-file={first}", *SETTINGS],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        with ExitStack() as stack:
            for name, value in (("USER", "etl"), ("PASSWORD", password), ("TCP_PORT", str(port))):
                stack.enter_context(variable(f"MYSQL_{name}", value))
            _wait_for(server, port, password, folder / "log")
            yield password
    finally:
        server.kill()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: subprocess.Popen[bytes], port: int, password: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            pymysql.connect(
                host="127.0.0.1", port=port, user="etl", password=password, database="shop"
            ).close()
            return
        except pymysql.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)

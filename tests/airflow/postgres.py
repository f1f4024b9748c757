"""A Postgres of Debian's package on loopback, in a folder of its own, for Airflow's database."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.airflow_server import free_port
from scripts.postgres import find


def binaries() -> Path:
    """The newest installed version's; the test is skipped where there is none."""
    found = find()
    if not found:
        pytest.skip(
            "Postgres is not installed: run `make postgres` first (Debian: apt-get install postgresql)"
        )
    return found


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL for SQLAlchemy. Postgres refuses to run as root, so root hands it to an unprivileged user."""
    # Not pytest's folder: that is root's alone.
    folder = Path(tempfile.mkdtemp(prefix="stateflow-postgres-"))
    user = "nobody" if os.geteuid() == 0 else ""
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    data, password, port = folder / "data", secrets.token_hex(8), free_port()
    secret = folder / "password"
    secret.write_text(password, encoding="utf-8")
    if user:
        os.chown(secret, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    secret.chmod(0o600)
    tool = binaries()

    def call(*command: str | Path) -> None:
        done = subprocess.run(
            command, user=user or None, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL, env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PGPASSWORD": password},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}"

    try:
        call(
            tool / "initdb",
            "-D",
            data,
            "-U",
            "airflow",
            "-A",
            "scram-sha-256",
            "--pwfile",
            secret,
            "--no-sync",
        )
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        started: Sequence[str | Path] = (
            tool / "pg_ctl",
            "-D",
            data,
            "-l",
            folder / "log",
            "-w",
            "-o",
            settings,
        )
        call(*started, "start")
        try:
            call(tool / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "airflow")
            yield f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/airflow"
        finally:
            call(tool / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""A Postgres of Debian's package on loopback, in a folder of its own, for Airflow's database."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from scripts.postgres import find
from tests.spark.standalone import free_port


def binaries() -> Path:
    """The newest installed version's; the test is skipped where there is none."""
    found = find()
    if not found:
        pytest.skip(
            "Postgres is not installed: run `make postgres` first (Debian: apt-get install postgresql)"
        )
    return found


@dataclass
class Postgres:
    """A server in a folder, which may be killed and started again on its port. Postgres refuses to run as root, so root hands it to an
    unprivileged user."""

    folder: Path
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"postgresql://airflow:{self.password}@127.0.0.1:{self.port}/airflow"

    def make(self) -> None:
        """Makes its disk ready, once."""
        secret = self.folder / "password"
        secret.write_text(self.password, encoding="utf-8")
        for path in (self.folder, secret):
            if self._user:
                os.chown(path, pwd.getpwnam(self._user).pw_uid, pwd.getpwnam(self._user).pw_gid)
        secret.chmod(0o600)
        named = "-U", "airflow", "-A", "scram-sha-256", "--pwfile", secret
        self._call(binaries() / "initdb", "-D", self._data, *named, "--no-sync")

    def start(self) -> None:
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        self._call(*self._control, "-l", self.folder / "log", "-o", settings, "start")

    def stop(self) -> None:
        self._call(*self._control, "-m", "immediate", "stop")

    def kill(self) -> None:
        """All of its processes at once, as a machine that loses its current; what was written stays with the kernel."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, 30)

    def kill_session(self) -> bool:
        """The process of one session, if there is one; the server then throws out all others, and recovers."""
        for process in self.processes()[1:]:
            with suppress(psutil.NoSuchProcess):
                if "127.0.0.1" in " ".join(process.cmdline()):
                    process.kill()
                    return True
        return False

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nobody, as one that is overloaded."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def processes(self) -> list[psutil.Process]:
        """The server's own first, then those of its sessions and its helpers."""
        first = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        return [first, *first.children(recursive=True)]

    def make_database(self) -> None:
        self._call(
            binaries() / "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow", "airflow"
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _user(self) -> str:
        return "nobody" if os.geteuid() == 0 else ""

    @property
    def _control(self) -> Sequence[str | Path]:
        return binaries() / "pg_ctl", "-D", self._data, "-w"

    def _call(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, user=self._user or None, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL, env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PGPASSWORD": self.password},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """With an empty database."""
    # Not pytest's folder: that is root's alone.
    server = Postgres(Path(tempfile.mkdtemp(prefix="stateflow-postgres-")))
    try:
        server.make()
        server.start()
        try:
            server.make_database()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL for SQLAlchemy."""
    with running_postgres() as server:
        yield server.url.replace("postgresql", "postgresql+psycopg2")

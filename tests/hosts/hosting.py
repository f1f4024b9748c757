"""A warm host of the tests, and runs on it: the command as users type it, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from stateflow.cli.main import app
from stateflow.hosts import client
from tests.lent_cache import lend

PIPELINE = """
import os
import sys
import time

import stateflow as sf


class Total(sf.KeyedProcess):
    total = sf.ValueState(float, default=0.0)

    def process(self, account, rows, ctx):
        self.total.value += sum(row.amount for row in rows)
        yield account, self.total.value


@sf.pipeline("{name}")
def pipeline(flow, *, input: str = "in", output: str = "out"):
    rows = flow.source("rows", sf.files(input, "json"), "account string, amount double")
    totals = rows.key_by("account").process("total", {operator}, output="account string, total double")
    totals.append("totals", sf.delta(output))
    {more}
"""
PLACE = 60.0
"""Seconds that anything on a busy machine may take."""


class Host:
    """One host, in a folder that nobody else has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = lend(folder / "cache")
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STATEFLOW_")},
            "STATEFLOW_CACHE_DIR": str(self.cache),
            "STATEFLOW_CHECKPOINT_DIR": str(folder / "checkpoints"),
            # What one test installs there, the hosts of others do not see.
            "PYTHONUSERBASE": str(folder / "user"),
        }

    def stateflow(
        self, *words: str, cwd: Path | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stateflow", *words],
            cwd=cwd or self.folder, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def started(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stateflow", *words],
            cwd=cwd or self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, project: Path, *words: str, name: str = "tests") -> subprocess.CompletedProcess[str]:
        """A run that nothing but the host may carry out."""
        return self.stateflow("run", "pipeline.py", "--host", name, "--host-only", *words, cwd=project)

    def shown(self, name: str = "tests") -> dict[str, Any]:
        """What it says of itself, without the command, whose start takes a second; empty while it takes no runs."""
        with suppress(client.Refused):
            return client.ask(self.cache / "hosts" / name)
        return {}

    def total(self, job: str) -> float:
        """Of an account of a job, 1.0 for each file: as the command says it, whose start takes a second, in this process."""
        words = ["query", job, "total", "total", "a3", "-o", "json"]
        said = CliRunner().invoke(app, [*words, "--checkpoint-dir", str(self.folder / "checkpoints")])
        assert said.exit_code == 0, said.output
        found: float = json.loads(said.stdout)["value"]
        return found

    def log(self, name: str = "tests") -> str:
        return (self.cache / "hosts" / name / "host.log").read_text(encoding="utf-8")

    def keeper(self, name: str = "tests") -> int:
        pid: int = json.loads((self.cache / "hosts" / name / "keeper.json").read_text(encoding="utf-8"))[
            "pid"
        ]
        return pid

    def project(self, name: str, *, body: str = "", operator: str = "Total", more: str = "") -> Path:
        """A folder with a pipeline and a first file of rows."""
        folder = self.folder / name
        (folder / "in").mkdir(parents=True)
        code = PIPELINE.replace("{name}", name).replace("{operator}", operator).replace("{more}", more)
        (folder / "pipeline.py").write_text(
            code.replace("\n\n\n@sf.pipeline", f"\n\n{body}\n\n@sf.pipeline"), encoding="utf-8"
        )
        give(folder)
        return folder


def give(project: Path, rows: int = 20) -> None:
    """One more file of rows: each account gets 1.0 per file and two rows."""
    file = project / f"{time.time_ns()}.json"
    file.write_text(
        "".join(f'{{"account": "a{n % 10}", "amount": 0.5}}\n' for n in range(rows)), encoding="utf-8"
    )
    file.rename(project / "in" / file.name)


@contextmanager
def host(folder: Path, *words: str, name: str = "tests", master: str = "local[2]") -> Iterator[Host]:
    made = Host(folder)
    begun = made.stateflow("host", "start", name, "--master", master, *(words or ("--cold",)), timeout=200)
    assert begun.returncode == 0, begun.stderr
    try:
        yield made
    finally:
        with suppress(subprocess.TimeoutExpired):
            made.stateflow("host", "stop", name, "--now", timeout=60)
        with suppress(OSError, KeyError):
            os.kill(made.keeper(name), signal.SIGKILL)


def eventually(answer: Callable[[], Any], what: str, seconds: float = PLACE) -> Any:
    """The first true answer within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := answer():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

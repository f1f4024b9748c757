"""What the story's tests look at and do: a job with its tables and its gate, its driver's process, what they left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

from demo.table import Orders, Verdict, compared
from stateflow.format.records import Record
from stateflow.jobs.job import Job

ROWS = 300
PATIENCE = 400.0
"""Seconds for anything to happen: what takes twenty on an idle machine may take many on a busy one."""


@dataclass
class Stage:
    """One job of the gated pipeline, in a folder of its own."""

    folder: Path
    name: str
    again: bool = False
    """Whether another process has set it up."""
    orders: Orders = field(init=False)
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        self.gate.mkdir(parents=True, exist_ok=self.again)
        self.orders = Orders(self.folder / self.name / "orders")
        self.job = Job(str(self.folder / "checkpoints"), self.name)

    @property
    def gate(self) -> Path:
        return self.folder / self.name / "gate"

    def age(self, version: int, at: datetime) -> None:
        """Makes a commit of the orders as old as that. Delta goes by the file's time."""
        commit = self.orders.folder / "_delta_log" / f"{version:020d}.json"
        os.utime(commit, (at.timestamp(), at.timestamp()))

    def shut(self) -> None:
        """The next batch stops inside."""
        (self.gate / "inside").unlink(missing_ok=True)
        (self.gate / "shut").touch()

    def open(self) -> None:
        (self.gate / "shut").unlink(missing_ok=True)

    def await_inside(self, patience: float = PATIENCE) -> None:
        until((self.gate / "inside").exists, f"a batch of job {self.name} to be inside of its gate", patience)

    def verdict(self) -> Verdict:
        return compared(self.orders.folder, self.folder / self.name / "totals")

    def checkpoints(self) -> list[Record]:
        return [record for record in self.job.checkpoints() if record.kind == "checkpoint"]


def driver_of(job: Job) -> psutil.Process:
    """The process of the newest run, by its heartbeat."""
    return psutil.Process(int(job.status().owner["pid"]))


def signal_driver(driver: psutil.Process, number: signal.Signals) -> None:
    """To the driver, its JVM, and everything else of its group."""
    os.killpg(os.getpgid(driver.pid), number)


def gone(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def contents(folder: Path) -> dict[str, int]:
    """Every file below it, with its size."""
    return {str(path): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def until(there: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not there():
        assert time.monotonic() < deadline, f"waited {patience:g} s for {what}"
        time.sleep(0.3)

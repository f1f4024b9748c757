"""Drivers as processes of this host: one is started, looked at and ended through its folder, by any process."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.processes import same_host
from stateflow.config.options import drivers_folder
from stateflow.driver import supervisor
from stateflow.errors import UnavailableError
from stateflow.format.layout import checked_name
from stateflow.format.records import Owner
from stateflow.private_folders import make_private

if TYPE_CHECKING:
    from stateflow.driver.run_spec import DriverSpec

LOG_DAYS = 7
"""Days that the log of an ended driver stays, and the folder of one that nobody saw end after its last sign of life."""
MOST_OUTPUT = 1 << 20
"""Bytes of a driver's output that one look takes: whoever takes up its watch again does not tell all of it once more."""
STARTING = 60.0
"""Seconds within which a supervisor writes its file."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Whether a driver's process runs, and how it ended."""

    running: bool
    exit_code: int | None = None
    """None while it runs, and when its supervisor died before it: then nobody saw its end."""
    reason: str = ""
    """Why it ended, where its host says so: out of memory, evicted."""


class DriverProcess:
    """A driver with a supervisor. Everything that later processes need to know lies in its folder."""

    submitting = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0

    @classmethod
    def find(cls, folder: Path) -> DriverProcess | None:
        """The driver of a folder that other containers may share. None while it runs in another one: of its processes nothing is seen
        here, and its heartbeat says whether it lives."""
        command = supervisor.read(folder / "command.json")
        seen = command is not None and (_is_here(command) or (folder / "exit").exists())
        return cls(folder) if seen else None

    @property
    def name(self) -> str:
        """Its folder, for people who look for it."""
        return str(self.folder)

    @property
    def above(self) -> int:
        """The newest epoch of its job when it was started."""
        return int((supervisor.read(self.folder / "command.json") or {}).get("above", 0))

    def look(self) -> ProcessStatus:
        """The process as it is now."""
        for last in (False, True):
            ended = supervisor.read(self.folder / "exit")
            if ended is not None:
                return ProcessStatus(False, int(ended["code"]))
            if not last and _alive(supervisor.read(self.folder / supervisor.ITSELF)):
                return ProcessStatus(True)
        # The supervisor was killed. The driver itself may live on.
        return ProcessStatus(_alive(supervisor.read(self.folder / "driver")))

    def stop(self, grace: float) -> None:
        """Kills it with SIGKILL unless it ends by itself within `grace` seconds: a kill loses nothing."""
        supervisor.write(self.folder / "stop", {"grace": grace})
        if not grace and not _alive(supervisor.read(self.folder / supervisor.ITSELF)):
            # Nobody reads that file any more. The driver leads a process group of its own.
            driver = supervisor.read(self.folder / "driver")
            if driver is not None and _alive(driver):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(driver["pid"]), signal.SIGKILL)

    def output(self) -> list[str]:
        """Whole lines that the driver has written since the last call; of very many, the last."""
        log, before = self.folder / supervisor.OUTPUT, []
        with suppress(FileNotFoundError):
            if log.stat().st_size < self._read:
                before, self._read = self._lines(supervisor.earlier(log)), 0
        return [*before, *self._lines(log)]

    def _lines(self, log: Path) -> list[str]:
        try:
            with log.open("rb") as file:
                begin = max(self._read, os.fstat(file.fileno()).st_size - MOST_OUTPUT)
                file.seek(begin)
                piece = file.read(MOST_OUTPUT)
        except FileNotFoundError:
            return []
        whole = piece[: piece.rfind(b"\n") + 1]
        lines = whole.decode(errors="replace").splitlines()
        if whole and begin > self._read:
            lines[0] = f"(of the driver's output, {log} alone has the lines before this one)"
        self._read = begin + len(whole) if whole else self._read
        return lines

    def last_words(self, lines: int = 20) -> list[str]:
        """The end of its output."""
        end = supervisor.end_of(self.folder / supervisor.OUTPUT)
        return [line for line in end.splitlines() if line.strip()][-lines:]


class DriverFolder:
    """The drivers that one task of a scheduler has started with this cache folder, one after the other."""

    def __init__(
        self, job: str, dag_run: str, task: str, root: str = "", *, folder: Path | None = None
    ) -> None:
        unique = hashlib.sha256(f"{dag_run}\n{task}\n{root}".encode()).hexdigest()[:24]
        # Folders in there are deleted, and the job's name may come from a DAG run's parameters.
        self._of_job = (folder or drivers_folder()) / checked_name("job", job)
        self._folder = self._of_job / unique

    @classmethod
    def of(cls, spec: DriverSpec) -> DriverFolder:
        """That of the task that a spec is for."""
        return cls(spec.job, spec.dag_run, spec.task, spec.root)

    def newest(self) -> DriverProcess | None:
        """The driver that was started last, if this host can tell how it is."""
        commands = sorted(self._folder.glob("*/command.json"))
        return DriverProcess.find(commands[-1].parent) if commands else None

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        *,
        above: int = 0,
        temporary: str = "",
    ) -> DriverProcess:
        """Starts a command in a new folder: the supervisor of an earlier driver may still write to the earlier one.

        `environment`: all variables of the driver, which inherits none. `temporary`: the environment variable that names the
        folder for temporary files. The supervisor deletes that folder however the command ends.
        """
        self._sweep(time.time())
        before = [int(each.name) for each in self._folder.glob("*") if each.name.isdigit()]
        # A clock that has gone back does not put this driver before an earlier one.
        number = max(time.time_ns(), max(before, default=0) + 1)
        folder = self._folder / f"{number:020d}"
        try:
            with suppress(FileNotFoundError):  # another start has swept the folder above it, which was empty
                make_private(folder)
            make_private(folder)
        except PermissionError:
            raise UnavailableError(
                f"the folder {folder.parent} cannot be written to by this user: set STATEFLOW_CACHE_DIR to a folder of this user"
            ) from None
        here = this_process()
        supervisor.write(
            folder / "command.json",
            {
                "argv": list(argv), "cwd": str(cwd), "above": above, "host": here.host, "pid_scope": here.pid_scope,
            },
        )  # fmt: skip
        variables = {}
        if temporary:
            (folder / supervisor.TEMPORARY).mkdir()
            variables[temporary] = str(folder / supervisor.TEMPORARY)
        # By path, because importing the package takes a part of a second; isolated, because PYTHONPATH is the driver's.
        command = [sys.executable, "-I", supervisor.__file__, str(folder)]
        process = subprocess.Popen(
            command, env={**environment, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, cwd=folder,
        )  # fmt: skip
        end = time.monotonic() + 30
        while not (folder / supervisor.ITSELF).exists():
            if process.poll() is not None or time.monotonic() > end:
                raise UnavailableError(
                    f"the supervisor of a driver did not start on {socket.gethostname()}: check that {folder} is writable and that "
                    f"{sys.executable} runs there"
                )
            time.sleep(0.01)
        return DriverProcess(folder)

    def _sweep(self, now: float) -> None:
        for of_task in self._of_job.glob("*/"):
            for folder in of_task.glob("*/"):
                with suppress(FileNotFoundError):  # another start sweeps at the same time
                    _sweep_driver(folder, now)
            with suppress(OSError):  # it has drivers
                of_task.rmdir()


def _sweep_driver(folder: Path, now: float) -> None:
    command, ended = folder / "command.json", supervisor.read(folder / "exit")
    # Containers may share the folder. Of processes in another one nothing is seen here. The name alone counts: a container that was
    # made again under its name deletes what the drivers of the old one left.
    elsewhere = (supervisor.read(command) or {}).get("host") not in (None, socket.gethostname())
    if ended is None and not elsewhere and command.exists():
        lives = any(_alive(supervisor.read(folder / who)) for who in (supervisor.ITSELF, "driver"))
        if lives or now - command.stat().st_mtime < STARTING:  # its supervisor may be about to begin
            return
        # The host was switched off or the supervisor killed, so nobody saw the driver end.
        shutil.rmtree(folder / supervisor.TEMPORARY, ignore_errors=True)
    at = float(ended["at"]) if ended else _last_sign(folder)
    if now - at > LOG_DAYS * 86_400:
        shutil.rmtree(folder, ignore_errors=True)


def _is_here(command: Mapping[str, Any]) -> bool:
    """Whether the numbers of a driver's processes count in this host's table of processes. Older drivers say less of themselves."""
    here = this_process()
    noted = Owner("", host=command.get("host", here.host), pid_scope=command.get("pid_scope", here.pid_scope))
    return same_host(noted, here)


def _last_sign(folder: Path) -> float:
    """When a driver or its supervisor wrote to the folder last: one that runs for weeks writes to its log and touches its file."""
    times = [folder.stat().st_mtime]
    for each in folder.iterdir():
        with suppress(FileNotFoundError):  # it is renamed meanwhile
            times.append(each.stat().st_mtime)
    return max(times)


def _alive(process: dict[str, object] | None) -> bool:
    return process is not None and supervisor.started(int(str(process["pid"]))) == process["started"] != ""

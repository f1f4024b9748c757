"""The folder of one kept driver: starting it, looking at it from any process of this host, and ending it."""

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

from stateflow.config.options import cache_folder
from stateflow.driver import warden
from stateflow.errors import UnavailableError
from stateflow.format.layout import checked_name

KEPT_DAYS = 7
"""Logs of drivers that are over stay so long."""
STARTING = 60.0
"""Seconds within which a warden says that it is there."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a kept driver."""

    running: bool
    exit_code: int | None = None
    """Known when it ended under its warden's eyes; a driver that vanished with its warden has none."""


class KeptDriver:
    """A driver in the keeping of a warden; its folder tells everything to whoever comes later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0

    @property
    def name(self) -> str:
        """For people: where to look."""
        return str(self.folder)

    @property
    def above(self) -> int:
        """The newest epoch of its job when it was started."""
        return int((warden.read(self.folder / "command.json") or {}).get("above", 0))

    def look(self) -> Sight:
        """Whether it runs, and how it ended."""
        for last in (False, True):
            ended = warden.read(self.folder / "exit")
            if ended is not None:
                return Sight(False, int(ended["code"]))
            if not last and _alive(warden.read(self.folder / "warden")):
                return Sight(True)
        # Its warden was killed. The driver itself may live on.
        return Sight(_alive(warden.read(self.folder / "driver")))

    def stop(self, grace: float) -> None:
        """Ends it by SIGKILL unless it has ended by itself in so many seconds: a kill loses nothing."""
        warden.write(self.folder / "stop", {"grace": grace})
        if not grace and not _alive(warden.read(self.folder / "warden")):
            # Nobody reads that any more. The driver leads a process group of its own.
            driver = warden.read(self.folder / "driver")
            if driver is not None and _alive(driver):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(driver["pid"]), signal.SIGKILL)

    def output(self) -> list[str]:
        """Whole lines that it has written since this was last asked."""
        try:
            with (self.folder / "output.log").open("rb") as log:
                log.seek(self._read)
                found = log.read()
        except FileNotFoundError:
            return []
        whole = found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def last_words(self, lines: int = 20) -> list[str]:
        """The end of its output."""
        with suppress(FileNotFoundError):
            text = (self.folder / "output.log").read_text(encoding="utf-8", errors="replace")
            return [line for line in text.splitlines() if line.strip()][-lines:]
        return []


class DriverFolder:
    """The drivers that one scheduler's task has started on this host, one after the other."""

    def __init__(self, job: str, dag_run: str, task: str, cache: Path | None = None) -> None:
        unique = hashlib.sha256(f"{dag_run}\n{task}".encode()).hexdigest()[:24]
        # Folders in there are deleted, and a DAG run's own parameters may have named the job.
        self._of_job = (cache or cache_folder()) / "drivers" / checked_name("job", job)
        self._folder = self._of_job / unique

    def newest(self) -> KeptDriver | None:
        """The one that was started last."""
        found = sorted(self._folder.glob("*/command.json"))
        return KeptDriver(found[-1].parent) if found else None

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        *,
        above: int = 0,
        temporary: str = "",
    ) -> KeptDriver:
        """Starts a command. A folder is never used twice: an earlier driver's warden may still write to its own.

        `temporary` is the variable that tells the command where to put files that go with it, however it ends.
        """
        self._sweep(time.time())
        folder = self._folder / f"{time.time_ns():020d}"
        folder.mkdir(parents=True, mode=0o700)
        warden.write(folder / "command.json", {"argv": list(argv), "cwd": str(cwd), "above": above})
        own = {}
        if temporary:
            (folder / warden.TEMPORARY).mkdir()
            own[temporary] = str(folder / warden.TEMPORARY)
        # By its path and isolated: importing the package takes a part of a second, and a driver's PYTHONPATH is not ours.
        command = [sys.executable, "-I", warden.__file__, str(folder)]
        keeper = subprocess.Popen(
            command, env={**os.environ, **environment, **own}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, cwd=folder,
        )  # fmt: skip
        end = time.monotonic() + 30
        while not (folder / "warden").exists():
            if keeper.poll() is not None or time.monotonic() > end:
                raise UnavailableError(
                    f"the keeper of a driver did not start on {socket.gethostname()}: is {folder} writable, and Python usable "
                    "there?"
                )
            time.sleep(0.01)
        return KeptDriver(folder)

    def _sweep(self, now: float) -> None:
        for command in self._of_job.glob("*/*/command.json"):
            folder = command.parent
            ended = warden.read(folder / "exit")
            at = float(ended["at"]) if ended else command.stat().st_mtime
            if ended is None:
                lives = any(_alive(warden.read(folder / who)) for who in ("warden", "driver"))
                if lives or now - at < STARTING:  # its warden may be about to begin
                    continue
                # Its host was switched off, or its warden killed, before it could be seen to end.
                shutil.rmtree(folder / warden.TEMPORARY, ignore_errors=True)
            if now - at > KEPT_DAYS * 86_400:
                shutil.rmtree(folder, ignore_errors=True)


def _alive(process: dict[str, object] | None) -> bool:
    return process is not None and warden.started(int(str(process["pid"]))) == process["started"] != ""

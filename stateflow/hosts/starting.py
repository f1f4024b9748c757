"""Starts a host in a process that outlives its starter, and knows whether one lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stateflow.driver.supervisor import end_of, started
from stateflow.errors import BusyError, StateflowError, UnavailableError, UsageError
from stateflow.hosts.client import LOG, Refused, ask, is_kept
from stateflow.hosts.keeper import locked
from stateflow.hosts.lease import renew
from stateflow.hosts.settings import (
    SETTINGS,
    HostSettings,
    KeeperProcess,
    differences,
    read_keeper,
    read_settings,
    write,
)
from stateflow.private_folders import make_private
from stateflow.spark.session.settings import require_image

_PROCESSES = (sys.executable, "-m", "stateflow.cli.host_processes")
KEEPER, APPLICATION = (*_PROCESSES, "keep"), (*_PROCESSES, "application")
START_TIMEOUT = 300.0
"""Seconds that Spark may take to start, on a cluster with a queue."""
_SHOWN = 12
"""Lines of the log that a failed start shows."""


def prepare(folder: Path, settings: HostSettings) -> None:
    """Writes what a host is started with. Raises BusyError while one lives."""
    master = settings.master or settings.conf.get("spark.master", "")
    _refuse_driver_elsewhere(master, settings.conf)
    require_image(master, settings.conf)
    require_free(folder, settings)
    make_private(folder)
    lock = locked(folder)  # a keeper that has begun since then has its settings there
    try:
        write(folder, SETTINGS, settings)
    finally:
        os.close(lock)
    renew(folder)


def _refuse_driver_elsewhere(master: str, conf: Mapping[str, str]) -> None:
    """UsageError where Spark's driver would be no process of this machine: runs are forked beside it."""
    if master.startswith("sc://"):
        raise UsageError(
            f"a host needs the driver's JVM, which Spark Connect does not have: {master} cannot be its master"
        )
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise UsageError(
            "a host's driver is a process beside it, because runs are forked there: leave out spark.submit.deployMode"
        )


def require_free(folder: Path, settings: HostSettings) -> None:
    """Raises BusyError while a host of this name lives, which keeps its settings."""
    kept_here = keeper_of(folder) is not None
    if not kept_here and not is_kept(folder):
        return
    name = folder.name
    stop, show = f"`stateflow host stop {name}`", f"`stateflow host show {name}`"
    if not kept_here:
        raise BusyError(
            f"the host {name!r} runs already, as a process of another container, which shares {folder}: end it there with {stop}, or "
            f"start one of another name here; see {show}"
        )
    if drains(folder):
        raise BusyError(
            f"the host {name!r} drains, and takes no runs any more: start it again when its runs have ended, as {show} says, or end "
            f"them after their batches with {stop}"
        )
    if others := differences(read_settings(folder), settings):
        raise BusyError(
            f"the host {name!r} runs already, with other settings, which it keeps ({'; '.join(others)}): to change them, end it first "
            f"with {stop}; see {show}"
        )
    raise BusyError(f"the host {name!r} runs already: see {show}")


def drains(folder: Path) -> bool:
    """Whether a host that lives takes no runs any more: all of its applications that answer drain, also where the last one has replaced
    others and ended before them."""
    answers = []
    for each in (folder, *folder.glob("application-*")):
        with suppress(Refused):
            answers.append(ask(each))
    return bool(answers) and all(each.get("draining") for each in answers)


def start(
    folder: Path,
    settings: HostSettings,
    environ: Mapping[str, str] = os.environ,
    timeout: float = START_TIMEOUT,
) -> dict[str, Any]:
    """Starts a host, waits until it takes runs, and returns what it says about itself."""
    prepare(folder, settings)
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [*KEEPER, str(folder)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd=folder, env=dict(environ),
        )  # fmt: skip
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # if it has ended already, its log says why
        process.stdin.write(msgspec.json.encode(settings))
    return _ready(folder, settings, process, timeout)


def _ready(
    folder: Path, settings: HostSettings, process: subprocess.Popen[bytes], timeout: float
) -> dict[str, Any]:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        renew(folder)  # a start may take longer than the lease, and whoever waits for it keeps the host
        if process.poll() is not None:
            require_free(folder, settings)  # somebody else may have started it in the same moment
            raise StateflowError(
                f"the host {folder.name!r} did not start: the end of {folder / LOG} says why\n{_reason(folder / LOG)}"
            )
        with suppress(Refused):
            return ask(folder)
        time.sleep(0.1)
    raise UnavailableError(
        f"the host {folder.name!r} has not started within {timeout:.0f} s, and goes on trying: see {folder / LOG}"
    )


def _reason(log: Path) -> str:
    """The end of a log without where in the code it was: Java's many lines of that would push out what went wrong."""
    lines = end_of(log).splitlines()
    said = [line for line in lines if line and not line.startswith(("\tat ", "\t... ", "  "))]
    return "\n".join(said[-_SHOWN:])


def keeper_of(folder: Path) -> KeeperProcess | None:
    """The process that keeps a host; None when there is none."""
    keeper = read_keeper(folder)
    return keeper if keeper is not None and started(keeper.pid) == keeper.started != "" else None


def has_died(folder: Path) -> bool:
    """Whether a host's keeper was killed, or its machine is another one by now. One that was told to end leaves its settings alone."""
    was_told = (folder / SETTINGS).exists() and read_keeper(folder) is None
    return keeper_of(folder) is None and not was_told


def drain(folder: Path) -> bool:
    """Tells a host to end when its runs have ended; False when there is none."""
    keeper = keeper_of(folder)
    if keeper is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(keeper.pid, signal.SIGUSR1)
    return True

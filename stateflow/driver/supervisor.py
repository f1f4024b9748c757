"""Supervises one driver: `python supervisor.py FOLDER`. It has a session of its own, so that it outlives its starter.

It starts the command of FOLDER/command.json and sends its output to FOLDER/output.log. It obeys FOLDER/stop. When no process
of the driver is left, it removes FOLDER/temporary and writes FOLDER/exit. It imports only the standard library: it has to be
up in milliseconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PAUSE = 0.1
SIGN = 600.0
"""Seconds after which a supervisor touches its own file: processes in another container that shares FOLDER see nothing else of it."""
TEMPORARY = "temporary"
"""The folder in FOLDER for files that go with the driver."""
OUTPUT = "output.log"
LOG_BYTES = 64 << 20
"""The size at which a log is begun anew: a driver or a host may live for years."""
_END_BYTES = 64 << 10
ITSELF = "warden"
"""The file in FOLDER with the supervisor's own process. Its name is frozen: a driver may be older than the package that looks
for it."""


def write(path: Path, body: dict[str, Any]) -> None:
    """Writes the whole file or none of it, also where others write it at the same time."""
    part = path.with_suffix(f".{os.urandom(4).hex()}.part")
    part.write_text(json.dumps(body), encoding="utf-8")
    part.rename(path)


def read(path: Path) -> dict[str, Any] | None:
    """None while the file does not exist."""
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return body


def started(pid: int) -> str:
    """When a process started: tells it from a later process with the same number. Empty when there is no process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _started_without_proc(pid)
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _started_without_proc(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, since = listing.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else since.strip()


def earlier(log: Path) -> Path:
    """The file with what a log had before it was begun anew."""
    return log.with_name(f"{log.name}.1")


def bound(log: Path) -> None:
    """Begins a log anew that has become too large. Whoever has it open, and writes at its end, goes on in the same file. The lines of
    the instant between the copy and the cut are lost, and on a disk that is full what was not copied."""
    with suppress(OSError):
        if log.stat().st_size < LOG_BYTES:
            return
        with suppress(OSError):
            shutil.copyfile(log, earlier(log))
        os.truncate(log, 0)


def end_of(log: Path) -> str:
    """The end of a log, also of one that was begun anew just now."""
    end = b""
    for each in (earlier(log), log):
        with suppress(FileNotFoundError), each.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
            end += file.read(_END_BYTES)
    return end.decode(errors="replace")


def supervise(folder: Path) -> int:
    """Starts the driver and waits for its end."""
    command = read(folder / "command.json")
    if command is None:
        return 2
    write(folder / ITSELF, {"pid": os.getpid(), "started": started(os.getpid())})
    with (folder / OUTPUT).open("ab") as output:
        try:
            driver = subprocess.Popen(
                command["argv"], cwd=command["cwd"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            output.write(f"stateflow: {command['argv'][0]} cannot be started: {error}\n".encode())
            write(folder / "exit", {"code": 127, "at": time.time()})
            return 0
    write(folder / "driver", {"pid": driver.pid, "started": started(driver.pid)})
    code = _watch(driver, folder)
    _kill(driver.pid)  # what is left of its process group
    shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
    write(folder / "exit", {"code": code, "at": time.time()})
    return 0


def _watch(driver: subprocess.Popen[bytes], folder: Path) -> int:
    since: float | None = None
    touched = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return driver.wait(PAUSE)
        bound(folder / OUTPUT)
        if time.monotonic() - touched >= SIGN:
            touched = time.monotonic()
            with suppress(OSError):  # a disk that is read-only by now ends no driver
                os.utime(folder / ITSELF)
        order = read(folder / "stop")
        if order is None:
            continue
        since = since if since is not None else time.monotonic()
        if time.monotonic() - since >= float(order["grace"]):
            _kill(driver.pid)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Whose starter ignores it learns no exit code of a child: a failed driver would count as one that ended well.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.exit(supervise(Path(sys.argv[1])))

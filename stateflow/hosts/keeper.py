"""Keeps a host's name served: starts its Spark application, and a new one when that has died or wants to be replaced.

A replacement takes the name when it is ready; the old one then drains, so that no run waits for the change. At SIGUSR1, and when
its lease is over, the keeper ends when all runs have ended by themselves; at SIGTERM each run ends after its batch; at a second
SIGTERM all ends at once. A run that does not end by itself, such as a continuous one, ends after its batch when an application has
drained for long enough; if a replacement is there, it begins again on that one.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateflow.driver.supervisor import bound, started
from stateflow.errors import BusyError
from stateflow.hosts.client import CURRENT, KEEPER, LOCK, LOG
from stateflow.hosts.lease import Lease
from stateflow.hosts.log import log
from stateflow.hosts.settings import (
    SETTINGS,
    Current,
    HostSettings,
    KeeperProcess,
    forget,
    read_keeper,
    read_settings,
    write,
)

STOP, DRAIN = signal.SIGTERM, signal.SIGUSR1
SIGNALS = 0
"""Who has said what is a signal; applications have numbers from 1."""
CLAIM = 0.5
"""Seconds to try to become the keeper: whoever asks whether there is one has the lock for a moment."""
MOST_PAUSE = 60.0
"""The longest pause, in seconds, before another start: it doubles with each start that fails after another one."""
GRACE = 10.0
"""Seconds that an application that is told to end at once has for it, before it is killed."""
LAST_WORK = 30.0
"""Seconds that Spark's JVM and the zygote may take to end behind their application."""


@dataclass
class _Application:
    number: int
    process: subprocess.Popen[bytes]
    processes: dict[str, int] = field(default_factory=dict)
    ready: bool = False
    draining_since: float = 0.0
    stopping_since: float = 0.0
    ending_since: float = 0.0
    stale: bool = False
    """Whether it wants to be replaced. It goes on until another one is ready, however often that one does not start."""
    replaced: bool = False
    lost: bool = False
    """Whether its Spark has died. It ends when its runs have, and another one starts at once."""


class Keeper:
    def __init__(self, folder: Path, settings: HostSettings, application: Sequence[str]) -> None:
        """`application`: the prefix of the command of an application; its folder and number are appended."""
        self._command = application
        self.folder = folder
        self.settings = settings
        self._applications: dict[int, _Application] = {}
        self._current: _Application | None = None
        self._next = 1
        self._pause = 0.0
        """Seconds before another start. It grows with each one that fails; an application that has started ends it."""
        self._start_at = 0.0
        self._ending = False
        self._stopping = False
        self._said: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()

    def keep(self) -> int:
        """Until it is told to end. The exit code: 1 if the first application did not start."""
        for number in (STOP, signal.SIGINT, DRAIN):
            signal.signal(number, self._on_signal)
        # Whose starter ignores it learns no exit code of a child.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lease = Lease(self.folder, self.settings.lease, time.monotonic())
        self._start()
        while True:
            with suppress(queue.Empty):
                self._hear(*self._said.get(timeout=0.5))
                continue
            bound(self.folder / LOG)
            if self._ending and not self._applications:
                return 0
            if not self._ending and (why := self._is_left(lease)):
                log(f"{why}: the host drains")
                self._end_all(DRAIN)
            if self._has_never_worked and not self._applications:
                return 1  # it has never worked: whoever starts it sees why
            if (
                not self._ending
                and self._starting is None
                and (self._current is None or self._current.stale)
                and time.monotonic() >= self._start_at
            ):
                self._start()
            for each in list(self._applications.values()):
                self._hurry(each, time.monotonic() - self.settings.drain_timeout)

    def _is_left(self, lease: Lease) -> str:
        """Why nobody needs this host any more; empty while somebody may."""
        if lease.has_lapsed(time.monotonic()):
            return f"nobody has renewed the lease for {self.settings.lease:.0f} s"
        if not _is_ours(self.folder):
            return f"{self.folder / KEEPER} was removed, so nobody finds the host any more"
        return ""

    @property
    def _has_never_worked(self) -> bool:
        return self._pause > 0 and self._next == 2

    @property
    def _starting(self) -> _Application | None:
        return next((each for each in self._applications.values() if not each.ready), None)

    def _start(self) -> None:
        number, self._next = self._next, self._next + 1
        command = [*self._command, str(self.folder), str(number)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:  # the machine has no memory or no process left
            self._try_later(f"application {number} cannot start: {error}", failed=True)
            return
        application = self._applications[number] = _Application(number, process)
        log(f"application {number} starts (process {process.pid})")
        threading.Thread(target=self._listen, args=[application], daemon=True).start()

    def _listen(self, application: _Application) -> None:
        assert application.process.stdout is not None
        for line in application.process.stdout:
            message = _message_in(line)
            if message is None:
                log(line.decode(errors="replace").rstrip())
            else:
                self._said.put((application.number, message))
        application.process.wait()
        _wait_for_the_end(application.processes)
        self._said.put((application.number, None))

    def _hear(self, number: int, message: dict[str, Any] | None) -> None:
        if number == SIGNALS and message is not None:
            self._end_all(message["signal"])
            return
        application = self._applications[number]
        if message is None:
            self._ended(application)
        elif "ready" in message:
            self._take_over(application, message)
        elif "lost" in message:
            self._lose(application)
        elif "recycle" in message:
            log(f"application {number} is replaced: {message['recycle']}")
            application.stale = True

    def _lose(self, application: _Application) -> None:
        application.lost = True
        if application is self._current:
            self._vacate()
            log(f"the Spark of application {application.number} has died: another one starts")

    def _vacate(self) -> None:
        """From here on no application has the host's name."""
        self._current = None
        if _is_ours(self.folder):
            (self.folder / CURRENT).unlink(missing_ok=True)

    def _take_over(self, application: _Application, message: dict[str, Any]) -> None:
        if application.lost:
            return
        current = Current(message["ready"], application.process.pid, application.number, time.time())
        try:
            write(self.folder, CURRENT, current)
        except OSError as error:  # such as a disk that is full: the one before goes on meanwhile
            log(f"application {application.number} cannot take the name of the host: {error}")
            self._end(application)
            return
        application.ready, application.processes = True, message["processes"]
        self._pause = 0.0
        before, self._current = self._current, application
        log(
            f"application {application.number} takes runs (JVM {application.processes.get('jvm', 'elsewhere')})"
        )
        if before is not None:
            self._drain(before, "replaced")
        if self._ending:
            self._drain(application)

    def _drain(self, application: _Application, how: str = "drain") -> None:
        """`how`: "drain" and "replaced" let runs end by themselves, "stop" and "move" after their batch."""
        now = time.monotonic()
        application.draining_since = application.draining_since or now
        application.replaced = application.replaced or how == "replaced"
        if how in ("stop", "move"):
            application.stopping_since = application.stopping_since or now
        self._tell(application, how)

    def _hurry(self, application: _Application, long_ago: float) -> None:
        """Stops the runs of an application that drains since before then, and ends it if it stops since before then."""
        number, limit = application.number, self.settings.drain_timeout
        if application.ending_since:
            self._kill_if_deaf(application)
        elif 0 < application.stopping_since < long_ago:
            log(f"application {number} did not stop in {limit:.0f} s: it is ended with its runs")
            self._end(application)
        elif not application.stopping_since and 0 < application.draining_since < long_ago:
            log(f"application {number} did not drain in {limit:.0f} s: each of its runs ends after its batch")
            self._drain(application, "move" if application.replaced and not self._ending else "stop")

    def _tell(self, application: _Application, what: str) -> None:
        assert application.process.stdin is not None
        with suppress(OSError, ValueError):
            application.process.stdin.write(f"{what}\n".encode())
            application.process.stdin.flush()

    def _ended(self, application: _Application) -> None:
        del self._applications[application.number]
        code = application.process.returncode
        if application is self._current:
            self._vacate()
        if self._ending or (application.ready and (code == 0 or application.lost)):
            return
        self._try_later(
            f"application {application.number} has ended with code {code}", failed=not application.ready
        )

    def _try_later(self, why: str, *, failed: bool) -> None:
        """Sets when another application starts. `failed`: if the last one has not started."""
        if failed:
            self._pause = min(MOST_PAUSE, 2 * self._pause + 1)
        if self._has_never_worked:
            log(f"{why}: the host ends, since its first one did not start")
            return
        self._start_at = time.monotonic() + self._pause
        log(f"{why}: another one starts{f' in {self._pause:.0f} s' if self._pause else ''}")

    def _on_signal(self, number: int, frame: object) -> None:
        """Only notes it: a signal may come while the keeper tells an application something, whose pipe takes one word at a time."""
        self._said.put((SIGNALS, {"signal": number}))

    def _end_all(self, number: int) -> None:
        """What a signal of this number asks for."""
        stops, before = number != DRAIN, self._stopping
        self._ending, self._stopping = True, before or stops
        for each in list(self._applications.values()):
            if each.ready and not (stops and before):
                self._drain(each, "stop" if stops else "drain")
            else:
                self._end(each)

    def _end(self, application: _Application) -> None:
        """Ends an application with its runs, as a lost machine would: what they have decided is carried out by their next run."""
        assert application.process.stdin is not None
        application.ending_since = application.ending_since or time.monotonic()
        with suppress(OSError):
            application.process.stdin.close()

    def _kill_if_deaf(self, application: _Application) -> None:
        """Kills an application that does not end, with Spark's JVM; the zygote and the runs end when it is gone."""
        if time.monotonic() - application.ending_since < GRACE or application.process.poll() is not None:
            return
        log(f"application {application.number} did not end in {GRACE:.0f} s: it is killed")
        with suppress(ProcessLookupError):
            os.killpg(application.process.pid, signal.SIGKILL)


def _message_in(line: bytes) -> dict[str, Any] | None:
    """What an application says in a line; None for a line that is none of its messages, such as one that a library has printed."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    is_ready = isinstance(message.get("ready"), str) and isinstance(message.get("processes"), dict)
    return message if is_ready or "lost" in message or "recycle" in message else None


def _wait_for_the_end(processes: Mapping[str, int]) -> None:
    """Of all processes of an application that has ended: whoever asked for the end of a host finds nothing of it."""
    until = time.monotonic() + LAST_WORK
    while any(map(started, processes.values())) and time.monotonic() < until:
        time.sleep(0.05)


def claim(folder: Path) -> int:
    """Makes this process the keeper of a host. The lock is held as long as it lives."""
    lock = locked(folder)
    forget(folder)
    write(folder, KEEPER, KeeperProcess(os.getpid(), started(os.getpid())))
    return lock


def locked(folder: Path) -> int:
    """The lock of a host, which its keeper holds as long as it lives. Raises BusyError while there is one."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + CLAIM
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                raise BusyError(
                    f"the host {folder.name!r} runs already: see `stateflow host show {folder.name}`"
                ) from None
            time.sleep(0.05)


def _is_ours(folder: Path) -> bool:
    """Whether this process keeps the host of a folder: somebody may have removed what was there, and another host may be there now."""
    try:
        keeper = read_keeper(folder)
    except OSError:
        return True  # the disk does not tell
    return keeper is not None and keeper.pid == os.getpid()


def keep(folder: Path, application: Sequence[str], settings: HostSettings | None = None) -> int:
    """Keeps a host until it is told to end; its exit code. `application`: see `Keeper`. `settings`: else those in its folder."""
    lock = claim(folder)
    try:
        if settings is not None:
            write(folder, SETTINGS, settings)  # somebody may have prepared a start with others meanwhile
        code = Keeper(folder, read_settings(folder), application).keep()
        if code and _is_ours(folder):
            (folder / SETTINGS).unlink(missing_ok=True)  # it has never been there
        return code
    finally:
        if _is_ours(folder):
            forget(folder)
        os.close(lock)

"""A process of one thread that has imported what runs and Python workers need, and forks them in milliseconds.

It never does anything else: a thread, an open store or a connection to Spark would be copied into each fork. `serve` obeys the host's
process over a socket and Spark's workers over another one. It ends, with all it has forked, when the host's process does.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from stateflow.hosts.client import Connection
from stateflow.hosts.forked import become_run, become_workers
from stateflow.hosts.log import log, log_exception

IMPORTED = (
    "stateflow.jobs.running",
    "stateflow.jobs.job",
    "stateflow.jobs.run_secrets",
    "stateflow.pipelines.loading",
    "stateflow.pipelines.bounds",
    "stateflow.spark.runner",
    "stateflow.spark.session.build",
    "stateflow.spark.session.lent",
    "stateflow.spark.task.daemon",
    "stateflow.cli.main",
    "stateflow",
    "pyspark.sql",
    "pyspark.sql.functions",
    # PySpark itself loads it, with unittest and protobuf, when a session is made.
    "pyspark.testing",
    "rich.progress",
)


Command = Callable[[list[str]], object]
SHIM = 5.0
"""Seconds that a process that stands in for Spark's Python has for its message: the zygote does nothing else meanwhile."""
PAUSE = 0.1
"""Seconds behind a message that could not be obeyed: what hinders it, such as want of file descriptors, may last."""


def import_all() -> None:
    """Imports what a run and a worker import. What is missing here, such as pandas, a run does without."""
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    daemon = sys.modules["stateflow.spark.task.daemon"]
    daemon.import_all()
    import stateflow as sf

    for name in dir(sf):  # each name is loaded when it is first used
        with suppress(Exception):
            getattr(sf, name)


class EndedShim(ValueError):
    """A process that stands in for Spark's Python has ended before it had said for what."""


@dataclass
class _Place:
    """What is forked for one place of the host: at most one run, and the process that its workers are forked from."""

    run: int = 0
    errors: int = -1
    """The run's standard error, which its workers have, too."""
    workers: list[int] = field(default_factory=list)


class Zygote:
    """Forks, and tells the host's process what has ended."""

    def __init__(
        self, host: socket.socket, workers: socket.socket, lifeline: tuple[int, int], command: Command
    ) -> None:
        self._host = Connection(host)
        self._listener = workers
        self._lifeline = lifeline
        self._command = command
        self._places: dict[int, _Place] = {}
        self._shims: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake)
        self._wakeup = wake

    def serve(self) -> None:
        self._selector.register(self._host.sock, selectors.EVENT_READ, self._obey)
        self._selector.register(self._listener, selectors.EVENT_READ, self._fork_workers)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)
        while True:
            for key, _ in self._selector.select():
                work: Callable[[], None] = key.data
                try:
                    work()
                except Exception:  # one message must not end the runs of others
                    log_exception()
                    time.sleep(PAUSE)

    def _obey(self) -> None:
        message, files = self._host.receive(most_files=3)
        if message is None:
            self._end()
        elif message["do"] == "run":
            self._fork_run(message, files)
        elif message["do"] == "signal":
            if self._place(message["place"]).run == message["pid"]:
                with suppress(ProcessLookupError):
                    os.kill(message["pid"], message["number"])
        elif message["do"] == "end":
            self._end_place(message["place"])

    def _place(self, number: int) -> _Place:
        return self._places.setdefault(number, _Place())

    def _fork_run(self, message: dict[str, Any], files: list[int]) -> None:
        place = self._place(message["place"])
        try:
            _require_standard_files(files)
            pid = os.fork()
        except (OSError, ValueError) as error:  # the machine has no memory, process or file descriptor left
            for each in files:
                os.close(each)
            self._host.send({"place": message["place"], "failed": str(error)})
            return
        if pid == 0:
            self._become(files, lambda: become_run(message, files, self._command))
        place.run = pid
        if place.errors >= 0:
            os.close(place.errors)
        place.errors = files[2]
        for each in files[:2]:
            os.close(each)
        self._host.send({"place": message["place"], "started": pid})

    def _fork_workers(self) -> None:
        sock, _ = self._listener.accept()
        files: list[int] = []
        try:
            sock.settimeout(SHIM)
            number, modules, entries = _asked_by(sock, files)
            place = self._place(int(number))
            variables = dict(entry.split(b"=", 1) for entry in entries.split(b"\0") if b"=" in entry)
            pid = os.fork()
        except (OSError, ValueError) as error:
            # Spark sees that what it has started is gone, and says so in the run whose task it is. Where Spark has ended it itself, as
            # for a task that was cancelled, it does not ask.
            if not isinstance(error, EndedShim):
                log(f"no Python worker could be started: {error}")
            for each in files:
                os.close(each)
            sock.close()
            return
        if pid == 0:
            errors = place.errors if place.errors >= 0 else files[2]
            its = [*files[:2], errors]
            self._become(its, lambda: become_workers(modules.decode().split("\0"), variables, its))
        place.workers.append(pid)
        self._shims[pid] = sock
        for each in files:
            os.close(each)

    def _become(self, files: Sequence[int], work: Callable[[], None]) -> None:
        """In a fork: never returns. `files`: its own ones."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            os.close(self._lifeline[1])
            for each in (self._wake, self._wakeup):
                os.close(each)
            self._host.sock.close()
            self._listener.close()
            for shim in self._shims.values():
                shim.close()
            # Whoever reads what another run says waits until nobody has its standard error any more.
            for errors in {place.errors for place in self._places.values()} - {-1, *files}:
                os.close(errors)
            gc.unfreeze()
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if shim := self._shims.pop(pid, None):
                shim.close()
            for number, place in self._places.items():
                if place.run == pid:
                    place.run = 0
                    code = os.waitstatus_to_exitcode(status)
                    _kill_group(pid)  # what the run has started and left
                    self._host.send({"place": number, "ended": pid, "code": code})
                elif pid in place.workers:
                    place.workers.remove(pid)

    def _end_place(self, number: int) -> None:
        place = self._place(number)
        for pid in (place.run, *place.workers):
            if pid:
                _kill_group(pid)
        if not place.run and place.errors >= 0:
            os.close(place.errors)
            place.errors = -1

    def _end(self) -> None:
        for number in self._places:
            self._end_place(number)
        os._exit(0)


def _asked_by(sock: socket.socket, files: list[int]) -> tuple[bytes, bytes, bytes]:
    """The place, the modules and the environment that a process that stands in for Spark's Python tells. Its standard files come into
    `files`. ValueError for a message that is not whole."""
    body = Connection(sock).body(files, most_files=3)
    if body is None:
        raise EndedShim
    _require_standard_files(files)
    number, modules, entries = body.split(b"\0\0", 2)
    return number, modules, entries


def _require_standard_files(files: Sequence[int]) -> None:
    if len(files) != 3:
        raise ValueError(f"of standard input, output and error {len(files)} arrived")


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def start(folder: Path, command: Command, hosts_own: Sequence[int] = ()) -> tuple[int, Connection]:
    """Forks the zygote of a host from this process, which has no thread yet. Its pid, and the connection to it.

    `command`: what a run gives its arguments to. `hosts_own`: file descriptors that neither the zygote nor a run may have.
    """
    mine, its = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "workers"))
    listener.listen(64)
    pid = os.fork()
    if pid:
        its.close()
        listener.close()
        return pid, Connection(mine)
    mine.close()
    try:
        for each in hosts_own:
            os.close(each)
        # Signals of a terminal are for the host's process, which ends this one.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        import_all()
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page
        lifeline = os.pipe()
        Connection(its).send({"ready": os.getpid()})
        from stateflow.hosts import forked

        forked.LIFELINE = lifeline[0]
        Zygote(its, listener, lifeline, command).serve()
    finally:
        os._exit(1)

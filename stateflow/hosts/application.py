"""One Spark application of a host: it takes runs over a socket and gives each a place, a session and a process.

The host's keeper starts it, and hears when it takes runs and when it wants to be replaced, through the pipe that is its standard output
at its start. What Spark, a jar or a library prints there from then on goes to the log. It ends with all its runs when its standard
input closes: the keeper is gone then.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from stateflow.hosts import zygote
from stateflow.hosts.client import (
    BUSY,
    CURRENT,
    FAILED,
    LOG,
    UNAVAILABLE,
    UNSERVED,
    USAGE,
    Connection,
    Refused,
    package_folder,
    python_folder,
    request,
)
from stateflow.hosts.forked import BEGUN
from stateflow.hosts.log import log, log_exception
from stateflow.hosts.places import Places
from stateflow.hosts.settings import Current, HostSettings, read_settings, write
from stateflow.hosts.spark_settings import host_settings
from stateflow.hosts.upgrades import installed
from stateflow.quantities import several

if TYPE_CHECKING:
    from subprocess import Popen

    from stateflow.spark.internals.lending import Lent

WARM = 20
"""Runs after which memory is measured, to compare later measures with."""
LOOKS = 1.0
"""Seconds between two looks at Spark's JVM and at memory."""
DEAF = 1.0
"""Seconds until an application that could answer nobody tries again."""
LAST_WORDS = 10.0
"""Seconds that runs have to end by themselves when the JVM is gone."""
OF_SPARKS_OWN = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "SPARK_", "YARN_")
"""What the JVM has read from its environment. A run with other values needs a JVM of its own."""
ADDRESS = 100
"""Bytes that the address of a socket may have on every system."""
CHANGED = "the library, or a package beside it, was changed since it started"
WARMING_RUNS = (("warming", "in", "table"), ("warming", "in", "table"), ("warming_delta", "table", "out"))
"""A pipeline, its input and its output. The first run begins a job, the second carries on, the third reads Delta: it takes 3 CPU s of
a host's start, and saves one in the first run that reads such a table."""
_WARMING = Path(__file__).parent / "warming.py"
_SHIM = Path(__file__).parent / "worker_shim.py"
_ALLOWED = ("SPARK_HOME", "SPARK_ENV_LOADED", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")


@dataclass
class HostedRun:
    """A run on this host."""

    job: str
    place: int
    since: float
    client: Connection
    pid: int = 0
    told_to_end: bool = False
    """By its client."""


class Application:
    def __init__(
        self, folder: Path, number: int, settings: HostSettings, command: zygote.Command, keeper: int
    ) -> None:
        """`keeper`: the file descriptor at which the keeper hears what this application says."""
        self.name = folder.name
        self._keeper = keeper
        self.number = number
        self.settings = settings
        self.folder = folder / f"application-{number}-{os.getpid()}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self.sockets = _sockets_of(self.folder)
        self.places = Places(settings.places)
        self.runs: dict[int, HostedRun] = {}
        self.served = 0
        self.since = time.time()
        self.stale = ""
        """Why it is to be replaced; empty while it is not."""
        self.replaced = False
        """Whether another application takes the runs of this host now."""
        self._only_folder = ""
        """The folder that relative paths of all runs mean; empty where each run has its own."""
        self._stopping = False
        self._moving = False
        """Whether runs that are stopped begin again on the application that has replaced this one."""
        self._outdated = False
        self._lost = False
        self._spark_process: Popen[bytes] | None = None
        # Noted now: who turns a link to another installation while the host runs has not changed what it has imported.
        self._package, self._python = package_folder(), python_folder()
        self._installed = installed()
        self._environ = dict(os.environ)
        self._ids = itertools.count(1)
        self._events: dict[int, SimpleQueue[dict[str, Any]]] = {
            place: SimpleQueue() for place in range(1, settings.places + 1)
        }
        self._warm = 0
        self._zygote_pid, self._zygote = zygote.start(self.sockets, command, [keeper])
        self._to_zygote = threading.Lock()

    def open(self) -> None:
        """Starts Spark, while the zygote imports, and takes runs."""
        from stateflow.config.options import Options, cache_folder, scratch_parent
        from stateflow.spark.internals.gateway import process_of_jvm
        from stateflow.spark.internals.local_files import can_work_anywhere
        from stateflow.spark.session.build import build_session
        from stateflow.spark.session.jars import recorded_bundles
        from stateflow.spark.session.settings import one_process

        conf = host_settings(self.settings.conf, self.settings.master)
        self.spark = build_session(
            f"stateflow host {self.name}",
            master=self.settings.master,
            conf=conf,
            scratch=scratch_parent(Options()),
            bundles=recorded_bundles(cache_folder()),
        )
        self.master = str(self.spark.sparkContext.master)
        self._spark_process = process_of_jvm()
        self._only_folder = "" if can_work_anywhere(self.spark) else str(Path.cwd())
        ready, _ = self._zygote.receive()
        if ready is None:
            raise RuntimeError("the zygote has died while it imported: see the lines above")
        for place in range(1, self.settings.places + 1):
            self._make_place(place)
        self.listen()
        if self.settings.warms and one_process(self.master):
            self._warm_up()

    def listen(self) -> None:
        """Takes runs from here on."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.sockets / "runs"))
        self._listener.listen(256)
        for work in (self._read_zygote, self._accept, self._watch):
            threading.Thread(target=self._carry_on, args=[work], daemon=True).start()

    def _carry_on(self, work: Callable[[], None]) -> None:
        """Does what an application cannot be without. If it ends, so does the application, and the keeper starts another one."""
        try:
            work()
        except BaseException:
            log_exception()
        self.end(f"its thread {work.__name__.strip('_')} has ended")

    def _warm_up(self) -> None:
        """Carries out small pipelines: whatever Spark does for the first time takes it seconds."""
        folder = self.folder / "warming"
        (folder / "in").mkdir(parents=True)
        self.served = -len(WARMING_RUNS)  # nobody's runs use it up
        null = os.open(os.devnull, os.O_RDWR)
        for number, (pipeline, source, target) in enumerate(WARMING_RUNS):
            (folder / "in" / f"{number}.json").write_text('{"key": "a", "seen": 1}\n', encoding="utf-8")
            words = [f"{_WARMING}:{pipeline}", "-p", f"input={folder / source}", "-p", f"output={folder / target}"]  # fmt: skip
            words += ["--checkpoint-dir", str(folder / "checkpoints"), "--option", "progress=false"]
            asked = request(["run", *words], plain(self._environ), wait=0.0) | {"cwd": str(folder)}
            ours, theirs = map(Connection, socket.socketpair())
            asking = threading.Thread(target=self._run, args=[theirs, asked, [null, null, 2]], daemon=True)
            asking.start()
            answer: dict[str, Any] | None = {}
            while answer is not None and "exit" not in answer and "refused" not in answer:
                answer, _ = ours.receive()
            asking.join()
            ours.sock.close()
            theirs.sock.close()
            if answer is None or answer.get("exit") != 0:
                log(f"application {self.number} is not warm: {answer}")
                break
        os.close(null)
        shutil.rmtree(folder, ignore_errors=True)
        self.served = 0

    def _make_place(self, place: int) -> None:
        program = self._program(place)
        program.parent.mkdir(mode=0o700)
        words = " ".join(
            _quoted(str(each))
            for each in (sys.executable, "-I", "-S", _SHIM, self.sockets / "workers", place)
        )
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        program.chmod(0o700)

    def _program(self, place: int) -> Path:
        """What Spark starts for the Python workers of a place."""
        return self.folder / f"place-{place}" / "python"

    def _accept(self) -> None:
        said = ""
        while True:
            try:
                self._accept_one()
                said = ""
            except (OSError, RuntimeError) as error:  # no file descriptor or no thread is left
                if str(error) != said:
                    said = str(error)
                    log(
                        f"application {self.number} can answer nobody until some of those who wait have gone: {error}"
                    )
                time.sleep(DEAF)

    def _accept_one(self) -> None:
        sock, _ = self._listener.accept()
        try:
            if _user_of(sock) in (None, os.getuid()):
                threading.Thread(target=self._answer, args=[Connection(sock)], daemon=True).start()
                return
        except RuntimeError:  # its client sees that nobody answers, and asks again
            sock.close()
            raise
        sock.close()

    def _answer(self, connection: Connection) -> None:
        files: list[int] = []
        try:
            message, files = connection.receive(most_files=3)
            if message is None:
                return
            if message["ask"] == "run":
                connection.send(
                    {"heard": True}
                )  # whoever hears nothing takes this host for one that is stuck
                self._run(connection, message, files)
            elif message["ask"] == "show" and not self._spark_has_died():
                connection.send(self.shown())
        except (OSError, KeyError, TypeError, ValueError):
            pass  # whoever asked is gone, or does not speak as this version does
        finally:
            for each in files:
                os.close(each)
            connection.sock.close()

    def _run(self, connection: Connection, message: dict[str, Any], files: list[int]) -> None:
        if self._spark_has_died():
            connection.send(self._not_taken())
            return
        if refusal := self.unfit(message):
            connection.send({"refused": refusal, "exit_code": USAGE})
            return

        if len(files) != 3:  # this process has no file descriptor left for them
            why = f"of the run's standard input, output and error only {len(files)} arrived here: try later, or end some of the runs that wait"
            connection.send({"refused": why, "exit_code": UNAVAILABLE})
            return

        def left() -> bool:
            asked = select.poll()  # select() knows no descriptor above 1023
            asked.register(connection.sock, select.POLLIN)
            return bool(asked.poll(0))

        def waits() -> None:
            connection.send({"waits": CHANGED if self._outdated else self._full()})

        place = self.places.take(float(message["wait"]), left, waits, lambda: not self._changed())
        if place is None:
            with suppress(OSError):
                connection.send(self._not_taken())
            return
        try:
            self._run_at(place, connection, message, files)
        finally:
            self.places.give_back(place)

    def _changed(self) -> bool:
        """Whether what this application has imported is no longer what is installed. It begins no run then."""
        if self._outdated:
            return True
        try:
            self._outdated = installed() != self._installed
        except OSError:  # no file descriptor is left to look with
            return False
        if self._outdated:
            self.recycle(CHANGED)
        return self._outdated

    def _full(self) -> str:
        """What whoever waits for a place hears, who is the last of those who wait."""
        before = self.places.waiting - 1
        others = f", and {several(before, 'run')} waiting before this one" if before else ""
        return f"it has {several(self.places.count, 'place')}, all taken{others}"

    def _not_taken(self) -> dict[str, Any]:
        if self._lost:
            return {"refused": "its Spark has died", "exit_code": UNAVAILABLE}
        if self.replaced:
            return {"again": True}
        if self.places.draining:
            return {"refused": "it is draining: try later, or name another host", "exit_code": BUSY}
        if self._outdated:
            why = f"{CHANGED}, and its replacement is not ready: {self.folder.parent / LOG} says why if it does not come soon"
            return {"refused": why, "exit_code": BUSY}
        taken = "its place is" if self.places.count == 1 else f"all its {self.places.count} places are"
        who = f"`stateflow host show {self.name}` says by whom; try later, or start the host with more --runs"
        return {"refused": f"{taken} taken: {who}", "exit_code": BUSY}

    def _spark_has_died(self) -> bool:
        """Whether it has. Tells the keeper, which starts another application; whoever waits for a place asks that one."""
        if not self._lost and self._spark_process is not None and self._spark_process.poll() is not None:
            self._lost = True
            self.places.drain()
            self.say({"lost": True})
        return self._lost

    def _run_at(self, place: int, connection: Connection, message: dict[str, Any], files: list[int]) -> None:
        from stateflow.spark.internals.lending import Lent

        number = next(self._ids)
        try:
            lent = Lent(
                self.spark,
                f"stateflow-{self.number}-{number}",
                f"place-{place}",
                "" if self._only_folder else message["cwd"],
            )
        except Exception:  # whatever a JVM that dies, or is out of memory, answers with
            log_exception()
            self._spark_has_died()
            with suppress(OSError):
                connection.send({"refused": "its Spark does not answer", "exit_code": UNAVAILABLE})
            return
        run = self.runs[number] = HostedRun(_job_in(message["argv"]), place, time.time(), connection)
        events = self._events[place]
        code: int | None = None
        try:
            loan = lent.loan
            self._note_begun(place)
            self._tell_zygote(
                {
                    **{name: message[name] for name in ("argv", "environ", "cwd", "umask")},
                    "do": "run",
                    "place": place,
                    "place_folder": str(self.folder / f"place-{place}"),
                    "master": self.master,
                    "host": self.name,
                    "loan": {"run": loan.run, "port": loan.port, "secret": loan.secret},
                },
                files,
            )
            begun = events.get()
            if "failed" in begun:
                raise Refused(f"it cannot start a process: {begun['failed']}", UNAVAILABLE)
            run.pid = begun["started"]
            connection.send({"started": run.pid})
            if self._stopping:
                self._stop(run)
            code = self._follow(run)
        except Refused as refusal:
            with suppress(OSError):
                connection.send({"refused": str(refusal), "exit_code": refusal.exit_code})
        except OSError:
            code = self._kill(place, run.pid) if run.pid else None
        finally:
            # Whoever waits for the run waits no longer than for the run. The place is free when all is taken back.
            if code is not None:
                with suppress(OSError):
                    connection.send(self._said(code, run))
                    connection.sock.shutdown(socket.SHUT_RDWR)
            del self.runs[number]
            self.served += 1
            self._take_back(lent, place)

    def _note_begun(self, place: int) -> None:
        try:
            (self.folder / f"place-{place}" / BEGUN).touch()
        except OSError as error:
            raise Refused(f"it cannot write into its folder: {error}", UNAVAILABLE) from None

    def _take_back(self, lent: Lent, place: int) -> None:
        from stateflow.spark.internals.lending import stop_workers

        for work in (lent.take_back, lambda: stop_workers(self.spark, self._program(place))):
            try:
                work()
            except (
                Exception
            ):  # the next run of the place must not suffer; what stays, goes with the application
                log_exception()
        self._tell_zygote({"do": "end", "place": place})
        self._clear(place)

    def _follow(self, run: HostedRun) -> int:
        """The exit code of a run. What its client says goes to it; when the client is gone, the run is killed."""
        done = threading.Event()

        def listen() -> None:
            while True:
                message, _ = run.client.receive()
                if message is None:
                    if not done.is_set():
                        self._tell_zygote({"do": "end", "place": run.place})
                    return
                run.told_to_end = True
                self._signal(run, message["signal"])

        threading.Thread(target=listen, daemon=True).start()
        code: int = self._events[run.place].get()["code"]
        done.set()
        return code

    def _kill(self, place: int, pid: int) -> int:
        self._tell_zygote({"do": "end", "place": place})
        code: int = self._events[place].get()["code"]
        return code

    def _signal(self, run: HostedRun, number: int) -> None:
        self._tell_zygote({"do": "signal", "place": run.place, "pid": run.pid, "number": number})

    def _said(self, code: int, run: HostedRun) -> dict[str, Any]:
        """A run that was killed has a signal's number; a shell adds 128 to it. Any other code is the run's own only if it came to its end."""
        place = self.folder / f"place-{run.place}"
        if code >= 0 and (place / BEGUN).exists():
            return {"exit": FAILED, "says": ended_itself(run.job, code)}
        ended = (place / "ended").exists()
        if self._moving and not run.told_to_end and not ended and code in (0, -signal.SIGTERM):
            return {"again": True}
        if code == UNSERVED:
            with suppress(OSError):
                return {"refused": (place / "unserved").read_text(encoding="utf-8"), "exit_code": USAGE}
        return {"exit": code if code >= 0 else 128 - code}

    def _clear(self, place: int) -> None:
        folder = self.folder / f"place-{place}"
        for name in (BEGUN, "environment.json", "unserved", "endless", "ended"):
            (folder / name).unlink(missing_ok=True)
        note = folder / "temporary"
        with suppress(OSError):
            shutil.rmtree(note.read_text(encoding="utf-8"), ignore_errors=True)
            note.unlink()

    def unfit(self, message: Mapping[str, Any]) -> str:
        """Why this application cannot serve a run that has not begun; empty if it can."""
        if message["package"] != self._package:
            return f"it runs the library in {self._package}, and the run is of the one in {message['package']}: end the host, and start it with the run's"
        if message["python"] != self._python:
            return f"it runs the Python in {self._python}, and the run is of the one in {message['python']}: end the host, and start it with the run's"
        if not Path(message["cwd"]).is_dir():
            return f"the run stands in {message['cwd']}, and there is no such folder where the host is"
        if self._only_folder not in ("", message["cwd"]):
            return (
                f"the run stands in {message['cwd']}, and relative paths mean {self._only_folder} there: start the host without "
                "spark.hadoop.fs.file.impl, so that each run has its own folder"
            )
        given = message["environ"]
        for name in sorted({*given, *self._environ}):
            if (
                name.startswith(OF_SPARKS_OWN)
                and name not in _ALLOWED
                and given.get(name) != self._environ.get(name)
            ):
                return (
                    f"the variable {name} is another one than when the host was started, and Spark reads it at its start: start the "
                    "host again in the environment of its runs, or run with --host '' on a Spark of its own"
                )
        return ""

    def obey(self, keeper: Iterable[str]) -> NoReturn:
        """Does what the keeper says, a word a line, and ends when it says no more."""
        for line in keeper:
            self.replaced = self.replaced or line.strip() == "replaced"
            self.places.drain()
            if line.strip() in ("stop", "move"):
                self.stop_runs(moving=line.strip() == "move")
        self.end("the host is gone")

    def stop_runs(self, *, moving: bool) -> None:
        """Each run ends after its batch. `moving`: it begins again on the application that has replaced this one."""
        self._stopping, self._moving = True, moving
        for run in list(self.runs.values()):
            if run.pid:
                self._stop(run)

    def _stop(self, run: HostedRun) -> None:
        why = "its Spark is replaced, and the run goes on there" if self._moving else "it stops"
        with suppress(OSError):
            run.client.send({"stops": why})
        self._signal(run, signal.SIGTERM)

    def recycle(self, why: str) -> None:
        """Asks the keeper for a replacement. Until it is ready, this one goes on."""
        self.stale = why
        self.say({"recycle": why})

    def say(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):
            os.write(self._keeper, f"{json.dumps(message)}\n".encode())

    def shown(self) -> dict[str, Any]:
        """What people ask about."""
        return {
            "number": self.number,
            "pid": os.getpid(),
            "master": self.master,
            "since": self.since,
            "places": self.places.count,
            "waiting": self.places.waiting,
            "served": self.served,
            "draining": self.places.draining,
            "draining_since": self.places.draining_since,
            "processes": self.processes(),
            "memory": {name: resident(pid) for name, pid in self.processes().items()},
            "runs": [
                {
                    "job": run.job,
                    "since": run.since,
                    "pid": run.pid,
                    "place": run.place,
                    "endless": self._endless(run.place),
                }
                for run in list(self.runs.values())
            ],
        }

    def _endless(self, place: int) -> str:
        """The job of a continuous run; empty for one that ends with its input."""
        with suppress(OSError):
            return (self.folder / f"place-{place}" / "endless").read_text(encoding="utf-8")
        return ""

    def end(self, why: str, code: int = 1) -> NoReturn:
        """Ends this process at once. The zygote ends with it, and Spark's JVM, whose input closes."""
        log(f"application {self.number}: {why}")
        for folder in (self.sockets, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)

    def processes(self) -> dict[str, int]:
        jvm = {"jvm": self._spark_process.pid} if self._spark_process is not None else {}
        return {"host": os.getpid(), "zygote": self._zygote_pid, **jvm}

    def _tell_zygote(self, message: dict[str, Any], files: list[int] | None = None) -> None:
        with self._to_zygote:
            self._zygote.send(message, files or ())

    def _read_zygote(self) -> None:
        while True:
            message, _ = self._zygote.receive()
            if message is None:
                self.end("the zygote has died, and its runs with it")
            self._events[message["place"]].put(message)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOKS)
            if self._spark_has_died():
                until = time.monotonic() + LAST_WORDS
                while self.places.taken and time.monotonic() < until:
                    time.sleep(0.1)
                self.end("Spark's JVM has died")
            # Not `runs`: who has a place, and whose session is being opened, is not among them yet.
            if self.places.draining and not self.places.taken:
                self.end("drained", code=0)
            if not self.stale and not self.places.draining and (why := self._used_up()):
                self.recycle(why)

    def _used_up(self) -> str:
        if self.served >= self.settings.recycle_runs:
            return f"it has carried out {self.served} runs"
        if self.served < WARM:
            return ""
        memory = sum(resident(pid) for pid in self.processes().values())
        self._warm = self._warm or memory
        if memory > self._warm * (1 + self.settings.recycle_growth):
            return f"its memory has grown from {self._warm >> 20} to {memory >> 20} MiB"
        return ""


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment whose options are left as they are, apart from where local files lie: with the trigger of a continuous run, or the
    configuration file that has it, a small pipeline would not end, and the host not start."""
    own = set(environ) & {"STATEFLOW_CACHE_DIR", "STATEFLOW_SCRATCH_DIR"}
    return {
        name: value for name, value in environ.items() if name in own or not name.startswith("STATEFLOW_")
    }


def ended_itself(job: str, code: int) -> str:
    """What is said of a run whose pipeline, or a library of it, has ended the process."""
    return (
        f"stateflow: the run of {job} ended its Python with exit code {code} before it came to its end, as os._exit({code}) does: "
        "it counts as failed"
    )


def resident(pid: int) -> int:
    """The bytes of a process that are in memory; 0 where the system does not tell."""
    with suppress(OSError, IndexError, ValueError):
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _sockets_of(folder: Path) -> Path:
    """Where an application's sockets are: in its folder, which containers can share, if their addresses fit."""
    if len(os.fsencode(folder / "sockets" / "workers")) <= ADDRESS:
        (folder / "sockets").mkdir(mode=0o700)
        return folder / "sockets"
    return Path(tempfile.mkdtemp(prefix="stateflow-host-"))


def _user_of(sock: socket.socket) -> int | None:
    """The user on the other side; None where the system does not tell. The folder lets in nobody else anyway."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def _job_in(argv: list[str]) -> str:
    """For people: the job, or the pipeline whose name it has."""
    for at, word in enumerate(argv):
        if word == "--job" and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith("--job="):
            return word.removeprefix("--job=")
    return next((word for word in argv[1:] if not word.startswith("-")), "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _taken_from_spark() -> int:
    """The pipe to the keeper as a descriptor that only this process has. Spark's JVM prints where this process does, and what a jar
    prints is none of the keeper's business: standard output is the log from here on."""
    keeper = os.dup(1)
    os.dup2(2, 1)
    return keeper


def _take_all_descriptors() -> None:
    """Lets this process, and Spark's JVM, have as many open files as the system lets it: each run that waits needs four. The zygote was
    forked before, so that a run has the limit that the host was started with."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(folder: Path, number: int, command: zygote.Command) -> NoReturn:
    """Takes runs until standard input closes. `command`: what a run gives its arguments to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    application = Application(folder, number, read_settings(folder), command, _taken_from_spark())
    _take_all_descriptors()
    # Before Spark is there, too: whoever ends a host that starts does not wait for it.
    obeying = threading.Thread(target=application.obey, args=[sys.stdin], daemon=True)
    obeying.start()
    try:
        application.open()
    except BaseException:
        log_exception()
        application.end("it did not start")
    processes, listens = application.processes(), str(application.sockets / "runs")
    # An application that drains is still asked for its runs, when another one has the host's name.
    write(application.folder, CURRENT, Current(listens, os.getpid(), number, time.time()))
    application.say({"ready": listens, "processes": processes})
    obeying.join()
    application.end("it hears its keeper no more")

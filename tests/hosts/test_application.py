"""What an application answers for its runs, without Spark."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from stateflow.config.options import load
from stateflow.hosts import upgrades
from stateflow.hosts.application import Application, HostedRun, plain
from stateflow.hosts.client import (
    BUSY,
    UNAVAILABLE,
    Connection,
    Refused,
    ask,
    connect,
    package_folder,
    python_folder,
    request,
    run_on,
)
from stateflow.hosts.forked import BEGUN
from stateflow.hosts.places import Places
from stateflow.hosts.settings import HostSettings
from stateflow.hosts.zygote import Zygote
from stateflow.spark.internals import lending
from stateflow.spark.internals.lending import Loan
from tests.hosts.hosting import eventually
from tests.refusals.refusal import refused

ASKED = {"argv": ["run", "a.py"], "environ": {}, "cwd": "/", "umask": 0}


@pytest.fixture
def application(tmp_path: Path) -> Application:
    made = Application.__new__(Application)
    made.folder, made.number, made.runs = tmp_path, 1, {}
    made._ids = itertools.count(1)
    made.spark = None  # type: ignore[assignment]
    made.name, made._only_folder, made._environ = "team", "", {}
    made._package, made._python = package_folder(), python_folder()
    made._stopping = made._moving = made._lost = made._outdated = made.replaced = False
    made._spark_process, made.places = None, Places(2)
    return made


def test_a_run_that_spark_does_not_answer_is_refused_and_not_listed(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*arguments: Any) -> None:
        raise RuntimeError("Answer from Java side is empty")

    monkeypatch.setattr(lending, "Lent", dead)
    ours, theirs = map(Connection, socket.socketpair())
    application._run_at(1, theirs, ASKED, [])
    assert ours.receive()[0] == {"refused": "its Spark does not answer", "exit_code": UNAVAILABLE}
    assert application.runs == {}


PRINTING = """
import os, sys
from pathlib import Path
from stateflow.hosts import application, zygote
from stateflow.hosts.client import Connection
from stateflow.hosts.settings import HostSettings, write
def has_it(number):
    try:
        return os.fstat(number).st_ino == pipe
    except OSError:
        return False
pipe = os.fstat(1).st_ino
zygote.import_all = lambda: print("the zygote has it:", any(map(has_it, range(100))), flush=True)
application.Application.open = lambda self: (self._zygote.receive(), os.system("echo 42; echo '{\\"recycle\\": 1}'"))
write(Path(sys.argv[1]), "settings.json", HostSettings())
application.serve(Path(sys.argv[1]), 1, print)
"""
"""An application whose Spark prints."""


CROWDED = """
import os, resource, sys
from pathlib import Path
from stateflow.hosts import application, zygote
from stateflow.hosts.settings import HostSettings, write
resource.setrlimit(resource.RLIMIT_NOFILE, (64, MOST))
def open(self):
    self.master, self.number_of_files = "local[2]", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    self.others = [os.open(os.devnull, os.O_RDONLY) for _ in range(self.number_of_files // 2)]
    self._zygote.receive()
    self.places.take(0, lambda: False, lambda: None)
    self.listen()
zygote.import_all = lambda: None
application.DEAF = 0.1
application.Application.open = open
MORE
write(Path(sys.argv[1]), "settings.json", HostSettings(places=1))
application.serve(Path(sys.argv[1]), 1, print)
"""
"""An application without Spark, whose place is taken and half of whose file descriptors are in use."""


@contextmanager
def crowded(folder: Path, most: int, more: str = "") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Its process, its log beside its folder, and the folder in which it is found."""
    code = CROWDED.replace("MOST", str(most)).replace("MORE", more)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder / "team")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    assert "ready" in process.stdout.readline(), (folder / "log").read_text()
    yield process, next((folder / "team").glob("application-1-*"))
    process.communicate(timeout=60)


def test_an_application_without_a_file_descriptor_for_another_run_answers_when_some_have_gone(
    tmp_path: Path,
) -> None:
    with crowded(tmp_path, 64) as (_, found):
        waiting = [connect(found) for _ in range(50)]
        log = tmp_path / "log"
        eventually(lambda: "can answer nobody" in log.read_text(), "it has no file descriptor left")
        assert "Too many open files" in log.read_text()
        for each in waiting:
            each.sock.close()
        assert ask(found, timeout=60)["places"] == 1
        assert log.read_text().count("can answer nobody") == 1, "it says so once"


def test_an_application_takes_all_the_file_descriptors_that_it_may_have(tmp_path: Path) -> None:
    with crowded(tmp_path, 4000) as (_, found):
        waiting = [connect(found) for _ in range(100)]
        assert ask(found)["places"] == 1
        with refused(Refused, "its place is taken") as caught:
            run_on(found, ["run", "a.py"], os.environ, wait=1.0, say=lambda text: None)
        assert caught.value.exit_code == BUSY, "it waits with a descriptor above 2000, too"
        for each in waiting:
            each.sock.close()


def test_an_application_ends_when_it_can_take_no_runs_any_more(tmp_path: Path) -> None:
    with crowded(tmp_path, 64, "application.struct = None") as (process, found):
        connect(found)
        assert process.wait(60) == 1
    assert "application 1: its thread accept has ended" in (tmp_path / "log").read_text()


FREED = """
import signal
def freed(self):
    open(self)
    signal.signal(signal.SIGUSR1, lambda number, frame: self.places.give_back(1))
application.Application.open, application.LOOKS = freed, 0.05
"""
"""One whose place becomes free at a signal."""


def test_a_draining_application_does_not_end_under_a_run_that_has_its_place_and_no_session_yet(
    tmp_path: Path,
) -> None:
    with crowded(tmp_path, 64, FREED) as (process, found):
        assert process.stdin is not None
        process.stdin.write("drain\n")
        process.stdin.flush()
        eventually(lambda: ask(found)["draining"], "it drains")
        time.sleep(0.5)
        assert ask(found)["runs"] == []
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0
    assert "application 1: drained" in (tmp_path / "log").read_text()


def test_who_cannot_look_whether_something_was_changed_takes_it_for_what_it_was(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    application._installed = upgrades.installed()

    def none_left(path: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.scandir", none_left)
    with refused(OSError, "Too many open files"):
        upgrades.installed()
    assert application._changed() is False


def test_what_spark_prints_is_in_the_log_and_no_message_to_the_keeper(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PRINTING, str(tmp_path / "team")]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    heard = process.stdout.readline()
    more, logged = process.communicate(timeout=60)
    assert more == ""
    assert list(json.loads(heard)) == ["ready", "processes"], logged
    assert logged.startswith('the zygote has it: False\n42\n{"recycle": 1}\n')


def test_an_application_that_is_starting_ends_when_the_host_does(tmp_path: Path) -> None:
    starting = PRINTING.replace(
        "application.serve(",
        "application.Application.open = lambda self: time.sleep(600)\napplication.serve(",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time\n{starting}", str(tmp_path / "team")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    heard, logged = process.communicate(timeout=60)
    assert (process.returncode, heard) == (1, "")
    assert "application 1: the host is gone" in logged


def test_the_pipelines_that_warm_a_host_take_no_options_of_its_environment(tmp_path: Path) -> None:
    file = tmp_path / "continuous.toml"
    file.write_text('trigger = "1 second"', encoding="utf-8")
    places = {"STATEFLOW_CACHE_DIR": "/c", "STATEFLOW_SCRATCH_DIR": "/s", "PATH": "/bin"}
    given = {**places, "STATEFLOW_TRIGGER": "until-stopped", "STATEFLOW_CONFIG": str(file)}
    assert plain(given) == places
    assert load(env=given, folder=tmp_path).trigger != "drain"
    assert load(env=plain(given), folder=tmp_path).trigger == "drain"


class Lent:
    """What a run borrows, without Spark."""

    loan = Loan("run", 1, "secret")

    def __init__(self, *arguments: Any) -> None: ...

    def take_back(self) -> None: ...


def test_a_run_for_which_no_process_can_be_started_is_refused(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "Lent", Lent)
    monkeypatch.setattr(lending, "stop_workers", lambda spark, program: None)
    ours, its = map(Connection, socket.socketpair())
    application._zygote, application._to_zygote, application.served = ours, threading.Lock(), 0
    application._events, application.master = {1: SimpleQueue()}, "local[2]"
    (application.folder / "place-1").mkdir()

    zygote = Zygote.__new__(Zygote)
    zygote._host, zygote._places = its, {}
    monkeypatch.setattr("os.fork", fails)
    null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    zygote._fork_run({"place": 1}, null)
    for each in null:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(each)
    application._events[1].put(ours.receive()[0] or {})

    asks, asked = map(Connection, socket.socketpair())
    application._run_at(1, asked, ASKED, [])
    refused = {"refused": "it cannot start a process: [Errno 11] no more", "exit_code": UNAVAILABLE}
    assert asks.receive()[0] == refused
    assert application.runs == {}


def fails() -> int:
    raise OSError(errno.EAGAIN, "no more")


def test_a_host_that_cannot_write_into_its_folder_refuses_runs(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "Lent", Lent)
    monkeypatch.setattr(lending, "stop_workers", lambda spark, program: None)
    ours, its = map(Connection, socket.socketpair())
    application._zygote, application._to_zygote = ours, threading.Lock()
    application._events, application.served = {1: SimpleQueue()}, 0
    asks, asked = map(Connection, socket.socketpair())
    application._run_at(1, asked, ASKED, [])
    refused = asks.receive()[0] or {}
    assert refused["exit_code"] == UNAVAILABLE
    assert "it cannot write into its folder: [Errno 2]" in refused["refused"]
    assert its.receive()[0] == {"do": "end", "place": 1}


def test_a_run_whose_python_ends_before_the_run_does_has_failed(application: Application) -> None:
    run = HostedRun("orders", 1, 0.0, Connection(socket.socket()))
    (application.folder / "place-1").mkdir()
    assert [application._said(code, run) for code in (0, 5)] == [{"exit": 0}, {"exit": 5}]
    (application.folder / "place-1" / BEGUN).touch()
    for code in (0, 5, 8):
        said = application._said(code, run)
        assert said["exit"] == 1
        assert (
            f"the run of orders ended its Python with exit code {code} before it came to its end"
            in said["says"]
        )
        assert f"as os._exit({code}) does" in said["says"]
    assert application._said(-9, run) == {"exit": 137}


def test_a_run_elsewhere_is_refused_where_relative_paths_would_mean_the_host_s_folder(
    application: Application, tmp_path: Path
) -> None:
    asked = request(["run", "a.py"], {}, 0.0) | {"cwd": str(tmp_path)}
    assert application.unfit(asked) == ""
    application._only_folder = "/srv/host"
    assert "relative paths mean /srv/host there" in application.unfit(asked)
    application._only_folder = str(tmp_path)
    assert application.unfit(asked) == ""


def test_a_host_serves_its_own_virtual_environment_by_whatever_link_the_run_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, current = (tmp_path / name for name in ("venv-1", "venv-2", "current"))
    old.mkdir()
    new.mkdir()
    current.symlink_to(old)
    monkeypatch.setattr("sys.prefix", str(current))
    monkeypatch.setattr("stateflow.hosts.zygote.start", lambda *_: (0, Connection(socket.socket())))
    host = Application(tmp_path, 1, HostSettings(), lambda words: None, keeper=1)

    def answered(prefix: Path) -> str:
        monkeypatch.setattr("sys.prefix", str(prefix))
        return host.unfit(request(["run", "a.py"], os.environ, 0.0))

    assert answered(old) == answered(current) == ""
    current.unlink()
    current.symlink_to(new)
    assert answered(old) == ""
    for other in (new, current):
        assert f"it runs the Python in {old}, and the run is of the one in {new}" in answered(other)


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR"])
def test_a_run_whose_spark_would_read_another_environment_is_refused(
    application: Application, tmp_path: Path, variable: str
) -> None:
    asked = request(["run", "a.py"], {variable: "/there"}, 0.0) | {"cwd": str(tmp_path)}
    assert f"the variable {variable} is another one" in application.unfit(asked)
    application._environ = {variable: "/there"}
    assert application.unfit(asked) == ""


def test_what_a_run_holds_in_memory_is_none_of_the_growth_that_replaces_an_application(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.settings, application.served, application._warm = HostSettings(), 100, 0
    application._zygote_pid = 2
    memory = {os.getpid(): 100 << 20, 2: 100 << 20, 42: 2 << 30}
    monkeypatch.setattr("stateflow.hosts.application.resident", memory.__getitem__)
    assert application._used_up() == ""
    application.runs[1] = HostedRun("hungry", 1, 0.0, Connection(socket.socket()), pid=42)
    assert application._used_up() == ""
    memory[2] = 400 << 20
    assert application._used_up() == "its memory has grown from 200 to 500 MiB"


class Process:
    """A JVM that was killed."""

    def poll(self) -> int:
        return -9


def test_an_application_whose_spark_has_died_says_so_once_and_takes_and_shows_nothing(
    application: Application,
) -> None:
    hears, application._keeper = os.pipe()
    application._spark_process = Process()  # type: ignore[assignment]
    for _ in range(2):
        ours, theirs = map(Connection, socket.socketpair())
        application._run(theirs, {}, [])
        assert ours.receive()[0] == {"refused": "its Spark has died", "exit_code": UNAVAILABLE}
    ours, theirs = map(Connection, socket.socketpair())
    ours.send({"ask": "show"})
    application._answer(theirs)
    assert ours.receive() == (None, [])
    assert os.read(hears, 4096) == b'{"lost": true}\n', "the keeper is told"
    assert application.places.take(0, lambda: False, lambda: None) is None


def test_a_run_whose_standard_files_did_not_arrive_is_refused(application: Application) -> None:
    ours, theirs = map(Connection, socket.socketpair())
    ours.send(request(["run", "a.py"], {}, 0.0), [0, 1])
    application._answer(theirs)
    assert ours.receive()[0] == {"heard": True}
    answer = ours.receive()[0] or {}
    assert answer["exit_code"] == UNAVAILABLE
    assert "of the run's standard input, output and error only 2 arrived" in answer["refused"]


def test_who_asks_for_a_run_hears_a_word_at_once(application: Application) -> None:
    application._spark_process = Process()  # type: ignore[assignment]
    application._keeper = os.open(os.devnull, os.O_WRONLY)
    ours, theirs = map(Connection, socket.socketpair())
    ours.send({"ask": "run"})
    application._answer(theirs)
    assert ours.receive()[0] == {"heard": True}
    assert ours.receive()[0] == {"refused": "its Spark has died", "exit_code": UNAVAILABLE}


@pytest.mark.parametrize(
    ("places", "waiting", "said"),
    [
        (1, 1, "it has 1 place, all taken"),
        (2, 2, "it has 2 places, all taken, and 1 run waiting before this one"),
        (2, 3, "it has 2 places, all taken, and 2 runs waiting before this one"),
    ],
)
def test_who_waits_hears_how_many_wait_before_it(
    application: Application, places: int, waiting: int, said: str
) -> None:
    application.places = Places(places)
    application.places._waiting.extend(range(waiting))
    assert application._full() == said


def test_a_full_or_draining_host_says_what_to_do(application: Application) -> None:
    assert application._not_taken()["refused"] == (
        "all its 2 places are taken: `stateflow host show team` says by whom; try later, or start the host with more --runs"
    )
    application.places.drain()
    assert application._not_taken() == {
        "refused": "it is draining: try later, or name another host",
        "exit_code": BUSY,
    }


@pytest.mark.parametrize(
    ("moving", "told_to_end", "ended", "code", "answer"),
    [
        (False, False, False, 0, {"exit": 0}),
        (True, False, False, 0, {"again": True}),
        (True, False, False, -signal.SIGTERM, {"again": True}),
        (True, True, False, 0, {"exit": 0}),
        (True, False, True, 0, {"exit": 0}),
        (True, False, False, 1, {"exit": 1}),
        (True, False, False, -signal.SIGKILL, {"exit": 137}),
    ],
)
def test_only_a_run_that_moves_and_that_nobody_else_has_ended_begins_again(
    application: Application, moving: bool, told_to_end: bool, ended: bool, code: int, answer: dict[str, Any]
) -> None:
    ours, _ = map(Connection, socket.socketpair())
    application._moving = moving
    place = application.folder / "place-1"
    place.mkdir(exist_ok=True)
    if ended:
        (place / "ended").touch()
    assert application._said(code, HostedRun("orders", 1, 0.0, ours, told_to_end=told_to_end)) == answer

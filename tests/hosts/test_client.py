"""What a client says when the other side is not what it should be, without Spark."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from stateflow.hosts import client
from stateflow.hosts.client import (
    BUSY,
    FAILED,
    OF_RUN,
    UNAVAILABLE,
    Connection,
    Refused,
    ask,
    connect,
    is_kept,
    refusal_line,
    run_on,
)
from stateflow.hosts.keeper import claim
from stateflow.hosts.settings import Current, KeeperProcess, write
from tests.refusals.refusal import refused


class Side:
    """A host of the test, which answers each connection with the next of its answers. `kept`: it has a keeper."""

    def __init__(self, folder: Path, *answers: Callable[[Connection], None], kept: bool = False) -> None:
        self.folder = folder / "team"
        self.folder.mkdir()
        self.lock = claim(self.folder) if kept else -1
        place = folder / "s"
        place.mkdir(mode=0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(place / "runs"))
        listener.listen()
        write(self.folder, "current.json", Current(str(place / "runs"), 1, 1, 0.0))

        def serve() -> None:
            for answer in answers:
                sock, _ = listener.accept()
                answer(Connection(sock))
                sock.close()
            listener.close()

        threading.Thread(target=serve, daemon=True).start()

    def run(self, said: list[str], wait: float = 1.5) -> int:
        return run_on(self.folder, ["run", "a.py"], {"A": "1"}, wait=wait, say=said.append)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def answering(*messages: dict[str, object]) -> Callable[[Connection], None]:
    def answer(connection: Connection) -> None:
        asked, files = connection.receive(most_files=3)
        assert asked is not None
        assert (asked["argv"], asked["environ"], len(files)) == (["run", "a.py"], {"A": "1"}, 3)
        assert 0 < asked["wait"] <= 1.5
        for message in messages:
            connection.send(message)

    return answer


def taking(environ: dict[str, str]) -> Callable[[Connection], None]:
    """Takes a run, which is over at once, and keeps its variables."""

    def take(connection: Connection) -> None:
        asked, files = connection.receive(most_files=3)
        assert asked is not None
        environ.update(asked["environ"])
        for each in files:
            os.close(each)
        connection.send({"exit": 0})

    return take


def test_the_exit_code_is_the_runs(short: Path) -> None:
    said: list[str] = []
    assert Side(short, answering({"waits": "it is full"}, {"started": 1}, {"exit": 7})).run(said) == 7
    assert said == ["waiting for the host team: it is full"]


def test_whoever_is_sent_to_a_replacement_asks_again(short: Path) -> None:
    assert Side(short, answering({"again": True}), answering({"started": 1}, {"exit": 0})).run([]) == 0


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (answering({"refused": "it is draining", "exit_code": BUSY}), BUSY),
        (answering(), UNAVAILABLE),
        (lambda connection: connection.sock.shutdown(socket.SHUT_RDWR), UNAVAILABLE),
        (lambda connection: connection.sock.sendall(b"\xff\xff\xff\xff{}"), UNAVAILABLE),
    ],
)
def test_a_run_that_has_not_begun_is_refused(
    short: Path, answer: Callable[[Connection], None], code: int
) -> None:
    with pytest.raises(Refused) as refused:
        Side(short, answer).run([])
    assert refused.value.exit_code == code


def test_a_run_waits_for_a_host_that_is_started_again(short: Path) -> None:
    said: list[str] = []
    host = Side(short, answering(), answering({"started": 1}, {"exit": 0}), kept=True)
    assert host.run(said) == 0
    assert said == ["waiting for the host team, which is starting again: it ended before it began the run"]


@pytest.mark.parametrize("killed", [False, True], ids=["it was told to end", "its keeper was killed"])
def test_nobody_waits_for_a_host_that_will_not_come(short: Path, killed: bool) -> None:
    host = Side(short, answering(), answering({"started": 1}, {"exit": 0}), kept=killed)
    if killed:
        os.close(host.lock)
    with pytest.raises(Refused, match="ended before it began"):
        host.run([])


def test_waiting_for_a_host_ends_with_the_time_for_it(short: Path) -> None:
    host = Side(short, kept=True)
    (host.folder / "current.json").unlink()
    said: list[str] = []
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        host.run(said)
    assert refused.value.exit_code == UNAVAILABLE
    assert 1.5 <= time.monotonic() - began < 5
    assert said == ["waiting for the host team, which is starting again: it is starting"]
    assert (
        str(refused.value)
        == f"it is starting, and takes no run within 1.5 s: {host.folder}/host.log says why"
    )


def waiting(seconds: float, *messages: dict[str, object]) -> Callable[[Connection], None]:
    """A host that says the first of the messages, and each later one after so many seconds."""

    def answer(connection: Connection) -> None:
        for file in connection.receive(most_files=3)[1]:
            os.close(file)
        for message in messages:
            connection.send(message)
            time.sleep(seconds)

    return answer


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWERS", 0.4)
    monkeypatch.setattr(client, "BEGINS", 0.4)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("answer", "wait", "least"),
    [
        (lambda connection: time.sleep(30), 60.0, 0.4),
        (waiting(30, {"heard": True}), 0.3, 0.7),
        (waiting(30, {"waits": "it is full"}), 0.3, 0.7),
    ],
    ids=["silent", "heard", "waits"],
)
def test_nobody_waits_for_a_host_that_listens_and_does_not_answer(
    short: Path, answer: Callable[[Connection], None], wait: float, least: float
) -> None:
    host, began = Side(short, answer), time.monotonic()
    with refused(Refused, "it does not answer") as caught:
        host.run([], wait)
    assert caught.value.exit_code == UNAVAILABLE
    assert least <= time.monotonic() - began < 10


@pytest.mark.usefixtures("hasty")
def test_a_host_that_does_not_answer_is_asked_again_within_the_time_for_it(short: Path) -> None:
    said: list[str] = []
    host, began = Side(short, lambda connection: time.sleep(30), kept=True), time.monotonic()
    with refused(Refused, "it does not answer, and takes no run within 1 s", f"{host.folder}/host.log"):
        host.run(said, 1.0)
    assert 1.0 <= time.monotonic() - began < 10
    assert said == ["waiting for the host team: it does not answer"]


@pytest.mark.usefixtures("hasty")
def test_a_run_that_has_begun_takes_as_long_as_it_takes(short: Path) -> None:
    assert Side(short, waiting(1.0, {"started": 1}, {"exit": 7})).run([], 0.0) == 7


@pytest.mark.parametrize("wait", [float("inf"), 1e10])
def test_a_run_may_wait_without_an_end(short: Path, wait: float) -> None:
    host = Side(short, waiting(0.0, {"waits": "it is full"}, {"started": 1}, {"exit": 7}))
    assert host.run([], wait) == 7


@pytest.mark.parametrize("starting", [False, True], ids=["for a place", "for a start"])
def test_ctrl_c_while_a_run_waits_is_one_sentence(short: Path, starting: bool) -> None:
    (short / "hosts").mkdir()
    host = Side(short / "hosts", waiting(60, {"waits": "it is full"}), kept=starting)
    if starting:
        (host.folder / "current.json").unlink()
    with subprocess.Popen(
        [sys.executable, "-m", "stateflow", "run", "a.py", "--host", "team", "--host-only"],
        env={**os.environ, "STATEFLOW_CACHE_DIR": str(short)}, cwd=short, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "waiting for the host team" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert said == "stateflow: interrupted before the run began on the host team\n"


def test_who_is_not_let_in_tries_until_the_host_lets_in_others(short: Path) -> None:
    opened = threading.Event()
    host = Side(short, *[lambda connection: opened.wait(30)] * 1000)
    with ExitStack() as held:
        with refused(Refused, "it does not answer"):
            for _ in range(1000):
                held.callback(connect(host.folder, 0.2).sock.close)
        threading.Timer(0.3, opened.set).start()
        held.callback(connect(host.folder, 30.0).sock.close)


def test_who_asks_whether_a_host_is_kept_is_in_nobodys_way(short: Path) -> None:
    host = Side(short, kept=True)
    assert is_kept(host.folder)
    os.close(host.lock)
    asking = os.open(host.folder / "lock", os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [asking]).start()
    assert is_kept(host.folder) is False, "who asks is no keeper"
    os.close(claim(host.folder))


def test_a_misspelt_host_is_told_from_one_that_has_ended(tmp_path: Path) -> None:
    for name in ("team-orders", "bench"):
        write(tmp_path / name, "keeper.json", KeeperProcess(1, ""))
    for name, meant in (("team-order", "did you mean team-orders? "), ("nobody", ""), ("bench", "")):
        with pytest.raises(Refused) as refused:
            run_on(tmp_path / name, [], {}, wait=0, say=print)
        assert str(refused.value) == (
            f"it is not running in {tmp_path}: {meant}`stateflow host list` shows the hosts, "
            f"`stateflow host start {name}` starts it"
        )
    assert refusal_line("a", Refused("it is full", BUSY), only=False) == (
        "the host a does not take the run: it is full. Starting a driver of its own"
    )


def test_a_run_has_its_own_variables_and_the_command_in_its_place_has_others(short: Path) -> None:
    taken: dict[str, str] = {}
    folder = Side(short, taking(taken)).folder
    shows = "import json, os; print(json.dumps(dict(os.environ)))"
    asked = {
        "wait": 0, "only": False, "argv": ["run"], "otherwise": [sys.executable, "-c", shows],
        "added": ["ADDED", "PATH"],
    }  # fmt: skip
    environ = {"ADDED": "1", "KEPT": "k", "PATH": "/submits", f"{OF_RUN}PATH": "/runs"}

    def started(folder: Path) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-I", client.__file__, json.dumps({**asked, "folder": str(folder)})]
        return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=True)

    started(folder)
    assert {name: taken.get(name) for name in environ} == {
        "ADDED": None, "KEPT": "k", "PATH": "/runs", f"{OF_RUN}PATH": None,
    }  # fmt: skip
    otherwise = json.loads(started(short / "nobody").stdout)
    assert {name: otherwise.get(name) for name in environ} == {
        "ADDED": "1", "KEPT": "k", "PATH": "/submits", f"{OF_RUN}PATH": None,
    }  # fmt: skip


def test_a_host_that_dies_in_the_middle_fails_the_run_and_starts_no_second_one(short: Path) -> None:
    said: list[str] = []
    assert Side(short, answering({"started": 1})).run(said) == FAILED
    assert "died with its runs" in said[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"socket": 3}', '{"socket": "/nowhere/at/all"}'])
def test_a_damaged_address_is_no_host(tmp_path: Path, text: str) -> None:
    (tmp_path / "current.json").write_text(text, encoding="utf-8")
    with pytest.raises(Refused):
        ask(tmp_path)


def test_a_message_of_any_size_arrives_whole() -> None:
    ours, theirs = map(Connection, socket.socketpair())
    sent = {"environ": {str(n): "x" * 1000 for n in range(2000)}}
    sender = threading.Thread(target=ours.send, args=[sent, [0, 1, 2]])
    sender.start()
    got, files = theirs.receive(most_files=3)
    sender.join()
    assert json.dumps(got) == json.dumps(sent)
    assert len(files) == 3

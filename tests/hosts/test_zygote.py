"""What each run would import again, the process has imported that runs are forked from."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from stateflow.hosts.client import Connection
from stateflow.spark.session.lent import ENVIRONMENT, PLACE

IMPORTS = """
import sys, threading
from stateflow.hosts import zygote
zygote.import_all()
print(threading.active_count(), *(name in sys.modules for name in zygote.IMPORTED))
before = set(sys.modules)
from pyspark.sql.types import NumpyArrayConverter
NumpyArrayConverter().can_convert(1)
print(sorted(name for name in set(sys.modules) - before if name.startswith(("pyspark", "unittest", "google", "typer"))))
"""


@pytest.mark.slow
def test_a_run_imports_neither_the_command_nor_pyspark_again_and_no_thread_is_forked() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    count, *imported = done.stdout.splitlines()[0].split()
    assert count == "1"
    assert set(imported) == {"True"}, done.stdout
    assert done.stdout.splitlines()[1] == "[]"


INCOMPLETE = """
import os, socket, sys
from pathlib import Path
from stateflow.hosts import zygote
zygote.import_all, zygote.SHIM = (lambda: None), 0.5
folder = Path(sys.argv[1])
pid, host = zygote.start(folder, lambda argv: None)
print(host.receive()[0] == {"ready": pid})
null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
left = socket.socket(socket.AF_UNIX)
left.connect(str(folder / "workers"))  # it says nothing, and stays
for sent, files in (
    (b"", []), (b"\\0", null), (b"\\0\\0\\3\\xe81\\0\\0x", null), (b"\\0\\0\\0\\1x", null), (b"\\0\\0\\0\\5x\\0\\0\\0\\0", null),
    (b"\\0\\0\\0\\5" b"1\\0\\0\\0\\0", null[:2]),
):
    with socket.socket(socket.AF_UNIX) as shim:
        shim.connect(str(folder / "workers"))
        if sent:
            socket.send_fds(shim, [sent], files)
host.send({"do": "nothing that it knows", "place": 1})
host.send({"do": "signal"})
asked = {"do": "run", "place": 1, "argv": [], "environ": {}, "cwd": "/", "umask": 18, "place_folder": str(folder)}
host.send(asked, null[:2])
print(host.receive()[0])
host.send(asked, null)
print(sorted(host.receive()[0]))
print(sorted(host.receive()[0]))
print(len(os.listdir(f"/proc/{pid}/fd")) if sys.platform == "linux" else 0)
host.sock.close()
os.waitpid(pid, 0)
"""


def test_an_incomplete_message_ends_neither_the_zygote_nor_its_patience(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INCOMPLETE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *said, files = done.stdout.splitlines()
    assert said == [
        "True",
        "{'place': 1, 'failed': 'of standard input, output and error 2 arrived'}",
        "['place', 'started']",
        "['code', 'ended', 'place']",
    ], done.stderr
    assert int(files) < 20, "it closes what it was given"
    assert "no Python worker could be started: timed out" in done.stderr
    assert "of standard input, output and error 2 arrived" in done.stderr


HANDED = """
import os, socket, sys, tempfile
from pathlib import Path
from stateflow.hosts import forked, zygote
forked.THREADS = 4.0
tempfile.gettempdir()
_, connection = zygote.start(Path(sys.argv[1]), lambda argv: exec(argv[0], {}))
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [connection.sock.fileno()])
os._exit(0)
"""


class Forking:
    """A zygote of its own, to which the test is the host's process. A run of it executes the code that it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours, its = socket.socketpair()
        words = [sys.executable, "-c", HANDED, str(folder), str(its.fileno())]
        subprocess.run(words, pass_fds=[its.fileno()], timeout=60, check=True)
        its.close()
        _, (connected, *_), _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        self.host = Connection(socket.socket(fileno=connected))
        self.host.sock.settimeout(60)
        assert "ready" in self.said()

    def said(self) -> dict[str, Any]:
        message, _ = self.host.receive()
        assert message is not None
        return message

    def place(self, number: int) -> Path:
        folder = self.folder / f"place-{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, place: int, code: str, **variables: str) -> IO[bytes]:
        """Starts a run, and gives what it says on its standard error."""
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        asked = {"do": "run", "place": place, "argv": [code], "environ": variables, "cwd": "/", "umask": 0o22}
        lent = {"host": "team", "master": "local[1]", "loan": {"run": "r", "port": 1, "secret": ""}}
        self.host.send({**asked, **lent, "place_folder": str(self.place(place))}, [null, null, write])
        for each in (null, write):
            os.close(each)
        assert "started" in self.said()
        return os.fdopen(read, "rb")

    def ended(self, place: int) -> int:
        """The exit code of a place's run, when the host has taken the place back."""
        said = self.said()
        assert said["place"] == place
        self.host.send({"do": "end", "place": place})
        code: int = said["code"]
        return code


@pytest.fixture
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    made = Forking(tmp_path_factory.mktemp("z"))
    yield made
    made.host.sock.close()  # and the zygote ends, with all that it has forked


def within(seconds: float, said: IO[bytes]) -> bytes:
    """All that is said, to its end."""
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(said.read()), daemon=True)
    reading.start()
    reading.join(seconds)
    assert found, "somebody has it open still"
    return found[0]


@pytest.mark.slow
def test_what_a_run_says_ends_with_it_while_other_runs_and_their_workers_go_on(forking: Forking) -> None:
    go = forking.folder / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    first = forking.run(1, f"{waits}\nimport sys; print('all of it', file=sys.stderr)")
    second = forking.run(2, "import time; time.sleep(600)")
    environment = {"PYTHONSTARTUP": "", PLACE: str(forking.place(2))}
    (forking.place(2) / ENVIRONMENT).write_text(json.dumps(environment), encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as asking, Path(os.devnull).open("rb+") as null:
        stays, kept = os.pipe()
        asking.connect(str(forking.folder / "workers"))
        entries = f"{PLACE}={forking.place(2)}"
        body = b"2\0\0code\0\0" + entries.encode()
        socket.send_fds(asking, [len(body).to_bytes(4, "big")], [stays, null.fileno(), null.fileno()])
        asking.sendall(body)
        assert second.read(1), "the worker is there, and says so where its run does"
        go.touch()
        assert forking.ended(1) == 0
        assert within(20, first) == b"all of it\n"
        os.close(kept)
        asking.settimeout(60)
        assert asking.recv(1) == b"", "the worker was there until then"
        os.close(stays)


@pytest.mark.slow
def test_a_run_has_its_own_folder_for_temporary_files(forking: Forking, tmp_path: Path) -> None:
    code = "import sys, tempfile; print(tempfile.gettempdir(), file=sys.stderr)"
    said = forking.run(1, code, TMPDIR=str(tmp_path))
    assert forking.ended(1) == 0
    assert within(20, said).decode() == f"{tmp_path}\n"


THREADS = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor

def late():
    time.sleep(SECONDS)
    print("sent", file=sys.stderr)

sys.pool = ThreadPoolExecutor(1)
sys.pool.submit(int).result()
threading.Thread(target=late, name="sender").start()
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
sys.exit(3)
"""


@pytest.mark.slow
def test_a_run_waits_a_while_for_its_threads_and_names_those_that_go_on(forking: Forking) -> None:
    began = time.monotonic()
    said = forking.run(1, THREADS.replace("SECONDS", "0.5"))
    assert forking.ended(1) == 3
    assert time.monotonic() - began < 4, "it waits neither for a pool without work nor for daemon threads"
    assert within(20, said) == b"sent\n"
    said = forking.run(1, THREADS.replace("SECONDS", "600"))
    assert forking.ended(1) == 3
    told = within(20, said).decode()
    assert "4 s later: sender." in told
    assert "--host ''" in told

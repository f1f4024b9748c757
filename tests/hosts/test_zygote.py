"""What each run would import again, the process has imported that runs are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

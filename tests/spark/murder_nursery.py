"""Where victims come from: a process that has imported everything and forks one at each request.

`python -m tests.spark.murder_nursery`. The imports are a third of what a victim costs that is given a warm JVM.
"""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.murder_victim import Errand

ROOT = Path(__file__).absolute().parents[2]
OWN_FORK = {"jemalloc_bg_thd"}
"""Threads of Arrow's that see to forks themselves; Spark's own daemon forks beside them, too."""


@dataclass
class Born:
    """A process that somebody else is the parent of; what is asked of it is what one asks a `Popen`."""

    pid: int
    _exit: Path
    """The nursery writes its exit code there."""
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._exit.exists():
            self.returncode = int(self._exit.read_text())
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"victim {self.pid}", timeout)
            time.sleep(0.02)
        return code


@dataclass
class Nursery:
    process: subprocess.Popen[bytes] = field(default_factory=lambda: _started())

    def bear(self, errand: Errand, out: Path, err: Path, environment: dict[str, str]) -> Born:
        """A victim in a session of its own. `environment` is added to the nursery's."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        exit_ = out.with_suffix(".exit")
        request = {
            "errand": msgspec.to_builtins(errand),
            "out": str(out),
            "err": str(err),
            "exit": str(exit_),
            "environment": environment,
        }
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the nursery ended with {self.process.wait(30)}")
        return Born(int(answer), exit_)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)


def _started() -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STATEFLOW_", "PYSPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.murder_nursery"],
        cwd=ROOT,
        env={**env, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def main() -> None:
    import pandas
    import pyarrow
    import pyspark.sql.streaming

    import stateflow.spark.runner
    import stateflow.storage.objects
    from tests.spark import murder_jvm

    assert all((pandas, pyarrow, pyspark, stateflow, murder_jvm))
    threads = {
        task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()
    } - OWN_FORK
    assert len(threads) == 1, f"a fork takes no threads along: {threads}"
    gc.freeze()
    exits: dict[int, str] = {}
    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        if readable:
            more = os.read(0, 1 << 16)
            if not more:
                return
            unread += more
        *lines, unread = unread.split(b"\n")
        for line in lines:
            request = json.loads(line)
            exits[_born(request)] = request["exit"]
        while exits:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            unfinished = Path(exits[pid] + ".tmp")
            unfinished.write_text(str(os.waitstatus_to_exitcode(status)))
            unfinished.replace(exits.pop(pid))


def _born(request: dict[str, Any]) -> int:
    """Forks; the child says its number when it has a session of its own."""
    from tests.spark import murder_victim

    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        files = [
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            for path in (os.devnull, request["out"], request["err"])
        ]
        # Whoever hears the number looks at the files.
        os.write(1, f"{os.getpid()}\n".encode())
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.update(request["environment"])
        code = murder_victim.main(msgspec.convert(request["errand"], Errand))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

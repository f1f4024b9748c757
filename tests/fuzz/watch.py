"""What every input is held to: an error of ours or an answer, in little time and memory, and nothing else touched."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from stateflow.errors import StateflowError
from tests.memory_store import named_store

SECONDS = 5
"""Of the processor's time, since a busy machine makes everything slow, and six times as many by the clock."""
MEGABYTES = 200
SECRET = b"what no input may read into a root, change or delete\n"
FORBIDDEN = (
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "ctypes.dlopen",
)
CHANGES = {
    "os.remove",
    "os.rename",
    "os.link",
    "os.symlink",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
}


class Held:
    """A folder with a canary in it, and what was done meanwhile that no input may bring about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        (self.canary / "folder").mkdir(parents=True)
        (self.canary / "secret").write_bytes(SECRET)
        (self.canary / "folder" / "_metadata").write_bytes(SECRET)
        (self.canary / "folder" / "state-000001.sst").write_bytes(SECRET)
        self.own = tuple(str(folder / name) for name in ("root", "savepoint", "cache", "scratch"))
        self.forbidden: list[str] = []
        self.watching = False
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Audit hooks stay until the process ends.
        if not self.watching:
            return
        if event in FORBIDDEN:
            self.forbidden.append(f"{event} {arguments!r}"[:300])
        elif (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            self._written(event, arguments[0])
        elif event in CHANGES:
            self._written(event, arguments[0])
            if event in ("os.rename", "os.link"):
                self._written(event, arguments[1])

    def _written(self, event: str, path: Any) -> None:
        """A relative name is one step below a folder that was opened before; see `storage/beneath.py`."""
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not name or name == "/dev/null":
            return
        outside = name.startswith("/") and not f"{name}/".startswith(tuple(f"{own}/" for own in self.own))
        if outside or ".." in name.split("/") or (not name.startswith("/") and "/" in name):
            self.forbidden.append(f"{event} {name!r}"[:300])

    def tree(self) -> str:
        """Names, kinds, sizes and content of the canary."""
        digest = hashlib.sha256()
        for path in sorted(self.canary.rglob("*")):
            digest.update(f"{path} {path.is_symlink()} {path.is_dir()}\n".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def run(self, act: Callable[[], object]) -> str:
        """Acts, and returns what came of it: `answer` or the error's name. AssertionError for anything else."""
        self.forbidden.clear()
        before = self.tree()
        store = named_store("canary")
        store.restore({"_metadata": SECRET})
        rss = _kilobytes("VmRSS")
        _forget_peak()
        # Python keeps what it has compiled beside a module that is imported for the first time. No input brings that about.
        compiled, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        self.watching = True
        try:
            with _bounded():
                outcome = _outcome(act)
        finally:
            self.watching = False
            sys.dont_write_bytecode = compiled
        grown = (_kilobytes("VmHWM") - rss) / 1024
        assert grown < MEGABYTES, f"it took {grown:.0f} MB of memory"
        assert not self.forbidden, f"it touched what is none of its business: {self.forbidden[:3]}"
        assert self.tree() == before, "it changed the canary"
        assert store.snapshot() == {"_metadata": SECRET}, "it changed the canary's store"
        return outcome


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except StateflowError as error:
        return type(error).__name__
    return "answer"


class HangError(BaseException):
    """Not an Exception: nothing under test may survive it."""


@contextmanager
def _bounded() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise HangError(f"it took more than {SECONDS} s of the processor, or {6 * SECONDS} s by the clock")

    before = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 6 * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _kilobytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/self/status has no {field}")


def _forget_peak() -> None:
    """Sets the process' peak of memory back to what it has now."""
    Path("/proc/self/clear_refs").write_text("5")

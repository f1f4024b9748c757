"""The `stateflow` command as a process of its own, which can be killed like one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stateflow.errors import StateflowError


def command_path() -> list[str]:
    """How the command is called here: by name when it is on the PATH, else by its place."""
    beside = Path(sys.executable).parent / "stateflow"
    on_path = shutil.which("stateflow")
    if on_path is not None and Path(on_path).resolve() == beside.resolve():
        return ["stateflow"]
    if beside.is_file():
        return [short(beside)]
    return [sys.executable, "-m", "stateflow.cli"]


def short(path: Path) -> str:
    """A path as one would type it from the working folder."""
    with suppress(ValueError):
        return str(path.absolute().relative_to(Path.cwd()))
    return str(path)


class Command:
    """`stateflow` with the demo's checkpoint root."""

    def __init__(self, folder: Path) -> None:
        self.base = command_path()
        self.root = ["--checkpoint-dir", short(folder / "checkpoints")]
        # The demo is about what happens, not about how soon a dead run is believed to be dead.
        self.environment = {
            "STATEFLOW_HEARTBEAT_INTERVAL": "500 ms",
            "STATEFLOW_HEARTBEAT_TIMEOUT": "3 seconds",
            **os.environ,
        }

    def text(self, *arguments: str) -> str:
        """The command as one would type it."""
        return " ".join(_quoted(word) for word in (*self.base, *arguments, *self.root))

    def call(self, *arguments: str) -> int:
        """Runs it with this terminal; returns its exit code."""
        with self._started(arguments, output=None) as process:
            try:
                return process.wait()
            except BaseException:
                _kill(process)
                raise

    def answer(self, *arguments: str) -> str:
        """Runs it, and gives what it prints, notes included."""
        with self._started(arguments, output=subprocess.PIPE, errors=subprocess.STDOUT) as process:
            try:
                text = process.communicate()[0]
            except BaseException:
                _kill(process)
                raise
        if process.returncode:
            raise StateflowError(
                f"`{self.text(*arguments)}` ended with exit code {process.returncode}:\n{text}"
            )
        return text

    def killed_in_a_batch(self, *arguments: str, batches: int, pause: float) -> list[int]:
        """Kills the run, its JVM and its workers while a batch is under way; gives the checkpoints it had taken.

        Empty if it ended before that, which only a failure does.
        """
        slots: list[int] = []
        with self._started((*arguments, "-o", "json"), output=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                for text in process.stdout:
                    event = json.loads(text)
                    if event["event"] != "checkpoint":
                        return []
                    slots.append(event["id"])
                    if len(slots) == batches:
                        time.sleep(pause)
                        return slots
                return []
            finally:
                _kill(process)

    def _started(
        self, arguments: Sequence[str], output: int | None, errors: int | None = None
    ) -> subprocess.Popen[str]:
        # A session of its own: one signal reaches everything that the run has started, and nothing else.
        return subprocess.Popen(
            [*self.base, *arguments, *self.root],
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            text=True,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _quoted(word: str) -> str:
    return f"'{word}'" if any(c in word for c in "[]* $&|;<>()") else word

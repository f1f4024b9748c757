"""Commands as they are typed, one after the other in a process beside the test's: the first that needs Spark starts it, for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Commands:
    """`commands("run", "pipeline.py")` in the process's folder, with the environment that there was when it began."""

    asked: IO[str]
    told: IO[str]

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        self.asked.write(json.dumps([str(word) for word in words]) + "\n")
        self.asked.flush()
        answer = self.told.readline()
        assert answer, f"the process has ended, and not answered {words}"
        return subprocess.CompletedProcess(words, *json.loads(answer))


@contextmanager
def process_of_commands(folder: Path, **environment: str) -> Iterator[Commands]:
    """It ends with the block, and Spark with it."""
    variables: Mapping[str, str] = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.commands"], cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        yield Commands(process.stdin, process.stdout)
        process.stdin.close()
        assert process.wait(120) == 0


def main() -> None:
    """A line of JSON has the words of a command. The line that answers it has the exit code, and what was written."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            # What Spark and its workers write goes there as well.
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = _ran(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            answers.write(json.dumps([code, *map(_text, (out, err))]) + "\n")
            answers.flush()


def _ran(words: Sequence[str]) -> int | str | None:
    from stateflow.cli.main import app

    try:
        app(words, prog_name="stateflow")
    except SystemExit as ended:
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


if __name__ == "__main__":
    main()

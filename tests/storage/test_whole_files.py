"""A file that is written whole or not at all, and nothing beside it for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.storage.whole_files import whole_file

KILLED = """
import os, signal, sys
from pathlib import Path
from stateflow.storage.whole_files import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_killed_writers_have_left_goes_with_the_next_one(tmp_path: Path) -> None:
    path, other = tmp_path / "changes[1].jsonl", tmp_path / "changes.jsonl"
    path.write_text("before")
    for killed in (path, other):
        ended = subprocess.run([sys.executable, "-c", KILLED, str(killed)], check=False)
        assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == "before"
    assert len(names(tmp_path)) == 3
    with whole_file(path) as file:
        file.write(b"after")
    assert path.read_text() == "after"
    (left,) = set(names(tmp_path)) - {path.name}
    assert left.startswith(f".{other.name}.")


def test_writers_at_once_leave_each_other_alone_and_the_last_to_end_stays(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    with whole_file(path) as first:
        first.write(b"first")
        with whole_file(path) as second:
            second.write(b"second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert names(tmp_path) == [path.name]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), whole_file(path):
        os.fsync(1 // 0)
    assert path.read_text() == "before"
    assert names(tmp_path) == [path.name]

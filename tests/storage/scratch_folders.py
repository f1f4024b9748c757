"""Scratch folders of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAKER = (
    "import sys, time; from pathlib import Path; from stateflow.storage.scratch import new_scratch; "
    "print(new_scratch(Path(sys.argv[1])), flush=True); time.sleep(600)"
)


@contextmanager
def folder_of_another_process(scratch: Path) -> Iterator[Path]:
    """Its maker lives until the block ends, and is then killed."""
    maker = subprocess.Popen([sys.executable, "-c", _MAKER, str(scratch)], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    try:
        yield Path(maker.stdout.readline().strip())
    finally:
        maker.kill()
        maker.communicate()


def left_by_a_killed_process(scratch: Path) -> Path:
    with folder_of_another_process(scratch) as folder:
        pass
    assert folder.is_dir()
    return folder


def in_scratch(scratch: Path, pattern: str = "*") -> list[Path]:
    """What the processes of this user have in a scratch folder. There is nothing else in it."""
    own = scratch / f"stateflow-{os.geteuid()}"
    assert [entry for entry in scratch.glob("*") if entry != own] == []
    return sorted(own.glob(pattern))

"""A disk that is full in the middle of making and restoring a savepoint: a real one, a page larger each time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Said
from tests.jobs.made import ORDERS, made_job

SmallDisk = Callable[[int], AbstractContextManager[Path]]
PAGE = 4


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def full(said: Said) -> bool:
    """Whether it failed for want of space: with one sentence that names the disk."""
    if said.code == 0:
        return False
    assert said.code == 9, said.err
    words = [line for line in said.err.splitlines() if "stateflow: " in line]
    assert len(words) == 1
    assert "is full: free space on it" in words[0]
    assert "Traceback" not in said.err
    return True


def test_a_savepoint_that_does_not_fit_leaves_nothing_and_lets_go_of_its_checkpoint(
    command: Command, root: Path, small_disk: SmallDisk
) -> None:
    made_job(root)
    failures = 0
    for pages in range(1, 10):
        with small_disk(pages * PAGE) as disk:
            said = command("savepoint", "create", "orders", "--to", disk / "one", "--checkpoint-dir", root)
            if not full(said):
                assert command("verify", disk / "one", "--deep").code == 0
                break
            failures += 1
            assert list(disk.iterdir()) == []
            assert files_of(root / "orders" / "pins") == []
    else:
        raise AssertionError("it never fitted")
    assert failures > 1


@pytest.mark.system
def test_a_restore_that_does_not_fit_keeps_nothing_that_it_copied_and_can_be_repeated(
    command: Command, root: Path, small_disk: SmallDisk, tmp_path: Path
) -> None:
    made_job(root)
    assert (
        command("savepoint", "create", "orders", "--to", tmp_path / "one", "--checkpoint-dir", root).code == 0
    )
    kept = {path: path.read_bytes() for path in files_of(tmp_path / "one")}
    failures = 0
    for pages in range(1, 20):
        with small_disk(pages * PAGE) as disk:
            restore = (
                "restore", "copy", f"{ORDERS}:orders", "--from", tmp_path / "one", "--checkpoint-dir", disk, "--yes",
                "-p", "output=/data/copies",
            )  # fmt: skip
            if not full(command(*restore)):
                assert command("verify", "copy", "--deep", "--checkpoint-dir", disk).code == 0
                break
            failures += 1
            decided = (
                disk / "copy" / "chk-00000002" / "_pending"
            ).exists()  # then it is whoever comes next that ends it
            assert decided or files_of(disk / "copy" / "shared") == []
            assert {path: path.read_bytes() for path in kept} == kept
            subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
            assert command(*restore).code == 0
            assert command("gc", "copy", "--checkpoint-dir", disk, "--yes").code == 0
            assert command("verify", "copy", "--deep", "--checkpoint-dir", disk).code == 0
    else:
        raise AssertionError("it never fitted")
    assert failures > 4

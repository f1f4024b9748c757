"""Folders that a process needs for a while: nobody else's are removed, and no living process's."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.errors import UnavailableError
from stateflow.storage import scratch as module
from stateflow.storage.scratch import (
    leave,
    named_scratch,
    new_scratch,
    remove_scratch,
    scratch_folder,
    sweep_scratch,
    take_left,
)
from tests.refusals.refusal import refused
from tests.storage.scratch_folders import folder_of_another_process, left_by_a_killed_process


def own(scratch: Path) -> Path:
    return scratch / f"stateflow-{os.geteuid()}"


def test_folders_of_the_user_stay_whatever_they_are_called(tmp_path: Path) -> None:
    id_ = "0123456789abcdef" * 2
    names = (
        "run-2026-results", "run-42", "task-17", "task-17-x", "run-999999999-spark", f"task-999999999-{id_}", id_, "stateflow",
        f"{own(tmp_path).name}/{id_}", f"{own(tmp_path).name}/results", f"{own(tmp_path).name}/run-42",
    )  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.bin").touch()
    (own(tmp_path) / "results.lock").touch()
    sweep_scratch(tmp_path)
    remove_scratch(new_scratch(tmp_path))
    assert all((tmp_path / name / "model.bin").exists() for name in names)
    assert (own(tmp_path) / "results.lock").exists()


def test_the_folder_of_a_process_that_lives_stays_and_that_of_a_killed_one_goes(tmp_path: Path) -> None:
    """Nobody asks for the number of a process: in another container it means another one, or none."""
    with folder_of_another_process(tmp_path) as folder:
        (folder / "000001.sst").touch()
        sweep_scratch(tmp_path)
        assert (folder / "000001.sst").exists()
        mine = new_scratch(tmp_path)
        (mine / "000001.sst").touch()
        sweep_scratch(tmp_path)
        assert (mine / "000001.sst").exists()
    sweep_scratch(tmp_path)
    assert list(own(tmp_path).glob("*/")) == [mine]
    remove_scratch(mine)
    assert list(own(tmp_path).iterdir()) == []


def test_the_first_folder_in_a_process_removes_what_killed_ones_left(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    (left / "big").write_bytes(b"x")
    with scratch_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == own(tmp_path).stat().st_mode & 0o777 == 0o700
        assert not left.exists()
    assert list(own(tmp_path).iterdir()) == []


def test_a_maker_that_ended_before_it_made_the_folder_leaves_nothing_for_ever(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    left.rmdir()
    sweep_scratch(tmp_path)
    assert list(own(tmp_path).iterdir()) == []


def test_a_sweep_between_the_making_and_the_locking_of_a_file_costs_only_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock: Callable[[int, int], None] = fcntl.flock
    swept = []

    def swept_before(descriptor: int, how: int) -> None:
        if not swept:
            swept.append(1)
            sweep_scratch(tmp_path)
        lock(descriptor, how)

    names = iter(("0" * 32, "1" * 32))
    remove_scratch(new_scratch(tmp_path))
    monkeypatch.setattr(fcntl, "flock", swept_before)
    folder = new_scratch(tmp_path, lambda: next(names))
    assert folder == own(tmp_path) / ("1" * 32)
    sweep_scratch(tmp_path)
    assert folder.is_dir()


def test_where_files_cannot_be_locked_no_folder_is_taken_for_a_left_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        folder = new_scratch(tmp_path)
    monkeypatch.setattr(module, "_held", {})
    sweep_scratch(tmp_path)
    assert folder.is_dir()


def test_nothing_behind_a_link_is_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    left = left_by_a_killed_process(elsewhere)
    (tmp_path / "scratch").mkdir()
    own(tmp_path / "scratch").symlink_to(left.parent)
    for use in (sweep_scratch, new_scratch):
        with refused(UnavailableError, "is a link", "another user", "remove it, or choose"):
            use(tmp_path / "scratch")
    assert left.is_dir()
    own(tmp_path / "scratch").unlink()
    assert new_scratch(tmp_path / "scratch").is_dir()


def test_a_folder_with_a_name_has_one_living_process(tmp_path: Path) -> None:
    with folder_of_another_process(tmp_path) as folder:
        assert named_scratch(tmp_path, folder.name) is None
        assert folder.is_dir()
    (folder / "000001.sst").touch()
    mine = named_scratch(tmp_path, folder.name)
    assert mine == folder
    assert list(mine.iterdir()) == []
    assert named_scratch(tmp_path, folder.name) is None
    remove_scratch(mine)
    assert list(own(tmp_path).iterdir()) == []


def test_what_a_process_leaves_is_taken_once_and_nothing_takes_its_place_before(tmp_path: Path) -> None:
    name = "0123456789abcdef" * 2
    folder = named_scratch(tmp_path, name)
    assert folder is not None
    assert not take_left(tmp_path, name, tmp_path / "early")
    (folder / "inner").mkdir()
    (folder / "inner" / "000001.sst").touch()
    leave(folder, folder / "inner")
    remove_scratch(folder)
    sweep_scratch(tmp_path)
    assert named_scratch(tmp_path, name) is None
    assert take_left(tmp_path, name, tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["000001.sst"]
    assert not take_left(tmp_path, name, tmp_path / "late")
    assert list(own(tmp_path).iterdir()) == []

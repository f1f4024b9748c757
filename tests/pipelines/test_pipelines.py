"""Loading FILE:PIPELINE."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UsageError
from stateflow.pipelines.loading import load_pipeline, refuse_outside
from tests.refusals.refusal import refused

ONE = """
import stateflow as sf

@sf.pipeline("clicks")
def clicks_flow(flow):
    pass
"""
TWO = ONE + "\n@sf.pipeline('views')\ndef views(flow):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_the_only_pipeline_of_a_file_need_not_be_named(folder: Path) -> None:
    (folder / "p.py").write_text(ONE)
    assert load_pipeline("p.py", folder).pipeline.name == "clicks"
    assert load_pipeline(f"{folder}/p.py:clicks", Path("/")).pipeline.name == "clicks"


def test_a_pipeline_goes_by_its_name_or_by_that_of_its_function(folder: Path) -> None:
    (folder / "p.py").write_text(TWO)
    assert load_pipeline("p.py:views", folder).pipeline.name == "views"
    assert load_pipeline("p.py:clicks_flow", folder).pipeline.name == "clicks"


def test_of_several_one_has_to_be_named(folder: Path) -> None:
    (folder / "p.py").write_text(TWO)
    with refused(UsageError, "several pipelines", "(clicks, views)"):
        load_pipeline("p.py", folder)
    with refused(NotFoundError, "no pipeline 'likes'", "clicks, views"):
        load_pipeline("p.py:likes", folder)


def test_a_file_without_one_a_folder_and_something_else(folder: Path) -> None:
    (folder / "p.py").write_text("x = 1\n")
    (folder / "p.txt").write_text("x = 1\n")
    with refused(UsageError, "has no pipeline: decorate"):
        load_pipeline("p.py", folder)
    with refused(UsageError, "is a folder"):
        load_pipeline(str(folder), folder)
    with refused(UsageError, "is not a Python file"):
        load_pipeline("p.txt", folder)


def test_a_file_does_not_stand_in_for_a_module_of_its_name(folder: Path) -> None:
    import cmd

    (folder / "cmd.py").write_text(ONE)
    loaded = load_pipeline("cmd.py", folder)
    assert sys.modules["cmd"] is cmd
    assert loaded.module.__name__.startswith("_stateflow_pipeline_cmd_")


def test_modules_beside_the_file_can_be_imported_and_are_known(folder: Path) -> None:
    (folder / "beside_clicks.py").write_text("RATE = 3\n")
    (folder / "p.py").write_text("from beside_clicks import RATE\n" + ONE)
    loaded = load_pipeline("p.py", folder)
    assert loaded.module.RATE == 3
    assert [module.__name__ for module in loaded.siblings()] == ["beside_clicks"]
    assert loaded.folder == folder


def test_an_error_deep_in_a_library_is_told_with_the_users_own_line(folder: Path) -> None:
    (folder / "p.py").write_text("import stateflow as sf\n\nsf.ValueState(int, ttl='soon')\n")
    before = set(sys.modules)
    with refused(UsageError, "p.py, line 3", "ttl: 'soon'"):
        load_pipeline("p.py", folder)
    assert not [name for name in set(sys.modules) - before if name.startswith("_stateflow_pipeline_")]


@pytest.mark.parametrize(
    ("line", "says"), [("raise KeyError('rate')", "KeyError: 'rate'"), ("rate = = 2", "invalid syntax")]
)
def test_a_file_that_does_not_load_is_named_with_the_command_that_tries_it(
    folder: Path, line: str, says: str
) -> None:
    (folder / "p.py").write_text(f"import json\n{line}\n")
    with pytest.raises(UsageError) as caught:
        load_pipeline("p.py", folder)
    path = folder / "p.py"
    assert str(caught.value) == f"{path}, line 2: {says}; `stateflow check {path}` tells when the file loads"


def test_a_file_that_ends_the_process_does_not_end_this_one(folder: Path) -> None:
    (folder / "p.py").write_text("raise SystemExit(0)\n")
    with refused(UsageError, "line 1: SystemExit"):
        load_pipeline("p.py", folder)


def test_a_file_outside_the_allowed_folders_is_refused_unread_by_whatever_way(folder: Path) -> None:
    inside, outside = folder / "inside", folder / "outside"
    (inside / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "p.py").write_text("raise SystemExit('it was run')\n")
    (inside / "link.py").symlink_to(outside / "p.py")
    (inside / "linked").symlink_to(outside)
    for spec in (
        f"{outside}/p.py:clicks", "../outside/p.py", "link.py", "linked/p.py:clicks", f"{inside}/sub/../../outside/p.py",
        f"{inside}x/p.py", "x:/../../outside/p.py", "../outside/p.py:/../../inside/p.py",
    ):  # fmt: skip
        with refused(UsageError, "none of the allowed folders", f"{inside})"):
            refuse_outside(spec, inside, [inside])
    for spec in ("sub/p.py:clicks", f"{inside}/p.py", "sub/../p.py:clicks"):
        refuse_outside(spec, inside, [inside])
    with refused(UsageError, "allowed folders (none)"):
        refuse_outside("p.py", inside, [])

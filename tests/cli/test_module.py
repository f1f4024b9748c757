"""The command where its script is not on the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow import working_folder


@pytest.mark.slow
@pytest.mark.parametrize("module", ["stateflow", "stateflow.cli"])
def test_python_m_is_the_command(module: str) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    code, version = said("--version")
    assert (code, version.split()[0]) == (0, "stateflow")
    code, error = said("rnu")
    assert (code, "stateflow" in error, "__main__" in error) == (2, True, False)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_command_without_a_place_to_write_to_fails_as_it_would_with_one(closed: str) -> None:
    words = f"exec {sys.executable} -P -m stateflow show orders --checkpoint-dir /nowhere {closed}"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "stateflow", "check", "pipeline.py"],
        ["-m", "stateflow.cli", "check", "pipeline.py"],
        ["-Bmstateflow", "check", "pipeline.py"],
        ["-m", "stateflow.spark.session.jars", "--help"],
    ],
    ids=" ".join,
)
def test_no_module_of_the_working_folder_is_imported(command: list[str], tmp_path: Path) -> None:
    for name in ("json", "msgspec", "numpy", "pandas", "pyarrow", "pyspark", "statistics", "typing", "typer"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working folder')\n")
    # A pipeline elsewhere: its own folder is one to import from.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pipeline.py").write_text(
        "import stateflow as sf\n\n\n@sf.pipeline('copied')\ndef copied(flow):\n"
        "    flow.source('rows', sf.files('/in', 'json'), 'id long').append('rows', sf.delta('/out'))\n"
    )
    words = [f"elsewhere/{word}" if word == "pipeline.py" else word for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "of the working folder" in done.stdout + done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("argv", "original", "home", "left"),
    [
        (["-m", "run"], ["python", "-m", "stateflow", "run"], "/pkg", True),
        (["-m"], ["python", "-W", "ignore", "-m", "stateflow.spark.session.jars"], "/pkg", True),
        # Another program, which needs the folder; and one whose module has been found already.
        (["-m"], ["python", "-m", "mine"], "/pkg", False),
        (["-m", "stateflow"], ["python", "-m", "mine", "stateflow"], "/pkg", False),
        (["/mine/__main__.py", "x"], ["python", "-m", "mine", "x"], "/pkg", False),
        # The package's own folder.
        (["-m", "run"], ["python", "-m", "stateflow", "run"], "", False),
    ],
)
def test_only_the_commands_entry_goes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    argv: list[str],
    original: list[str],
    home: str,
    left: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/lib"])
    monkeypatch.setattr(working_folder, "_HOME", home or str(tmp_path))
    working_folder.keep_out()
    assert (sys.path == ["/lib"]) == left


@pytest.mark.slow
def test_a_working_folder_that_is_gone_is_told_in_one_sentence(tmp_path: Path) -> None:
    def said(*arguments: str, after: str = "true") -> tuple[int, str]:
        gone = tmp_path / "gone"
        gone.mkdir()
        words = f'rmdir "{gone}" && {after} && exec "$0" "$@"'
        command = ["sh", "-c", words, sys.executable, "-m", "stateflow", *arguments]
        done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    jobs = ("jobs", "--checkpoint-dir", str(tmp_path))
    code, sentence = said(*jobs)
    assert (code, len(sentence.splitlines())) == (2, 1)
    assert "the working folder does not exist any more" in sentence
    assert "change to another one with cd" in sentence
    assert said(*jobs, after="cd /")[0] == 0
    assert said("--version")[0] == said("jobs", "--help")[0] == 0


def test_a_working_folder_that_is_gone_has_no_entry_to_take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "stateflow"])
    monkeypatch.setattr(sys, "path", ["/gone", "/lib"])
    monkeypatch.setattr(os, "getcwd", gone)
    working_folder.keep_out()
    assert sys.path == ["/gone", "/lib"]

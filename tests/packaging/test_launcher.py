"""`bin/python` of an environment, which Spark starts workers with, wherever the environment lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.packaging.interpreter import NAME, interpreter, launcher


def environment(folder: Path, *, included: bool) -> Path:
    program = folder / "with spaces" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_bytes(launcher(included=included).read())
    program.chmod(0o755)
    return program


def asked(program: Path, code: str, **surroundings: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/nowhere:/usr/bin:/bin", **surroundings}
    return subprocess.run([program, "-c", code], capture_output=True, text=True, env=env, check=False)


def stand_in(folder: Path, version: str) -> Path:
    """A Python of another version, as far as anybody asks it."""
    folder.mkdir()
    for name in (NAME, "python3"):
        program = folder / name
        program.write_text(
            f"#!/bin/sh\ncase $2 in *version_info*) exit {int(version != NAME)};; esac\necho {version}\n"
        )
        program.chmod(0o755)
    return folder


def test_spark_s_modules_come_first_and_those_of_the_user_s_home_never(tmp_path: Path) -> None:
    program = environment(tmp_path, included=False)
    code = "import os, sys; print(os.environ['PYTHONPATH'], os.environ['PYTHONNOUSERSITE'], 'PYTHONHOME' in os.environ)"
    said = asked(
        program, code, STATEFLOW_HOST_PYTHON=sys.executable, PYTHONPATH="/spark.zip", PYTHONHOME="/wrong"
    )
    assert said.stdout == f"/spark.zip:{tmp_path}/with spaces/site-packages 1 False\n", said.stderr
    assert asked(program, code, STATEFLOW_HOST_PYTHON=sys.executable).stdout.startswith(
        f"{tmp_path}/with spaces/site-"
    )


def test_a_host_s_python_is_taken_when_its_version_fits(tmp_path: Path) -> None:
    program = environment(tmp_path, included=False)
    right = stand_in(tmp_path / "right", NAME)
    assert asked(program, "x", PATH=f"{right}:/usr/bin:/bin").stdout == f"{NAME}\n"


def test_a_host_without_the_right_python_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    program = environment(tmp_path, included=False)
    program.write_text(program.read_text().replace("/usr/", "/nowhere/").replace("/opt/", "/nowhere/"))
    wrong = stand_in(tmp_path / "wrong", "python3.9")
    said = asked(program, "x", PATH=f"{wrong}:{tools(tmp_path)}")
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert f"needs CPython {NAME.removeprefix('python')} on every host" in said.stderr


def tools(folder: Path) -> Path:
    """A PATH with what a shell script needs, and no Python."""
    made = folder / "tools"
    made.mkdir()
    for name in ("dirname", "hostname"):
        target = next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists())
        (made / name).symlink_to(target)
    return made


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="only CPython is copied")
def test_the_interpreter_is_copied_without_what_no_executor_uses() -> None:
    names = {entry.name for entry in interpreter()}
    place = f"python/{sys.platlibdir}/{NAME}"
    assert {f"python/bin/{NAME}", f"{place}/os.py", f"{place}/encodings/utf_8.py"} <= names
    assert any("/lib-dynload/_ctypes." in name or "/_ctypes." in name for name in names)
    unused = (
        "site-packages",
        "/test/",
        "/idlelib/",
        "/tkinter/",
        "/ensurepip/",
        "_tkinter.",
        "_curses",
        "readline.",
    )
    assert [name for name in names if any(part in name.removeprefix(place) for part in unused)] == [
        name for name in names if name.startswith(f"{place}/curses/") and "_curses" in name
    ]

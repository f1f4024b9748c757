"""The first page that a new user reads, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "start.md").read_text(encoding="utf-8")


def commands() -> str:
    """What is typed after the installation."""
    return "".join(re.findall(r"^    (.*\n)", PAGE[PAGE.index("## Run\n") :], re.MULTILINE))


@pytest.mark.system
@pytest.mark.timeout(900)  # four starts of Spark, on a machine that may be busy
def test_who_types_the_first_page_gets_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "payments.py").write_text(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0])
    assert "timeout -s KILL" in commands()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", commands()], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "\n100.0\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr

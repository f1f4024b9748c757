"""The first page that a new user reads, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "start.md").read_text(encoding="utf-8")
INSTALL = "pip install /path/to/checkout\n"


def typed() -> str:
    """All commands of the page, from the first one on, and the file that it lets its reader save."""
    parts = re.finditer(r"^    (?P<command>[^\n]*\n)|^```python\n(?P<code>.*?)^```", PAGE, re.M | re.S)
    saved, lines = False, []
    for part in parts:
        if part["command"]:
            lines.append(part["command"])
        elif not saved:
            saved = True
            lines.append(f"cat > payments.py <<'END'\n{part['code']}END\n")
    return "".join(lines)


@pytest.mark.system
@pytest.mark.timeout(900)  # four starts of Spark, on a machine that may be busy
def test_who_types_the_first_page_gets_what_it_says(tmp_path: Path) -> None:
    commands = typed()
    assert "timeout -s KILL" in commands
    assert commands.count(INSTALL) == 1
    # What is installed for this test stands for what pip would fetch; `make release` tries that.
    path = f"import site; site.addsitedir('{sysconfig.get_path('purelib')}')"
    installed = f'echo "{path}" > .venv/lib/python{sysconfig.get_python_version()}/site-packages/here.pth\n'
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", commands.replace(INSTALL, installed)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "\n100.0\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["start"]
    assert "No module named" not in done.stderr

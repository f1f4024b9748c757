"""The command where its script is not on the PATH."""

from __future__ import annotations

import subprocess
import sys

import pytest


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

"""What a task's own Spark writes to stderr is no error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stateflow.airflow.connections.sessions import own_session

CHATTY = [sys.executable, "-c", "import sys; sys.stderr.write('Using Spark\\n')"]


def test_programs_that_a_task_starts_write_no_line_to_its_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with own_session():
        subprocess.run(CHATTY, check=True)
    assert capfd.readouterr() == ("Using Spark\n", "")
    with pytest.raises(ValueError, match="broken"), own_session():
        raise ValueError("broken")
    subprocess.run(CHATTY, check=True)
    assert capfd.readouterr() == ("", "Using Spark\n"), "it is as before afterwards"

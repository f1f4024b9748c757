"""What somebody sees whose code has failed: where in it, and then one sentence, and not what Java says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.system
def test_code_that_fails_is_told_in_one_sentence_and_nothing_of_java(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"account": "ann", "amount": -2.0}\n')
    program = REPOSITORY / "tests" / "cli" / "failing_runs.py"
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = [
        line for line in ran.stderr.splitlines() if not line.startswith("WARNING: Using incubator modules")
    ]
    repeated = "nothing of the batch was stored, and a run with changed code repeats it"
    keyed = (
        "stateflow: operator 'balance' failed on key 'ann': ValueError: a negative amount (line 18 of failing_runs.py, in "
        f"process): {repeated}, or divert such keys with on_error='dead_letter'"
    )
    columnar = (
        "stateflow: operator 'balance' failed: ValueError: a negative amount (line 23 of failing_runs.py, in columns): "
        f"{repeated}"
    )
    assert lines == [
        *("---- append", "append: starting Spark", *frames(program, 18, "process"), keyed, "ended with 1"),
        *("---- upsert", *frames(program, 18, "process"), keyed, "ended with 1"),
        *("---- arrow", *frames(program, 23, "columns"), columnar, "ended with 1"),
    ]


def frames(program: Path, line: int, function: str) -> list[str]:
    return [
        "in the pipeline's own code:",
        f'  File "{program}", line {line}, in {function}',
        '    raise ValueError("a negative amount")',  # the sentence after it says what was raised
    ]

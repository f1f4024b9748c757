"""What a change runs of the long tests: the core, and others while there is time."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
CONFTEST = "from tests.conftest import pytest_collection_modifyitems, pytest_runtest_setup\n"
FILE = """
import pytest

{marks}
def test_one() -> None:
    pass

{marks}
def test_two() -> None:
    pass

def test_short() -> None:
    pass
"""
LONG = "@pytest.mark.slow"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    marks = {
        "a_long": LONG,
        "b_core": f"{LONG}\n@pytest.mark.core",
        "c_short": "",
        "d_long": "@pytest.mark.system",
    }
    for name, given in marks.items():
        (tmp_path / f"test_{name}.py").write_text(FILE.format(marks=given))
    return tmp_path


def ran(suite: Path, until: float | None) -> dict[str, list[str]]:
    """Outcomes by file, in the order of the files."""
    given = {} if until is None else {"STATEFLOW_LONG_TESTS_UNTIL": str(until)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", REPOSITORY / "pyproject.toml", "--rootdir", suite, suite],
        cwd=REPOSITORY,
        env={**given, "PYTHONPATH": str(REPOSITORY), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for file, outcome in re.findall(r"test_(\w+)\.py::\w+ (PASSED|SKIPPED)", done.stdout):
        found.setdefault(file, []).append(outcome)
    return found


ALL = ["PASSED"] * 3
NONE = ["SKIPPED", "SKIPPED", "PASSED"]


def test_without_a_time_all_of_them_run(suite: Path) -> None:
    assert ran(suite, None) == {"a_long": ALL, "b_core": ALL, "c_short": ALL, "d_long": ALL}


def test_when_the_time_is_over_the_core_runs_and_what_is_short(suite: Path) -> None:
    found = ran(suite, time.time())
    assert list(found) == ["b_core", "a_long", "d_long", "c_short"]
    assert found == {"b_core": ALL, "c_short": ALL, "a_long": NONE, "d_long": NONE}


def test_a_file_that_has_begun_in_time_goes_on_to_its_end(suite: Path) -> None:
    file = suite / "test_a_long.py"
    # The time is over within its first test.
    text = file.read_text().replace("    pass", "    long_tests.UNTIL = 0.0", 1)
    file.write_text(f"from tests import long_tests\n{text}")
    assert ran(suite, time.time() + 3600) == {"b_core": ALL, "c_short": ALL, "a_long": ALL, "d_long": NONE}

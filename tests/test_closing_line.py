"""CI's last line sums what pytest's runs ended with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.closing_line import main, summed

REPOSITORY = Path(__file__).resolve().parents[1]
QUIET = """
....................................................... [100%]
SKIPPED [1] tests/ui/test_screenshots.py:30: STATEFLOW_SCREENSHOTS=1 takes them
4100 passed, 3 skipped, 200 deselected, 2 warnings in 501.20s (0:08:21)
"""
BARS = (
    "=========== \x1b[31m1 failed\x1b[0m, 150 passed, 1 skipped, 2 errors in 61.02s (0:01:01) ===========\n"
)


def counts(*runs: str) -> tuple[int, int, int]:
    found = summed(runs)
    return found["passed"], found["failed"], found["skipped"]


def test_runs_are_summed_and_errors_count_as_failed() -> None:
    assert counts(QUIET) == (4100, 0, 3)
    assert counts(QUIET, BARS) == (4250, 3, 4)


def test_a_test_that_ought_to_fail_and_does_not_has_failed_and_one_that_fails_so_is_skipped() -> None:
    assert counts("5 passed, 2 xfailed, 1 xpassed in 3.1s\n") == (5, 1, 2)


def test_a_run_that_broke_off_counts_as_one_that_failed() -> None:
    assert counts(QUIET, "make: Python 3.11 was not found\n") == (4100, 1, 3)
    assert counts("") == (0, 1, 0)


def test_numbers_that_a_test_printed_are_no_closing_line() -> None:
    assert counts("the story: 3 passed in 2 rounds\n 7 failed in 1.0s of them\n" + QUIET) == (4100, 0, 3)


def test_the_line_and_the_exit_code_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("quick", QUIET), ("system", BARS), ("none", "no tests ran in 0.01s\n")):
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path / "quick")]) == 0
    assert main([str(tmp_path / "quick"), str(tmp_path / "system")]) == 1
    assert main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "4100 passed, 0 failed, 3 skipped",
        "4250 passed, 3 failed, 4 skipped",
        "0 passed, 1 failed, 0 skipped",
    ]


MAKE = """#!/bin/sh
echo "$@ $STATEFLOW_LONG_TESTS_UNTIL" >> "$TOLD"
case "$1" in
    test) echo "12 passed, 1 skipped, 3 deselected in 1.00s" ;;
    test-oldest-spark) echo "4 passed in 1.00s" ;;
    test-other-airflow) echo "2 passed in 1.00s" ;;
    test-all) echo "$ALL"; echo "make: that was it"; exit "$CODE" ;;
esac
"""


@pytest.mark.parametrize(
    ("everything", "code", "last"),
    [
        ("17 passed, 1 skipped in 9.00s", 0, "21 passed, 0 failed, 1 skipped"),
        ("1 failed, 17 passed, 1 skipped in 9.00s", 2, "21 passed, 1 failed, 1 skipped"),
        ("17 passed, 1 skipped in 9.00s", 3, "21 passed, 0 failed, 1 skipped"),
        ("azurite: npm could not install it", 2, "4 passed, 1 failed, 0 skipped"),
    ],
)
def test_ci_runs_tests_in_one_random_order_and_its_last_line_sums_all_runs(
    everything: str, code: int, last: str, tmp_path: Path
) -> None:
    began = time.time()
    done, made = ci(tmp_path, ALL=everything, CODE=str(code))
    assert bool(done.returncode) == bool(code), done.stderr
    assert done.stdout.splitlines()[-1] == last
    *checks, all_tests, oldest = made
    assert checks[0] == "lint", "it sets up what the others need"
    assert sorted(checks) == ["docs", "lint", "servers", "types"]
    seed = re.fullmatch(r"test-all SEED=(\d+) (\d+)", all_tests)
    assert seed
    assert 5 * 60 < int(seed[2]) - began < 30 * 60, "until when long tests begin"
    assert oldest == f"test-oldest-spark SEED={seed[1]}"
    assert f"SEED={seed[1]}" in done.stdout
    # This checkout has no scripts/other_spark.py: what could not be fetched meanwhile says why, above the tests that need it.
    failed, began = done.stdout.index("other_spark"), done.stdout.index("-- make test-oldest-spark")
    assert failed < began


def test_the_long_form_of_ci_tries_another_airflow_and_every_spark(tmp_path: Path) -> None:
    done, made = ci(tmp_path, ALL="17 passed, 1 skipped in 9.00s", CODE="0", STATEFLOW_LONG="1")
    last = [target.rpartition(" SEED=")[0] for target in made[-3:]]
    assert last == ["test-other-airflow", "test SPARK=4.0", "test SPARK=4.1"]
    assert [target for target in made if re.search(r"SEED=\d+ \d", target)] == [], "all long tests run"
    assert done.stdout.splitlines()[-1] == "47 passed, 0 failed, 3 skipped"


def ci(tmp_path: Path, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What it printed, and what it made."""
    checkout, told = tmp_path / "checkout", tmp_path / "told"
    for name in (".ci/run", "scripts/closing_line.py"):
        copy = checkout / name
        copy.parent.mkdir(parents=True)
        copy.write_bytes((REPOSITORY / name).read_bytes())
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(sys.executable)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "make").write_text(MAKE)
    (tools / "make").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TOLD": str(told),
        **variables,
    }
    done = subprocess.run(
        ["bash", checkout / ".ci/run"], env=environment, capture_output=True, text=True, check=False
    )
    return done, [line.strip() for line in told.read_text().splitlines()]


def test_what_failed_in_any_run_is_said_again_before_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "system").write_text(
        f"\x1b[31mFAILED\x1b[0m tests/a.py::b - AssertionError: {'x' * 1000}\nassert 0\n" + BARS
    )
    (tmp_path / "quick").write_text(QUIET)
    assert main([str(tmp_path / "system"), str(tmp_path / "quick")]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("FAILED tests/a.py::b - AssertionError: xxx")
    assert len(first) == 300
    assert last == "4250 passed, 3 failed, 4 skipped"

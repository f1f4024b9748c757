"""A driver's Java compiles later, unless its user has said how it compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.spark.session import compiling


@pytest.fixture(autouse=True)
def nothing_said_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compiling.JAVA_READS:
        monkeypatch.delenv(name, raising=False)


def test_a_drivers_java_has_the_option(tmp_path: Path) -> None:
    script = (
        "from stateflow.spark.session.build import build_session\n"
        "jvm = build_session('start', master='local[1]')._jvm\n"
        "print(*jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert compiling.LATER in done.stdout.split()


@pytest.mark.parametrize(
    "option", ["-XX:CompileThresholdScaling=1", "-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-Xint"]
)
def test_what_its_user_says_of_compiling_stays(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    assert compiling.options("-Xss4m") == compiling.LATER
    assert compiling.options(f"-Xss4m {option}") == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert compiling.options() == ""

"""A driver's Java compiles later, unless its user has said how it compiles."""

from __future__ import annotations

import pytest

from stateflow.spark.session import compiling


@pytest.fixture(autouse=True)
def nothing_said_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compiling.JAVA_READS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "option", ["-XX:CompileThresholdScaling=1", "-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-Xint"]
)
def test_what_its_user_says_of_compiling_stays(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    assert compiling.options("-Xss4m") == compiling.LATER
    assert compiling.options(f"-Xss4m {option}") == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert compiling.options() == ""

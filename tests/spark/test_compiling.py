"""A driver's Java compiles later, unless its user has said how it compiles."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.spark.session import compiling


@pytest.fixture(autouse=True)
def nothing_said_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compiling.JAVA_READS:
        monkeypatch.delenv(name, raising=False)


def test_a_drivers_java_has_the_option(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert compiling.LATER in list(arguments)


@pytest.mark.parametrize(
    "option", ["-XX:CompileThresholdScaling=1", "-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-Xint"]
)
def test_what_its_user_says_of_compiling_stays(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    assert compiling.options("-Xss4m") == compiling.LATER
    assert compiling.options(f"-Xss4m {option}") == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert compiling.options() == ""

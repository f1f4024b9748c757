"""How Java is started for an application that stays, and what a user's own options do to it."""

from __future__ import annotations

from stateflow.hosts.application import JAVA_OPTIONS, LASTING, host_settings
from stateflow.spark.session import compiling


def test_java_compiles_as_by_default_and_gives_memory_back() -> None:
    settings = host_settings({}, "local[2]")
    assert settings[JAVA_OPTIONS].split() == list(LASTING)
    assert compiling.options(settings[JAVA_OPTIONS]) == "", "a driver of its own compiles later"
    assert settings["spark.scheduler.mode"] == "FAIR"


def test_a_users_own_settings_win() -> None:
    given = {JAVA_OPTIONS: "-XX:MaxHeapFreeRatio=70 -Dmine=1", "spark.scheduler.mode": "FIFO"}
    settings = host_settings(given, "local[2]")
    # Of an option that is given twice, Java takes the last.
    assert settings[JAVA_OPTIONS].endswith("-XX:MaxHeapFreeRatio=70 -Dmine=1")
    assert settings["spark.scheduler.mode"] == "FIFO"


def test_runs_of_a_cluster_share_no_python_worker_unless_the_user_says_so() -> None:
    reuse = "spark.python.worker.reuse"
    assert reuse not in host_settings({}, "local[2]")
    assert host_settings({}, "spark://there:7077")[reuse] == "false"
    assert host_settings({reuse: "true"}, "spark://there:7077")[reuse] == "true"

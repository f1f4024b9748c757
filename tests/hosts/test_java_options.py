"""How Spark and Java are started for an application that stays, and what a user's own settings do to it."""

from __future__ import annotations

import pytest

from stateflow.hosts.spark_settings import LASTING, SMALL_ARRAYS, host_settings
from stateflow.spark.session import class_data, compiling
from stateflow.spark.session.settings import DRIVER_JAVA


def test_java_compiles_as_late_as_for_a_driver_of_its_own_and_gives_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in class_data.JAVA_READS:
        monkeypatch.delenv(name, raising=False)
    settings = host_settings({}, "local[2]")
    assert settings[DRIVER_JAVA].split() == list(LASTING)
    assert compiling.options(settings[DRIVER_JAVA]) == compiling.LATER
    assert settings["spark.scheduler.mode"] == "FAIR"


def test_a_users_own_settings_win() -> None:
    given = {DRIVER_JAVA: "-XX:MaxHeapFreeRatio=70 -Dmine=1", "spark.scheduler.mode": "FIFO"}
    settings = host_settings(given, "local[2]")
    # Of an option that is given twice, Java takes the last.
    assert settings[DRIVER_JAVA].endswith("-XX:MaxHeapFreeRatio=70 -Dmine=1")
    assert settings["spark.scheduler.mode"] == "FIFO"


def test_runs_of_a_cluster_share_no_python_worker_unless_the_user_says_so() -> None:
    reuse = "spark.python.worker.reuse"
    assert reuse not in host_settings({}, "local[2]")
    assert host_settings({}, "spark://there:7077")[reuse] == "false"
    assert host_settings({reuse: "true"}, "spark://there:7077")[reuse] == "true"


@pytest.mark.parametrize(
    ("master", "given", "has"),
    [
        ("local[2]", {}, True),
        ("local[2]", {"spark.driver.memory": "32g"}, True),
        # A task has 8,192 pages at most: 32 GiB.
        ("local[2]", {"spark.driver.memory": "33g"}, False),
        ("local[2]", {"spark.driver.memory": "much"}, False),
        # Executors have a memory of their own.
        ("spark://there:7077", {}, False),
    ],
)
def test_sorts_take_small_pages_where_they_are_enough(master: str, given: dict[str, str], has: bool) -> None:
    settings = host_settings(given, master)
    assert {name: settings.get(name) for name in SMALL_ARRAYS} == (
        SMALL_ARRAYS if has else dict.fromkeys(SMALL_ARRAYS)
    )


def test_a_page_and_its_head_are_no_more_than_half_a_region() -> None:
    (region,) = (int(each.partition("=")[2][:-1]) << 20 for each in LASTING if "G1HeapRegionSize" in each)
    assert int(SMALL_ARRAYS["spark.buffer.pageSize"][:-1]) + 16 == region // 2

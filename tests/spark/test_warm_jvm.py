"""A JVM that is lent to one victim after another: what a dead one has left there touches no later one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.murder_jvm import ROOT, WarmJvm
from tests.spark.murder_victim import Errand

pytestmark = pytest.mark.system

CALLED_BY_JAVA = """
import gc, time
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from tests.spark.murder_jvm import adopt

class Task:
    ran = False
    def run(self):
        Task.ran = True
    class Java:
        implements = ["java.lang.Runnable"]

adopt()
gateway = SparkContext._gateway
ensure_callback_server_started(gateway)
thread = gateway.jvm.java.lang.Thread(Task())
"""
LEAVES = "del thread; gc.collect(); time.sleep(1); import os; os._exit(9)"
CARRIES_ON = """
for _ in range(5):
    gateway.jvm.java.lang.System.gc()
    gateway.jvm.java.lang.System.runFinalization()
    time.sleep(0.2)
thread.run()
assert Task.ran
"""


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[WarmJvm]:
    folder = tmp_path / "jvm"
    made = WarmJvm.start(Errand(str(folder)), folder)
    yield made
    made.end()


def victim(jvm: WarmJvm, script: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **jvm.environment}
    return subprocess.run(
        [sys.executable, "-c", CALLED_BY_JAVA + script],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_java_s_collector_takes_nothing_of_a_victim_that_has_the_numbers_of_a_dead_one(jvm: WarmJvm) -> None:
    assert victim(jvm, LEAVES).returncode == 9
    jvm.tidy()
    later = victim(jvm, CARRIES_ON)
    assert later.returncode == 0, later.stderr

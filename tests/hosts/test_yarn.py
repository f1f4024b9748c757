"""A warm host on YARN: its driver is a process beside it, its executors are in YARN's containers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stateflow.spark.session.jars import spark_home
from tests.hosts.hosting import alive, eventually, give, host
from tests.hosts.test_runs import running, slow
from tests.hosts.test_standalone import CONF, SHARED, begin
from tests.yarn_servers import YarnServer, yarn_server

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ON_YARN = {
    **CONF,
    # Else it sends its jars, half a gigabyte, with each application.
    "spark.yarn.jars": f"local:{spark_home() / 'jars'}/*",
    "spark.executor.instances": "2",
    "spark.yarn.am.memory": "400m",
    "spark.yarn.am.extraJavaOptions": CONF["spark.executor.extraJavaOptions"],
}


def containers(yarn: YarnServer) -> int:
    """The application master's among them."""
    count: int = yarn.asked("metrics")["clusterMetrics"]["containersAllocated"]
    return count


def test_runs_on_the_executors_of_yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for name, value in ON_YARN.items() for word in ("--conf", f"{name}={value}")]
    with yarn_server(tmp_path / "yarn") as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        with host(tmp_path, *words, master="yarn") as made:
            projects = [made.project(name) for name in ("one", "two")]
            for client in [begin(made, each) for each in projects]:
                said, _ = client.communicate(timeout=120)
                assert client.returncode == 0, said
                assert "runs on the warm host tests (yarn)" in said
            give(projects[0])
            ran = made.run(projects[0], *SHARED)
            assert ran.returncode == 0, ran.stderr
            assert [made.total(name) for name in ("one", "two")] == [2.0, 1.0]

            project, begun, go = slow(made, "killed")
            client = begin(made, project)
            eventually(begun.exists, "the batch runs")
            os.kill(running(made, "pipeline.py"), signal.SIGKILL)
            assert client.wait(60) == 137
            go.touch()
            ran = made.run(project, *SHARED)
            assert ran.returncode == 0, ran.stderr
            assert made.total("killed") == 1.0

            elsewhere = made.environ.pop("HADOOP_CONF_DIR")
            refused = made.run(project, *SHARED)
            assert (refused.returncode, "HADOOP_CONF_DIR" in refused.stderr) == (2, True), refused.stderr
            made.environ["HADOOP_CONF_DIR"] = elsewhere

            assert yarn.states() == ["RUNNING"]
            keeper = made.keeper()
            stopped = made.stateflow("host", "stop", "tests")
            assert stopped.returncode == 0, stopped.stderr
            eventually(lambda: not alive(keeper), "the keeper has ended")
            eventually(lambda: yarn.states() == ["FINISHED"], "YARN has the application's end")
            eventually(lambda: containers(yarn) == 0, "YARN has its containers back")

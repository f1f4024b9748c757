"""A warm host on a cluster: Spark's own master and worker, with executors in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.hosts.hosting import Host, alive, eventually, give, host
from tests.hosts.test_runs import running, slow
from tests.quick_java import QUICK_JAVA
from tests.spark.standalone import standalone

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "stateflow.spark.task.daemon",
}
SHARED = ("--option", "shared_filesystem=true", "--option", "parallelism=2")
# Each run is a process of its own, and its workers know no other. A task that fails would be tried again, in another worker.
LEAKY = """
import builtins

RUN = os.getpid()


class Leaky(Total):
    def process(self, account, rows, ctx):
        if getattr(builtins, "served", RUN) != RUN:
            open({shared!r}, "w").close()
        builtins.served = RUN
        yield from super().process(account, rows, ctx)
"""


def executors(made: Host) -> list[int]:
    """The executors of the cluster, which work in its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
                found += [int(process.name)] * (process / "cwd").readlink().is_relative_to(made.folder)
        except OSError:
            continue
    return found


def begin(made: Host, project: Path) -> subprocess.Popen[str]:
    return made.started("run", "pipeline.py", "--host", "tests", "--host-only", *SHARED, cwd=project)


def test_runs_on_the_executors_of_a_cluster(tmp_path: Path) -> None:
    words = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    with (
        standalone(tmp_path, cores=1, memory="700m", patience=120) as master,
        host(tmp_path, *words, master=master) as made,
    ):
        # Two at once, each with the relative paths of its own folder.
        shared = tmp_path / "a worker had served another run"
        body = LEAKY.format(shared=str(shared))
        projects = [made.project(name, body=body, operator="Leaky") for name in ("one", "two")]
        clients = [begin(made, each) for each in projects]
        for client in clients:
            said, _ = client.communicate(timeout=120)
            assert client.returncode == 0, said
            assert f"runs on the warm host tests ({master})" in said
        give(projects[0])
        ran = made.run(projects[0], *SHARED)
        assert ran.returncode == 0, ran.stderr
        assert [made.total(name) for name in ("one", "two")] == [2.0, 1.0]
        assert not shared.exists()

        application, before = made.shown()["pid"], executors(made)
        project, begun, go = slow(made, "killed")
        client = begin(made, project)
        eventually(begun.exists, "the batch runs")
        os.kill(running(made, "pipeline.py"), signal.SIGKILL)
        assert client.wait(60) == 137
        begun.unlink()
        # What was killed would wait for ever. Its next run has the executors, so they have let go of it.
        client = begin(made, project)
        eventually(begun.exists, "the batch runs")
        for executor in before:
            os.kill(executor, signal.SIGKILL)
        go.touch()
        said, _ = client.communicate(timeout=120)
        assert client.returncode == 0, said
        assert made.total("killed") == 1.0
        assert made.shown()["pid"] == application
        assert len(before) == 2
        assert not any(map(alive, before))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--master", "sc://there:15002"], "Spark Connect does not have"),
        (["--master", "yarn", "--conf", "spark.submit.deployMode=cluster"], "runs are forked there"),
    ],
)
def test_a_driver_on_another_machine_is_refused(tmp_path: Path, words: list[str], why: str) -> None:
    refused = Host(tmp_path).stateflow("host", "start", "tests", *words)
    assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "cache" / "hosts" / "tests" / "settings.json").exists()

"""A warm host on Kubernetes: Spark's scheduler makes pods for its executors, makes others when they fail, and deletes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import spark_home
from stateflow.spark.session.java import require_java
from tests.hosts.hosting import Host, alive, eventually, give, host
from tests.hosts.test_standalone import CONF, SHARED
from tests.kubernetes_server import Kubernetes, kubernetes_server

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ON_KUBERNETES = {
    **CONF,
    "spark.executor.instances": "2",
    # From here on 40 % are more than the least that Spark adds.
    "spark.executor.memory": "1000m",
    "spark.kubernetes.namespace": "jobs",
    "spark.kubernetes.container.image": "registry/team/orders:1.2",
    "spark.kubernetes.driver.pod.name": "workers-0",
    # As docs/deploying.md says for Kubernetes.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}

ROLE = {
    "pods": {"get", "list", "watch", "create", "delete", "deletecollection"},
    "configmaps": {"create", "deletecollection"},
    "services": {"deletecollection"},
    "persistentvolumeclaims": {"list", "deletecollection"},
}
"""As docs/hosts.md says it."""


def words_of(conf: dict[str, str]) -> list[str]:
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


def running_pods(kubernetes: Kubernetes) -> list[str]:
    pods = kubernetes.executors()
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def command_lines() -> str:
    """Of all processes of this machine."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(each.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def carries_on(made: Host, project: Path, total_then: float) -> str:
    """What the command of a run says that adds a file of rows."""
    ran = made.run(project, *SHARED, "--host-wait", "2 minutes")
    assert ran.returncode == 0, ran.stderr
    assert made.total("orders") == total_then
    give(project)
    return ran.stderr


def test_runs_on_executors_in_pods(tmp_path: Path) -> None:
    with kubernetes_server(tmp_path / "kubernetes") as kubernetes:
        token = tmp_path / "token"
        token.write_text(kubernetes.token, encoding="utf-8")
        conf = {**ON_KUBERNETES, "spark.kubernetes.authenticate.oauthTokenFile": str(token)}
        master, uid = f"k8s://{kubernetes.address}", kubernetes.add_running("workers-0")
        with host(tmp_path, *words_of(conf), master=master) as made:
            application, project = made.shown()["pid"], made.project("orders")
            assert f"runs on the warm host tests ({master})" in carries_on(made, project, 1.0)
            eventually(lambda: len(running_pods(kubernetes)) == 2, "both executors have their pods")
            for pod in kubernetes.executors():
                container = pod["spec"]["containers"][0]
                assert container["image"] == "registry/team/orders:1.2"
                # Without Stateflow Spark gives 40 % more than Java's memory to Python only in cluster mode.
                assert container["resources"]["limits"]["memory"] == "1400Mi"
                assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [uid]

            killed = running_pods(kubernetes)[0]
            os.kill(kubernetes.processes[killed].pid, signal.SIGKILL)
            carries_on(made, project, 2.0)
            eventually(
                lambda: len(kubernetes.processes) == 3 and len(running_pods(kubernetes)) == 2,
                "there is another pod for the one that failed",
            )
            assert kubernetes.seen()[killed] == ["Pending", "Running", "Failed", "deleted"]
            carries_on(made, project, 3.0)
            assert made.shown()["pid"] == application

            # Nobody is left who could delete the pods of a driver that is killed. They end by themselves, and stay as their pod's.
            left = running_pods(kubernetes)
            os.kill(made.shown()["processes"]["jvm"], signal.SIGKILL)
            carries_on(made, project, 4.0)
            eventually(
                lambda: not any(alive(kubernetes.processes[pod].pid) for pod in left), "they have ended"
            )
            eventually(lambda: len(running_pods(kubernetes)) == 2, "the next application has its pods")

            assert kubernetes.token not in command_lines() + made.log() + str(kubernetes.of("pods"))
            keeper, mine = made.keeper(), running_pods(kubernetes)
            stopped = made.stateflow("host", "stop", "tests")
            assert stopped.returncode == 0, stopped.stderr
            eventually(lambda: not alive(keeper), "the keeper has ended")
            eventually(
                lambda: not {pod["metadata"]["name"] for pod in kubernetes.executors()} & {*mine},
                "its pods are deleted",
            )
            assert [pod["metadata"]["name"] for pod in kubernetes.executors()] == left
            assert {pod["status"]["phase"] for pod in kubernetes.executors()} <= {"Succeeded", "Failed"}
            assert not any(alive(each.pid) for each in kubernetes.processes.values())
        assert kubernetes.problems == []
        assert kubernetes.verbs == ROLE


def test_an_image_that_is_missing_is_named(tmp_path: Path) -> None:
    made = Host(tmp_path)
    words = ("--master", "k8s://http://127.0.0.1:1")
    for command in (("host", "start", "tests"), ("run", "pipeline.py")):
        refused = made.stateflow(*command, *words, cwd=made.project(command[0]))
        assert (refused.returncode, "spark.kubernetes.container.image" in refused.stderr) == (2, True), (
            refused.stderr
        )
    examined = made.stateflow("doctor", "--spark", *words)
    assert "spark.kubernetes.container.image" in " ".join(examined.stdout.split())
    assert not (tmp_path / "cache" / "hosts" / "tests" / "settings.json").exists()


def test_an_image_that_is_missing_is_named_under_spark_submit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from stateflow.spark.session.build import build_session\nbuild_session('orders')\n", encoding="utf-8"
    )
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(require_java(cache_folder()))}
    submit = [
        str(spark_home() / "bin" / "spark-submit"),
        "--master",
        "k8s://http://127.0.0.1:1",
        str(program),
    ]
    said = subprocess.run(submit, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode != 0
    assert "UsageError: on k8s://http://127.0.0.1:1 executors are containers, and no image" in said.stdout

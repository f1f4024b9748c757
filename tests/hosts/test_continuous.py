"""Continuous runs on a host: queries of one Spark application, each with a process and an end of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from stateflow.hosts import starting
from stateflow.hosts.settings import HostSettings
from tests.hosts.hosting import Host, eventually, give
from tests.hosts.test_runs import running

pytestmark = pytest.mark.system
JOBS = ("one", "two", "three", "four")


def begin(made: Host, project: Path) -> subprocess.Popen[str]:
    words = ["--job", project.name, "--host", "tests", "--host-only", "--trigger", "200 ms"]
    return made.started("run", "pipeline.py", *words, cwd=project)


def completed(made: Host, project: Path) -> bool:
    return any((made.folder / "checkpoints" / project.name).glob("chk-*/_metadata"))


def commits(project: Path) -> int:
    return len(list((project / "out" / "_delta_log").glob("*.json")))


def advance(projects: list[Path]) -> None:
    """Gives each one more file, and waits until all have committed it."""
    before = [commits(each) for each in projects]
    for each in projects:
        give(each)
    for each, count in zip(projects, before, strict=True):
        eventually(lambda each=each, count=count: commits(each) > count, f"{each.name} carries on")  # type: ignore[misc]


def test_continuous_runs_end_and_die_alone_and_move_when_their_application_is_replaced(
    tmp_path: Path,
) -> None:
    made = Host(tmp_path)
    settings = HostSettings(
        master="local[2]",
        places=5,
        warms=False,
        recycle_runs=3,
        drain_timeout=1.0,
        conf={"spark.ui.enabled": "false"},
    )
    starting.start(made.cache / "hosts" / "tests", settings, made.environ)
    try:
        projects = {name: made.project(name) for name in JOBS}
        clients = {name: begin(made, project) for name, project in projects.items()}
        for project in projects.values():
            eventually(lambda project=project: completed(made, project), f"{project.name} has a checkpoint")  # type: ignore[misc]

        asked = made.stateflow("stop", "one")
        assert asked.returncode == 0, asked.stderr
        assert clients["one"].wait(60) == 0, "it ends by itself"
        os.kill(running(made, "two"), signal.SIGKILL)
        assert clients["two"].wait(60) == 137
        clients["two"] = begin(made, projects["two"])
        rest = [projects[name] for name in JOBS[1:]]
        advance(rest)

        # The third run that ends on it.
        assert made.run(made.project("five")).returncode == 0
        eventually(lambda: made.shown().get("number") == 2, "another application takes runs", 120)
        eventually(lambda: len(made.shown()["runs"]) == 3, "the continuous runs have moved there")
        eventually(
            lambda: {run["endless"] for run in made.shown()["runs"]} == {*JOBS[1:]}, "it knows that they are"
        )
        advance(rest)

        assert made.stateflow("host", "stop", "tests", timeout=90).returncode == 0
        for name in JOBS[1:]:
            said, _ = clients[name].communicate(timeout=60)
            assert clients[name].returncode == 0, said
            assert "its Spark is replaced, and the run goes on there" in said
            assert "the host tests ends the run after its batch: it stops" in said
            assert made.total(name) == 3.0
    finally:
        made.stateflow("host", "stop", "tests", "--now")

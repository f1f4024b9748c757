"""What a host does when its processes are killed, when it is used up, and when it is told to end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.hosting import Host, alive, eventually, give, host
from tests.hosts.test_runs import slow

pytestmark = pytest.mark.system


def replaced(made: Host, before: int) -> dict[str, object]:
    """What the host shows when another application has the name."""

    def shown() -> dict[str, object] | None:
        now = made.shown()
        return now if now.get("number", before) != before else None

    found: dict[str, object] = eventually(shown, "another application takes runs", 120)
    return found


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host whose application is another one after each of its tests."""
    with host(tmp_path_factory.mktemp("lasting")) as made:
        yield made


@pytest.mark.parametrize("victim", ["jvm", "host", "zygote"])
def test_a_killed_part_takes_its_runs_along_and_the_next_application_carries_on(
    lasting: Host, victim: str
) -> None:
    project, begun, go = slow(lasting, victim)
    before = eventually(lasting.shown, "an application takes runs", 120)
    processes = before["processes"]
    client = lasting.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=project)
    eventually(begun.exists, "the batch runs")
    run = lasting.shown()["runs"][0]["pid"]
    os.kill(processes[victim], signal.SIGKILL)
    client.communicate(timeout=60)
    assert client.returncode != 0
    eventually(lambda: not any(alive(pid) for pid in (run, *processes.values())), "nothing of it is left")
    go.touch()
    ran = lasting.run(project, "--host-wait", "2 minutes")
    assert ran.returncode == 0, ran.stderr
    assert lasting.shown()["number"] != before["number"]
    assert lasting.total(victim) == 1.0


def test_a_killed_keeper_takes_all_along_and_the_name_is_free_for_a_host_that_ends_each_run_after_its_batch(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as made:
        processes = made.shown()["processes"]
        os.kill(made.keeper(), signal.SIGKILL)
        eventually(lambda: not any(map(alive, processes.values())), "nothing of it is left")
        assert "ended" in made.stateflow("host", "list").stdout
        again = made.stateflow("host", "start", "tests", "--master", "local[2]", "--cold", timeout=200)
        assert again.returncode == 0, again.stderr

        project, begun, go = slow(made, "stopped")
        client = made.started("run", "pipeline.py", "--host", "tests", "--trigger", "1 second", cwd=project)
        eventually(begun.exists, "the batch runs")
        go.touch()
        assert made.stateflow("host", "stop", "tests", timeout=90).returncode == 0
        said, _ = client.communicate(timeout=60)
        assert client.returncode == 0, said
        assert made.stateflow("host", "show", "tests").stdout.startswith("tests: ended")


def test_after_so_many_runs_another_application_takes_the_name_and_is_drained(tmp_path: Path) -> None:
    with host(tmp_path, "--recycle-runs", "3", "--cold") as made:
        first = made.shown()
        project = made.project("many")
        for _ in range(4):
            ran = made.run(project)
            assert ran.returncode == 0, "no run notices: " + ran.stderr
            give(project)
        replaced(made, first["number"])
        eventually(lambda: not alive(first["pid"]), "the first application has ended")
        assert "is replaced: it has carried out 3 runs" in made.log()

        # Drained, it takes no run, and ends with its last one.
        project, begun, go = slow(made, "last")
        client = made.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=project)
        eventually(begun.exists, "the batch runs")
        drained = made.stateflow("host", "drain", "tests")
        assert drained.returncode == 0
        assert re.search(
            r"  pipeline.py, since .*: ends with its input, or after its batch in 10 minutes", drained.stderr
        )
        eventually(lambda: made.shown().get("draining"), "it drains")
        refused = made.run(made.project("late"))
        assert (refused.returncode, "it is draining" in refused.stderr) == (8, True), refused.stderr
        again = made.stateflow("host", "start", "tests", "--master", "local[2]")
        assert (again.returncode, "'tests' drains, and takes no runs any" in again.stderr) == (8, True), (
            again.stderr
        )
        go.touch()
        said, _ = client.communicate(timeout=60)
        assert client.returncode == 0, said
        eventually(lambda: "ended" in made.stateflow("host", "list").stdout, "it has ended")


def test_a_changed_package_replaces_the_application(lasting: Host) -> None:
    first = eventually(lasting.shown, "an application takes runs", 120)
    project = lasting.project("upgraded")
    # A package is installed for the user who has started the host.
    (
        lasting.folder
        / "user"
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
    ).mkdir(parents=True)
    refused = lasting.run(project, "--host-wait", "0")
    assert refused.returncode == 8
    assert "was changed since it started, and its replacement is not ready" in refused.stderr
    ran = lasting.run(project, "--host-wait", "2 minutes")
    assert ran.returncode == 0, ran.stderr
    assert lasting.shown()["number"] != first["number"]


def test_what_starts_a_host_wrongly_is_one_sentence(tmp_path: Path) -> None:
    made = Host(tmp_path)
    for words, code, why in (
        (["start", "No Name"], 2, "cannot be the name of a host"),
        (["show", "nobody"], 3, "there is no host 'nobody'"),
        (["stop", "nobody"], 3, "there is no host 'nobody'"),
        (["start", "wrong", "--conf", "spark.driver.memory"], 2, "--conf NAME=VALUE"),
        (
            ["start", "wrong", "--master", "local[2]", "--conf", "spark.driver.memory=nonsense"],
            1,
            "Invalid maximum heap size",
        ),
        # Said by Java, above thirty lines of where it was.
        (
            ["start", "wrong", "--conf", "spark.executor.memory=100m"],
            1,
            "Executor memory 104857600 must be at least",
        ),
    ):
        ran = made.stateflow("host", *words, timeout=200)
        assert (ran.returncode, why in ran.stderr) == (code, True), ran.stderr


def test_a_host_that_runs_is_not_started_again(lasting: Host) -> None:
    eventually(lasting.shown, "an application takes runs", 120)
    second = lasting.stateflow("host", "start", "tests")
    assert (second.returncode, "runs already" in second.stderr) == (8, True)
